"""A Collector that goes away and comes back: what the application loses is counted, and nothing else is lost."""

import logging
import socket
from contextlib import contextmanager

import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

from otel_mqtrace.spans.queue import lost
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.peers.command import answers
from tests.peers.traced import send, traced

pytestmark = pytest.mark.peers

FLUSH_MS = 120_000
PATIENCE_SECONDS = 30
LONG, SHORT = 300, 3
"""Seconds that an exporter goes on trying: longer than a Collector takes to start on any machine, or shorter."""


def _http(collector, seconds):
    return HttpExporter(endpoint=collector.traces_url, timeout=seconds)


def _grpc(collector, seconds):
    return GrpcExporter(endpoint=f"127.0.0.1:{collector.grpc_port}", insecure=True, timeout=seconds)


exporters = pytest.mark.parametrize(
    ("exporter", "port"), [(_http, "http_port"), (_grpc, "grpc_port")], ids=["http", "grpc"]
)


@pytest.fixture
def kafka():
    """A broker; what goes away here is the Collector."""
    with EmbeddedKafka() as broker:
        broker.create_topic("orders", partitions=1)
        yield broker


@contextmanager
def _unreachable(collector, port):
    collector.stop()
    with socket.create_server(("127.0.0.1", getattr(collector, port))) as door:
        door.settimeout(PATIENCE_SECONDS)
        yield
        door.accept()[0].close()


def _kept(collector):
    collector.stop()
    spans = answers("inspect", collector.output, "--spans")
    return sorted(span["attributes"]["messaging.kafka.offset"] for span in spans)


@exporters
def test_spans_of_a_short_outage_arrive_when_it_is_over(start_collector, kafka, exporter, port):
    collector = start_collector("otlp-only.yaml")
    with traced("shop", exporter(collector, LONG)) as processor:
        send(kafka, "orders", 50)
        assert processor.force_flush(FLUSH_MS)
        with _unreachable(collector, port):
            send(kafka, "orders", 150)
        send(kafka, "orders", 100)
        collector.start()
        assert processor.force_flush(FLUSH_MS)
        (books,) = processor.stats().values()
    assert (books["offered"], books["exported"], lost(books), books["pending"]) == (300, 300, 0, 0)
    assert _kept(collector) == list(range(300))


@exporters
def test_spans_of_an_outage_that_outlasts_the_exporter_are_counted_as_failed(
    start_collector, kafka, exporter, port, caplog
):
    caplog.set_level(logging.WARNING)
    collector = start_collector("otlp-only.yaml")
    with traced("shop", exporter(collector, SHORT)) as processor:
        send(kafka, "orders", 50)
        assert processor.force_flush(FLUSH_MS)
        collector.stop()
        assert len(send(kafka, "orders", 150)) == 150
        processor.force_flush(FLUSH_MS)
        (away,) = processor.stats().values()
        collector.start()
        send(kafka, "orders", 50)
        assert processor.force_flush(FLUSH_MS)
        (books,) = processor.stats().values()
    assert (away["offered"], away["exported"], away["failed"], away["pending"]) == (200, 50, 150, 0)
    assert (books["offered"], books["exported"], books["failed"], lost(books)) == (250, 100, 150, 150)
    assert _kept(collector) == [*range(50), *range(200, 250)]
    assert any("failed 150" in record.getMessage() for record in caplog.records)
