"""An outage of the trace broker, with a spool: nothing is lost, nothing waits for it, and all of it arrives once."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from bridge.forwarder.sources.kafka import KafkaTraceSource
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.testing import ManualClock
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from otel_mqtrace.wire.native import decode_body
from tests.support.native_spans import pub, traced

TOPIC = "RMQ_SYS_TRACE_TOPIC"
NAME = "NativeKafkaSpanExporter"
PRODUCE, TOO_LARGE = 0, 10
NOWHERE = "127.0.0.1:1"


@pytest.fixture
def kafka():
    with EmbeddedKafka() as embedded:
        embedded.create_topic(TOPIC)
        yield embedded


def exporter_of(servers, spool, **options):
    return NativeKafkaSpanExporter(
        bootstrap_servers=servers, spool_dir=spool, **{"export_timeout_millis": 500, **options}
    )


def arrived(kafka):
    with KafkaTraceSource(kafka.bootstrap_servers, TOPIC) as source:
        bodies = [decode_body(message.body) for batch in source.drain() for message in batch]
    return [record.beans[0].msg_id for body in bodies for record in body.contexts]


def ids(*numbers):
    return [f"{number:032X}" for number in numbers]


def test_while_the_broker_is_away_batches_go_to_disk_without_waiting_for_it(tmp_path):
    clock = ManualClock()
    exporter = exporter_of(NOWHERE, tmp_path, export_timeout_millis=50, clock=_Moving(clock))
    processor, trace = traced(exporter, max_export_batch_size=1)
    for number in range(20):
        trace(pub(number))
    while processor.run_once(now=10**18):
        pass
    books = processor.stats()[NAME]
    assert (books["exported"], books["failed"]) == (20, 0)
    assert (exporter.stats()["spooled"], exporter.stats()["spool_waiting"]) == (20, 20)
    assert not processor.force_flush(timeout_millis=100)  # truthful: it is safe, but it is not there
    processor.shutdown()


class _Moving:
    """Time that a test holds, but that passes a little with each look, so that a wait for a broker ends."""

    def __init__(self, clock):
        self._clock = clock

    def wall_ns(self):
        return self._clock.wall_ns()

    def monotonic_ns(self):
        self._clock.advance(ms=1)
        return self._clock.monotonic_ns()


def test_what_waited_arrives_in_order_once_when_the_broker_is_back(kafka, tmp_path):
    first = exporter_of(NOWHERE, tmp_path)
    processor, trace = traced(first)
    for number in range(3):
        trace(pub(number))
    processor.force_flush(timeout_millis=1_000)
    processor.shutdown()
    second = exporter_of(kafka.bootstrap_servers, tmp_path, export_timeout_millis=10_000)
    processor, trace = traced(second)
    trace(pub(3))
    assert processor.force_flush()
    assert sorted(arrived(kafka)) == ids(0, 1, 2, 3)
    assert second.stats()["spool_waiting"] == 0
    assert list(tmp_path.iterdir()) == []
    processor.shutdown()
    assert arrived(kafka) == ids(3, 0, 1, 2)


def test_a_quiet_moment_is_used_for_what_waits(kafka, tmp_path):
    first = exporter_of(NOWHERE, tmp_path)
    processor, trace = traced(first)
    trace(pub(0))
    processor.force_flush(timeout_millis=1_000)
    processor.shutdown()
    second = exporter_of(kafka.bootstrap_servers, tmp_path, export_timeout_millis=10_000)
    second.on_idle()
    assert arrived(kafka) == ids(0)
    second.shutdown()


def test_a_message_the_broker_refuses_for_ever_never_waits(kafka, tmp_path):
    """It would hold up everything behind it."""
    kafka.push_request_errors(PRODUCE, TOO_LARGE)
    exporter = exporter_of(kafka.bootstrap_servers, tmp_path, export_timeout_millis=10_000)
    processor, trace = traced(exporter)
    trace(pub(0))
    processor.run_once(now=10**18)
    assert processor.stats()[NAME]["failed"] == 1
    assert exporter.stats()["spool_waiting"] == 0
    trace(pub(1))
    assert processor.force_flush()
    assert arrived(kafka) == ids(1)
    processor.shutdown()


def test_a_full_spool_loses_the_newest_and_counts_them(tmp_path, monkeypatch):
    monkeypatch.setenv("MQTRACE_SPOOL_BYTES", "400")
    exporter = exporter_of(NOWHERE, tmp_path)
    processor, trace = traced(exporter, max_export_batch_size=1)
    for number in range(5):
        trace(pub(number))
    while processor.run_once(now=10**18):
        pass
    books = processor.stats()[NAME]
    assert books["exported"] == exporter.stats()["spool_waiting"] > 0
    assert books["failed"] == 5 - books["exported"] > 0
    processor.shutdown()


def test_a_spool_that_cannot_be_had_is_told_and_the_exporter_works(kafka, tmp_path, caplog):
    (tmp_path / "taken").write_text("")
    exporter = exporter_of(kafka.bootstrap_servers, tmp_path / "taken", export_timeout_millis=10_000)
    assert "taken" in caplog.text
    processor, trace = traced(exporter)
    trace(pub(0))
    assert processor.force_flush()
    processor.shutdown()
    assert arrived(kafka) == ids(0)
    assert exporter.export([]) is SpanExportResult.SUCCESS
