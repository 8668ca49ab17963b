"""The forwarder on a real Kafka, killed again and again."""

import sys

import pytest

from tests.support.killing import forwarded_under_fire, kafka_sender

pytestmark = pytest.mark.peers

KILLS, SEED = 25, 1


def test_kill_9_at_any_moment_loses_nothing(kafka, tmp_path, capsys):
    topic = kafka.create_topic("forwarded-under-fire", partitions=3)
    send = kafka_sender(kafka.bootstrap_servers, topic, 3, seed=SEED)
    source = f"kafka://{kafka.bootstrap_servers}/{topic}"
    output = forwarded_under_fire(source, send, tmp_path, kills=KILLS, seed=SEED)
    with capsys.disabled():
        sys.stdout.write(f"\nKafka: {output}\n")
    assert output.spans > 500
    assert output.at_work > KILLS // 2  # a busy machine may be killed before it has begun
    assert (output.lost, output.unexpected, output.contradicted) == (0, 0, 0)
