"""Forwarded trace messages of Java applications without OpenTelemetry: one trace per message in Jaeger."""

import pytest

from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.peers.command import answers
from tests.peers.jaeger.query import JaegerQuery
from tests.peers.jaeger.server import Jaeger
from tests.support.killing import kafka_sender
from tests.support.native_vectors import RECORDED_FILES, recorded

pytestmark = pytest.mark.peers

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
CLIENT, PRODUCER, CONSUMER = "CLIENT", "PRODUCER", "CONSUMER"
OK, ERROR = "UNSET", "ERROR"


def _bodies():
    return [each.body for name in RECORDED_FILES for each in recorded(name)]


@pytest.fixture(scope="module", params=["a Kafka topic", "a RocketMQ broker"])
def source(request):
    """The recorded messages on a trace topic, of a Kafka and of a real RocketMQ broker; what ``--source`` names it by."""
    if request.param == "a Kafka topic":
        with EmbeddedKafka() as kafka:
            kafka.create_topic(TRACE_TOPIC, partitions=3)
            kafka_sender(kafka.bootstrap_servers, TRACE_TOPIC, 3, seed=0)(_bodies())
            yield f"kafka://{kafka.bootstrap_servers}/{TRACE_TOPIC}"
        return
    server = request.getfixturevalue("rocketmq_server")
    topic = server.create_topic("FORWARDED_TRACE_TOPIC", queues=4)
    server.send(topic, *_bodies())
    yield f"rocketmq://{server.name_server}/{topic}"


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
    spans = query.shown(trace_id, spans=9)
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
