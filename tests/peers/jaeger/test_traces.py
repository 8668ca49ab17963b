"""Spans of an instrumented application in a real Jaeger, read back through its query API."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

from otel_mqtrace import semconv
from otel_mqtrace.testing import RecordingExporter
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.peers.jaeger.query import JaegerQuery
from tests.peers.otlp_spans import of_sdk
from tests.peers.traced import handle, send, traced

pytestmark = pytest.mark.peers

PRODUCER, CONSUMER = 4, 5
ERROR = 2


@pytest.fixture(scope="module")
def kafka():
    """A broker; what is asked here is Jaeger."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def query(jaeger):
    """Questions to the running Jaeger."""
    return JaegerQuery(jaeger.query_url)


def _http(jaeger):
    return HttpExporter(endpoint=jaeger.traces_url)


def _grpc(jaeger):
    return GrpcExporter(endpoint=jaeger.grpc_endpoint, insecure=True)


def _run(kafka, jaeger, name, *, exporter=_http, handler=bool, **options):
    kafka.create_topic(name, partitions=1)
    ended = RecordingExporter()
    with traced(f"{name}-shop", ended, exporter(jaeger), **options):
        send(kafka, name)
    with traced(f"{name}-billing", ended, exporter(jaeger), **options):
        handle(kafka, name, handler=handler)
    return of_sdk(ended.take(f"send {name}")), of_sdk(ended.take(f"process {name}"))


@pytest.mark.parametrize("exporter", [_http, _grpc], ids=["http", "grpc"])
def test_producer_and_consumer_of_a_message_are_one_trace(kafka, jaeger, query, exporter):
    name = f"one-trace-{exporter.__name__}"
    sent, processed = _run(kafka, jaeger, name, exporter=exporter)
    held = query.trace(sent["trace_id"], spans=2)
    assert held == [sent, processed]
    assert [span["kind"] for span in held] == [PRODUCER, CONSUMER]
    assert [span["resource"]["service.name"] for span in held] == [f"{name}-shop", f"{name}-billing"]
    assert held[1]["parent"] == held[0]["span_id"]
    assert {f"{name}-shop", f"{name}-billing"} <= query.services()
    assert query.operations(f"{name}-billing") == {(f"process {name}", "consumer")}
    assert (f"{name}-shop", f"{name}-billing") in query.calls()


def test_in_link_mode_the_consumer_has_a_trace_of_its_own_that_links_to_the_producer_s(kafka, jaeger, query):
    name = "linked"
    sent, processed = _run(kafka, jaeger, name, process_context="link")
    assert processed["trace_id"] != sent["trace_id"]
    (producer,), (consumer,) = query.trace(sent["trace_id"], spans=1), query.trace(processed["trace_id"], spans=1)
    assert (producer, consumer) == (sent, processed)
    ((trace_id, span_id, _),) = consumer["links"]
    assert (trace_id, span_id, consumer["parent"]) == (producer["trace_id"], producer["span_id"], "")
    assert (f"{name}-shop", f"{name}-billing") not in query.calls()


def test_with_both_the_consumer_is_child_and_has_the_link(kafka, jaeger, query):
    """``MQTRACE_PROCESS_CONTEXT=both``: one trace, and the link beside the parent."""
    sent, processed = _run(kafka, jaeger, "both-ways", process_context="both")
    held = query.trace(sent["trace_id"], spans=2)
    assert held == [sent, processed]
    assert [link[:2] for link in held[1]["links"]] == [(held[0]["trace_id"], held[0]["span_id"])]


