"""The public test kit keeps its own promises."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from otel_mqtrace.testing import ManualClock, RecordingExporter, embedded_kafka, recording_provider


def test_time_moves_only_when_told():
    clock = ManualClock(wall_ns=5)
    clock.advance(ms=2, ns=3)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (2_000_008, 2_000_003)


def test_ids_count_upwards():
    exporter = RecordingExporter()
    tracer = recording_provider(exporter, fixed_ids=True).get_tracer("t")
    for _ in range(2):
        tracer.start_span("x").end()
    assert [span.context.span_id for span in exporter.take_all()] == [1, 2]


def test_a_span_nobody_took_fails_the_test():
    exporter = RecordingExporter()
    recording_provider(exporter).get_tracer("t").start_span("x").end()
    with pytest.raises(AssertionError, match="'x'"):
        exporter.assert_empty()
    with pytest.raises(AssertionError, match="no span y"):
        exporter.take("y")
    exporter.take("x")
    exporter.assert_empty()


def test_a_broker_comes_with_the_kit():
    with contextmanager(embedded_kafka)() as kafka:
        kafka.create_topic("orders", partitions=2)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("orders", b"x")
        assert producer.flush(20) == 0
