"""Forwarded trace messages of Java applications without OpenTelemetry: one trace per message in Jaeger."""

import base64
import json
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer

from otel_mqtrace.model import TraceType
from otel_mqtrace.rocketmq.client import Outgoing, RemotingClient, SendResult
from otel_mqtrace.testing.embedded import EmbeddedKafka
from otel_mqtrace.wire.native import decode_body
from tests.peers.command import answers
from tests.peers.jaeger.query import JaegerQuery
from tests.peers.jaeger.server import Jaeger

pytestmark = pytest.mark.peers

RECORDED = Path(__file__).resolve().parents[2] / "vectors" / "native" / "recorded"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
CLIENT, PRODUCER, CONSUMER = 3, 4, 5
OK, ERROR = 0, 2


def _bodies(name="*"):
    lines = [line for file in sorted(RECORDED.glob(f"{name}.jsonl")) for line in file.read_text("utf-8").splitlines()]
    return [base64.b64decode(json.loads(line)["body_base64"]) for line in lines]


def _stories(bodies):
    stories = defaultdict(list)
    for body in bodies:
        for context in decode_body(body).contexts:
            for bean in context.beans:
                for msg_id in bean.msg_id.split(","):  # those that were sent as one batch
                    stories[msg_id].append((context, bean))
    return stories


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
    return (span["resource"]["service.name"], span["kind"], span["name"].partition(" ")[0], detail, span["status"][0])


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
    assert {span["parent"] for span in spans[1:]} == {spans[0]["span_id"]}
    assert [span["attributes"]["mqtrace.from_transaction_check"] for span in spans[1:3]] == [False, True]


def test_successful_retry_is_beside_its_failure(forwarded):
    query, _, _ = forwarded
    (trace_id,) = query.ids_with(
        "PG_end_to_end_v533l", traces=1, messaging__message__id="C00002027A9A4E0E2F2A6972872E01E4"
    )
    summaries = [_summary(span) for span in query.shown(trace_id, spans=4)]
    assert summaries[0] == ("PG_end_to_end_v533l", PRODUCER, "send", None, OK)
    assert sorted(summaries[1:]) == [
        ("CG_end_to_end_v533l_a", CONSUMER, "process", 0, OK),
        ("CG_end_to_end_v533l_b", CONSUMER, "process", 0, ERROR),
        ("CG_end_to_end_v533l_b", CONSUMER, "process", 1, OK),
    ]


@pytest.mark.parametrize("version", ["4.4.0", "4.8.0", "4.9.1", "4.9.8", "5.0.0", "5.1.4", "5.3.3"])
def test_every_recorded_message_is_one_trace_with_its_records(forwarded, version):
    query, _, _ = forwarded
    for msg_id, records in _stories(_bodies(f"rocketmq-{version}")).items():
        wanted = _counted(records)
        service = records[0][0].group_name
        (trace_id,) = query.ids_with(service, traces=1, messaging__message__id=msg_id)
        held = [span["attributes"]["mqtrace.trace_type"] for span in query.shown(trace_id, spans=1)]
        assert {kind: held.count(kind) for kind in held} == wanted, msg_id


def _counted(records):
    events = set()
    for context, bean in records:
        if context.trace_type in {TraceType.SUB_BEFORE, TraceType.SUB_AFTER}:
            events.add(("Sub", context.request_id))
        else:
            events.add((context.trace_type.value, context.timestamp_ms, bean))
    kinds = [kind for kind, *_ in events]
    return {kind: kinds.count(kind) for kind in kinds}


def test_forwarding_again_adds_no_span(forwarded):
    query, first, second = forwarded
    assert (first["spans"], first["rejected"], first["pending"]) == (second["spans"], 0, 0)
    shown = {
        (span["trace_id"], span["span_id"]) for service in query.services() for span in query.search(service, spans=1)
    }
    assert len(shown) == first["spans"]