def test_a_handler_that_raises_is_an_error_with_its_exception(kafka, jaeger, query):
    sent, processed = _run(kafka, jaeger, "raises", handler=lambda message: 1 / message.offset())
    producer, consumer = query.trace(sent["trace_id"], spans=2)
    assert (producer, consumer) == (sent, processed)
    assert (producer["status"][0], consumer["status"][0]) == (0, ERROR)
    assert consumer["attributes"][semconv.ERROR_TYPE] == "ZeroDivisionError"
    ((_, event, told),) = consumer["events"]
    assert (event, told["exception.type"]) == ("exception", "ZeroDivisionError")
    assert query.ids_with("raises-billing", error__type="ZeroDivisionError") == {sent["trace_id"]}
    assert query.ids_with("raises-billing", error__type="KeyError") == set()


def test_a_send_that_the_client_refuses_is_a_trace_of_one_failed_producer(kafka, jaeger, query):
    kafka.create_topic("refused", partitions=1)
    ended = RecordingExporter()
    with traced("refused-shop", ended, _http(jaeger)), pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        send(kafka, "refused", body=b"x" * 200_000)
    refused = of_sdk(ended.take("send refused"))
    (held,) = query.trace(refused["trace_id"], spans=1)
    assert held == refused
    assert (held["status"][0], held["attributes"][semconv.ERROR_TYPE]) == (ERROR, "MSG_SIZE_TOO_LARGE")


def test_a_search_finds_every_message_of_a_service_and_by_its_keys(kafka, jaeger, query):
    kafka.create_topic("searched", partitions=1)
    ended, count = RecordingExporter(), 200
    with traced("searched-shop", ended, _http(jaeger)):
        send(kafka, "searched", count)
    with traced("searched-billing", ended, _http(jaeger)):
        handle(kafka, "searched", count)
    spans = [of_sdk(span) for span in ended.take_all()]
    found = query.search("searched-shop", operation="send searched", spans=2 * count)
    assert sorted((span["trace_id"], span["span_id"]) for span in found) == sorted(
        (span["trace_id"], span["span_id"]) for span in spans
    )
    one = spans[17]
    msg_id = one["attributes"][semconv.MESSAGING_MESSAGE_ID]
    assert query.ids_with("searched-billing", messaging__message__id=msg_id) == {one["trace_id"]}
    where = {"messaging__destination__name": "searched", "mqtrace__tags": "付款"}
    assert len(query.ids_with("searched-shop", **where)) == count


_SHOP = """
import sys
from confluent_kafka import Producer

producer = Producer({"bootstrap.servers": sys.argv[1]})
producer.produce("by-environment", "paid", key="order-1")
assert producer.flush(20) == 0
"""
_BILLING = """
import sys
from confluent_kafka import Consumer

consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": "by-environment", "auto.offset.reset": "earliest"})
consumer.subscribe(["by-environment"])
while consumer.poll(1) is None:
    pass
consumer.close()
"""


def test_two_processes_that_know_nothing_of_tracing_are_one_trace(kafka, jaeger, query, tmp_path):
    """Two programs started by ``opentelemetry-instrument``: environment variables alone put them into Jaeger."""
    kafka.create_topic("by-environment", partitions=1)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MQTRACE_"))}
    for service, program in (("env-shop", _SHOP), ("env-billing", _BILLING)):
        file = tmp_path / f"{service}.py"
        file.write_text(program, encoding="utf-8")
        environment = {
            "OTEL_SERVICE_NAME": service,
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{jaeger.grpc_endpoint}",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka",
        }
        launcher = Path(sys.executable).with_name("opentelemetry-instrument")
        command = [launcher, sys.executable, file, kafka.bootstrap_servers]
        done = subprocess.run(
            command, env={**clean, **environment}, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
    held = query.search("env-shop", spans=2)
    assert [(span["resource"]["service.name"], span["name"], span["kind"]) for span in held] == [
        ("env-shop", "send by-environment", PRODUCER),
        ("env-billing", "process by-environment", CONSUMER),
    ]
    assert held[1]["parent"] == held[0]["span_id"]
    assert held[1]["attributes"][semconv.MESSAGING_MESSAGE_ID] == held[0]["attributes"][semconv.MESSAGING_MESSAGE_ID]
