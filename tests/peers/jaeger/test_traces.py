"""Spans of an instrumented application in a real Jaeger, read back through its query API."""

import pytest

from otel_mqtrace.testing import RecordingExporter
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.peers.jaeger.query import JaegerQuery
from tests.peers.otlp_spans import of_sdk
from tests.peers.traced import grpc_to, handle, http_to, send, traced

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def kafka():
    """A broker; what is asked here is Jaeger."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def query(jaeger):
    """Questions to the running Jaeger."""
    return JaegerQuery(jaeger.query_url)


def _run(kafka, jaeger, name, *, exporter=http_to, handler=bool, **options):
    kafka.create_topic(name, partitions=1)
    ended = RecordingExporter()
    with traced(f"{name}-shop", ended, exporter(jaeger), **options):
        send(kafka, name)
    with traced(f"{name}-billing", ended, exporter(jaeger), **options):
        handle(kafka, name, handler=handler)
    return of_sdk(ended.take(f"send {name}")), of_sdk(ended.take(f"process {name}"))


@pytest.mark.parametrize(
    ("exporter", "handler", "status", "errors"),
    [(http_to, bool, "UNSET", []), (grpc_to, lambda message: 1 / message.offset(), "ERROR", ["ZeroDivisionError"])],
    ids=["over http", "over grpc, failed"],
)
def test_producer_and_consumer_of_a_message_are_one_trace(kafka, jaeger, query, exporter, handler, status, errors):
    name = f"one-trace-{exporter.__name__}"
    sent, processed = _run(kafka, jaeger, name, exporter=exporter, handler=handler)
    held = query.trace(sent["trace_id"], spans=2)
    assert held == [sent, processed]
    assert [(span["kind"], span["status"]) for span in held] == [("PRODUCER", "UNSET"), ("CONSUMER", status)]
    assert [span["service"] for span in held] == [f"{name}-shop", f"{name}-billing"]
    assert held[1]["parent_span_id"] == held[0]["span_id"]
    assert [event["attributes"]["exception.type"] for event in held[1]["events"]] == errors
    found = query.ids_with(f"{name}-billing", error__type="ZeroDivisionError")
    assert found == ({sent["trace_id"]} if errors else set())
    assert {f"{name}-shop", f"{name}-billing"} <= query.services()
    assert query.operations(f"{name}-billing") == {(f"process {name}", "consumer")}
    assert (f"{name}-shop", f"{name}-billing") in query.calls()


def test_consumer_in_link_mode_has_a_trace_of_its_own_linked_to_the_producer(kafka, jaeger, query):
    name = "linked"
    sent, processed = _run(kafka, jaeger, name, process_context="link")
    assert processed["trace_id"] != sent["trace_id"]
    (producer,), (consumer,) = query.trace(sent["trace_id"], spans=1), query.trace(processed["trace_id"], spans=1)
    assert (producer, consumer) == (sent, processed)
    ((trace_id, span_id, _),) = consumer["links"]
    assert (trace_id, span_id, consumer["parent_span_id"]) == (producer["trace_id"], producer["span_id"], None)
    assert (f"{name}-shop", f"{name}-billing") not in query.calls()
