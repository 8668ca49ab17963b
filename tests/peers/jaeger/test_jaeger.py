"""A real Jaeger: spans of an instrumented application and of forwarded trace messages in it, and it as a source of spans."""

import json
from urllib.parse import urlsplit

import pytest

from otel_mqtrace.cli import main
from otel_mqtrace.testing import RecordingExporter, embedded_kafka
from spark_jobs.inspect import Inventory, inspect_sources
from spark_jobs.sources.jaeger import JaegerAddress, fetch_spans
from tests.peers.jaeger.server import Jaeger, JaegerQuery
from tests.peers.traced import grpc_to, handle, http_to, of_sdk, send, traced
from tests.support.native_vectors import RECORDED_FILES, recorded
from tests.support.programs import answers
from tests.support.topics import put_messages

pytestmark = pytest.mark.peers


kafka = pytest.fixture(scope="module")(embedded_kafka)
"""A broker; what is asked here is Jaeger."""


@pytest.mark.parametrize(
    ("exporter", "handler", "status", "errors"),
    [(http_to, bool, "UNSET", []), (grpc_to, lambda message: 1 / message.offset(), "ERROR", ["ZeroDivisionError"])],
    ids=["over http", "over grpc, failed"],
)
def test_producer_and_consumer_of_a_message_are_one_trace(kafka, jaeger, exporter, handler, status, errors):
    query, name = JaegerQuery(jaeger.query_url), f"one-trace-{exporter.__name__}"
    kafka.create_topic(name, partitions=1)
    ended = RecordingExporter()
    with traced(f"{name}-shop", ended, exporter(jaeger)):
        send(kafka, name)
    with traced(f"{name}-billing", ended, exporter(jaeger)):
        handle(kafka, name, handler=handler)
    sent, processed = of_sdk(ended.take(f"send {name}")), of_sdk(ended.take(f"process {name}"))
    held = query.trace(sent["trace_id"], spans=2, raw_traces="true")
    assert held == [sent, processed]
    assert [(span["kind"], span["status"]) for span in held] == [("PRODUCER", "UNSET"), ("CONSUMER", status)]
    assert [span["service"] for span in held] == [f"{name}-shop", f"{name}-billing"]
    assert held[1]["parent_span_id"] == held[0]["span_id"]
    assert [event["attributes"]["exception.type"] for event in held[1]["events"]] == errors
    found = query.ids_with(f"{name}-billing", error__type="ZeroDivisionError")
    assert found == ({sent["trace_id"]} if errors else set())
    assert {f"{name}-shop", f"{name}-billing"} <= query.services()
    assert (f"{name}-shop", f"{name}-billing") in query.calls()


def test_consumer_in_link_mode_has_a_trace_of_its_own_linked_to_the_producer(kafka, jaeger):
    query, name, ended = JaegerQuery(jaeger.query_url), "linked", RecordingExporter()
    kafka.create_topic(name, partitions=1)
    with traced(name, ended, http_to(jaeger), process_context="link"):
        send(kafka, name)
        handle(kafka, name)
    ids = [of_sdk(ended.take(f"{verb} {name}"))["trace_id"] for verb in ("send", "process")]
    (sent,), (processed,) = (query.trace(trace_id, spans=1) for trace_id in ids)
    ((trace_id, span_id),) = ((link["trace_id"], link["span_id"]) for link in processed["links"])
    assert (trace_id, span_id, processed["parent_span_id"]) == (sent["trace_id"], sent["span_id"], None)


# -- forwarded trace messages of Java applications without OpenTelemetry: one trace per message ---------------------------

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
CLIENT, PRODUCER, CONSUMER = "CLIENT", "PRODUCER", "CONSUMER"
OK, ERROR = "UNSET", "ERROR"


def _bodies():
    return [each.body for name in RECORDED_FILES for each in recorded(name)]


@pytest.fixture(scope="module", params=["a Kafka topic", "a RocketMQ broker"])
def source(request):
    """The recorded messages on a trace topic, of a Kafka and of a real RocketMQ broker; what ``--source`` names it by."""
    if request.param == "a Kafka topic":
        kafka = request.getfixturevalue("kafka")
        kafka.create_topic(TRACE_TOPIC, partitions=3)
        put_messages(kafka.bootstrap_servers, TRACE_TOPIC, *_bodies(), partitions=3)
        return f"kafka://{kafka.bootstrap_servers}/{TRACE_TOPIC}"
    server = request.getfixturevalue("rocketmq_server")
    topic = server.create_topic("FORWARDED_TRACE_TOPIC", queues=4)
    server.send(topic, *_bodies())
    return f"rocketmq://{server.name_server}/{topic}"


