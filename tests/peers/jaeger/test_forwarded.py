"""Forwarded trace messages of Java applications without OpenTelemetry: one trace per message in Jaeger."""

import base64
import json
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from otel_mqtrace.rocketmq.client import Outgoing, RemotingClient, SendResult
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.peers.command import answers
from tests.peers.jaeger.query import JaegerQuery
from tests.peers.jaeger.server import Jaeger

pytestmark = pytest.mark.peers

RECORDED = Path(__file__).resolve().parents[2] / "vectors" / "native" / "recorded"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
CLIENT, PRODUCER, CONSUMER = "CLIENT", "PRODUCER", "CONSUMER"
OK, ERROR = "UNSET", "ERROR"


def _bodies():
    lines = [line for file in sorted(RECORDED.glob("*.jsonl")) for line in file.read_text("utf-8").splitlines()]
    return [base64.b64decode(json.loads(line)["body_base64"]) for line in lines]


@pytest.fixture(scope="module", params=["a Kafka topic", "a RocketMQ broker"])
def source(request):
    """The recorded messages on a trace topic, of a Kafka and of a real RocketMQ broker; what ``--source`` names it by."""
    if request.param == "a Kafka topic":
        with EmbeddedKafka() as kafka:
            kafka.create_topic(TRACE_TOPIC, partitions=3)
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
            for body in _bodies():
                producer.produce(TRACE_TOPIC, body)
            assert producer.flush(30) == 0
            yield f"kafka://{kafka.bootstrap_servers}/{TRACE_TOPIC}"
        return
    server = request.getfixturevalue("rocketmq_server")
    topic = server.create_topic("FORWARDED_TRACE_TOPIC", queues=4)
    with closing(RemotingClient(server.name_server)) as client:
        queues = client.writable(topic)
        outgoing = [
            Outgoing(queue=queues[at % len(queues)], body=body, properties={}) for at, body in enumerate(_bodies())
        ]
        assert all(isinstance(each, SendResult) for each in client.send(outgoing, group="peer-forwarded"))
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


def test_successful_retry_is_beside_its_failure(forwarded):
    query, _, _ = forwarded
    service = "PG_end_to_end_v533l"
    (trace_id,) = query.ids_with(service, traces=1, messaging__message__id="C00002027A9A4E0E2F2A6972872E01E4")
    send, *processed = [_summary(span) for span in query.shown(trace_id, spans=4)]
    assert send == (service, PRODUCER, "send", None, OK)
    assert sorted(processed) == [
        ("CG_end_to_end_v533l_a", CONSUMER, "process", 0, OK),
        ("CG_end_to_end_v533l_b", CONSUMER, "process", 0, ERROR),
        ("CG_end_to_end_v533l_b", CONSUMER, "process", 1, OK),
    ]


def test_forwarding_again_adds_no_span(forwarded):
    query, first, second = forwarded
    assert (first["spans"], first["rejected"], first["pending"]) == (second["spans"], 0, 0)
    shown = {
        (span["trace_id"], span["span_id"]) for service in query.services() for span in query.search(service, spans=1)
    }
    assert len(shown) == first["spans"]
