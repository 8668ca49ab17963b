"""The forwarder killed again and again: nothing is lost, and what repeats is the same span. More of it: tests/peers."""

from __future__ import annotations

from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.killing import forwarded_under_fire, kafka_sender


def test_kill_9_loses_nothing_and_repeats_only_the_same_spans(tmp_path):
    with EmbeddedKafka() as kafka:
        kafka.create_topic("traces", 3)
        send = kafka_sender(kafka.bootstrap_servers, "traces", 3, seed=7)
        output = forwarded_under_fire(f"kafka://{kafka.bootstrap_servers}/traces", send, tmp_path, kills=5, seed=7)
    assert output.spans > 100
    assert output.at_work > 2
    assert (output.lost, output.unexpected, output.contradicted) == (0, 0, 0)