@pytest.fixture(scope="module")
def forwarded(source, jaeger, tmp_path_factory):
    """A Jaeger of this source's own, the topic forwarded to it twice, as after a lost commit; what the command counted."""
    with Jaeger(jaeger.program, tmp_path_factory.mktemp("forwarded")) as own:
        endpoint = own.traces_url.removesuffix("/v1/traces")
        options = ["--source", source, "--otlp-endpoint", endpoint, "--once", "--json"]
        (first,) = answers("forward", *options, "--group", "first")
        (second,) = answers("forward", *options, "--group", "second")
        yield JaegerQuery(own.query_url), first, second


def _summary(span):
    attributes = span["attributes"]
    detail = attributes.get("mqtrace.retry_times", attributes.get("mqtrace.transaction_state"))
    return (span["service"], span["kind"], span["name"].partition(" ")[0], detail, span["status"])


def test_trace_of_a_message_has_all_its_events(forwarded):
    query, _, _ = forwarded
    (trace_id,) = query.ids_with("PG_tx_d498dup", traces=1, messaging__message__id="C000020262BB60E53B936993952C0000")
    spans = query.trace(trace_id, spans=9)
    assert [_summary(span) for span in spans] == [
        ("PG_tx_d498dup", PRODUCER, "send", None, OK),
        ("PG_tx_d498dup", CLIENT, "end_transaction", "UNKNOW", OK),
        ("PG_tx_d498dup", CLIENT, "end_transaction", "COMMIT_MESSAGE", OK),
        ("CG_billing_d498dup", CONSUMER, "process", 0, ERROR),
        ("CG_shipping_d498dup", CONSUMER, "process", 0, ERROR),
        ("CG_billing_d498dup", CONSUMER, "process", 1, ERROR),
        ("CG_shipping_d498dup", CONSUMER, "process", 1, ERROR),
        ("CG_billing_d498dup", CONSUMER, "process", 2, ERROR),
        ("CG_shipping_d498dup", CONSUMER, "process", 2, ERROR),
    ]
    assert {span["parent_span_id"] for span in spans[1:]} == {spans[0]["span_id"]}
    assert [span["attributes"]["mqtrace.from_transaction_check"] for span in spans[1:3]] == [False, True]


def test_forwarding_again_adds_no_span(forwarded):
    query, first, second = forwarded
    assert (first["spans"], first["rejected"], first["pending"]) == (second["spans"], 0, 0)
    shown = {
        (span["trace_id"], span["span_id"]) for service in query.services() for span in query.search(service, spans=1)
    }
    assert len(shown) == first["spans"]


MESSAGES, TOPIC, SERVICE = 9, "fetched", "fetched-shop"


@pytest.fixture(scope="module")
def sent(kafka, jaeger):
    ended = RecordingExporter()
    kafka.create_topic(TOPIC, partitions=1)
    with traced(SERVICE, ended, http_to(jaeger)):
        for _ in range(MESSAGES):
            send(kafka, TOPIC)
    JaegerQuery(jaeger.query_url).search(SERVICE, spans=MESSAGES)
    return {of_sdk(span)["span_id"] for span in ended.take_all(f"send {TOPIC}")}


def test_pages_smaller_than_the_service_hold_every_span_once(jaeger, sent, tmp_path):
    address = JaegerAddress(urlsplit(jaeger.query_url).netloc, (SERVICE,))
    path = tmp_path / "spans.jsonl"
    fetch_spans(address, path, traces_per_page=2)
    inventory = Inventory()
    assert sorted(item["span_id"] for _, item in inspect_sources([str(path)], inventory)) == sorted(sent)
    assert (len(sent), inventory.topics, inventory.malformed) == (MESSAGES, {TOPIC}, 0)
    assert len(path.read_text(encoding="utf-8").splitlines()) > 1


def test_reconcile_reads_the_spans_of_the_address(jaeger, sent, tmp_path, capsys):
    native = tmp_path / "native.jsonl"
    native.touch()
    src = f"jaeger://{urlsplit(jaeger.query_url).netloc}?service={SERVICE}"
    options = ["--engine", "local", "--profile", "mqtrace", "--native-writer", "mqtrace", "--complete", "--json"]
    main(["reconcile", "--native", str(native), "--otlp", src, "--out", str(tmp_path / "out"), *options])
    result = json.loads(capsys.readouterr().out)
    assert result["inputs"]["otlp"]["records_read"] == len(sent) == MESSAGES
