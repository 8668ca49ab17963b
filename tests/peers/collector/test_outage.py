"""A Collector that goes away and comes back while the exporters go on trying: nothing is lost."""

import socket
from contextlib import contextmanager

import pytest

from otel_mqtrace.spans.queue import lost
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.peers.command import answers
from tests.peers.traced import grpc_to, http_to, send, traced

pytestmark = pytest.mark.peers

FLUSH_MS = 120_000
PATIENCE_SECONDS = 30
LONG_SECONDS = 300  # that an exporter goes on trying: more than a Collector takes to start on any machine


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


@pytest.mark.parametrize(("exporter", "port"), [(http_to, "http_port"), (grpc_to, "grpc_port")], ids=["http", "grpc"])
def test_spans_of_a_short_outage_arrive_when_it_is_over(start_collector, kafka, exporter, port):
    collector = start_collector("otlp-only.yaml")
    with traced("shop", exporter(collector, timeout=LONG_SECONDS)) as processor:
        send(kafka, "orders", 50)
        assert processor.force_flush(FLUSH_MS)
        with _unreachable(collector, port):
            send(kafka, "orders", 150)
        send(kafka, "orders", 100)
        collector.start()
        assert processor.force_flush(FLUSH_MS)
        (books,) = processor.stats().values()
    assert (books["offered"], books["exported"], lost(books), books["pending"]) == (300, 300, 0, 0)
    collector.stop()
    spans = answers("inspect", collector.output, "--spans")
    assert sorted(span["attributes"]["messaging.kafka.offset"] for span in spans) == list(range(300))
