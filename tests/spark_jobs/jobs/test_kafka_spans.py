"""Our native trace against spans of OpenTelemetry's Java agent for Kafka, without message ids; both on topics."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka.cimpl import Producer

from otel_mqtrace.model import ContextCode, MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.testing.embedded import EmbeddedKafka
from spark_jobs.jobs import graph
from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions
from tests.support.reading import read_verdicts
from tests.support.trace_stories import body_of

START_MS = 1_795_260_000_000
MESSAGES = 6
UNTITLED = 5
"""The offset of a message whose sender wrote no id: both sides know it by its place."""
NAMES = {
    "old": {
        "operation": lambda kind: {"messaging.operation": kind},
        "offset": "messaging.kafka.message.offset",
        "group": "messaging.kafka.consumer.group",
        "client": "messaging.client_id",
    },
    "new": {
        "operation": lambda kind: {
            "messaging.operation.name": "send" if kind == "publish" else kind,
            "messaging.operation.type": "send" if kind == "publish" else kind,
        },
        "offset": "messaging.kafka.offset",
        "group": "messaging.consumer.group.name",
        "client": "messaging.client.id",
    },
}


def topic_of(names):
    return f"orders-{names}"


def id_of(names, offset):
    numbers = sorted(NAMES).index(names) * 100 + offset
    return f"{topic_of(names)}-0@{offset}" if offset == UNTITLED else f"C000020262BB60E53B936993952C{numbers:04X}"


def native(names, offset):
    """One send (unless an untraced producer sent it) and one delivery, as our hooks record them."""
    at_ms, msg_id = START_MS + offset * 1000, id_of(names, offset)
    place = f"{topic_of(names)}-0@{offset}"
    bean = TraceBean(
        msg_id=msg_id, topic=topic_of(names), offset_msg_id=place, msg_type=MessageType.NORMAL, body_length=3
    )
    sent = TraceContext(
        trace_type=TraceType.PUB, timestamp_ms=at_ms, cost_ms=4, success=True, group_name="pg", beans=(bean,)
    )
    call = {"group_name": "cg", "request_id": f"R{names}{offset}", "beans": (TraceBean(msg_id=msg_id, retry_times=0),)}
    before = TraceContext(trace_type=TraceType.SUB_BEFORE, timestamp_ms=at_ms + 50, **call)
    ended = {"success": True, "cost_ms": 20, "context_code": ContextCode.SUCCESS, "timestamp_ms": at_ms + 70}
    after = TraceContext(trace_type=TraceType.SUB_AFTER, **ended, **call)
    return [before, after] if offset == UNTITLED else [sent, before, after]


def span(names, kind, offset, at_ms, cost_ms, *, number, links=(), **more):
    texts = {
        "messaging.system": "kafka",
        "messaging.destination.name": topic_of(names),
        **NAMES[names]["operation"](kind),
        NAMES[names]["client"]: "c-1",
        **more,
    }
    if offset is not None:
        texts |= {"messaging.destination.partition.id": "0", NAMES[names]["offset"]: offset}
    return {
        "traceId": f"{sorted(NAMES).index(names) + 1:032x}",
        "spanId": f"{number:016x}",
        "name": f"{topic_of(names)} {kind}",
        "kind": {"publish": 4, "process": 5, "receive": 5 if names == "old" else 3}[kind],
        "startTimeUnixNano": str(at_ms * 1_000_000),
        "endTimeUnixNano": str((at_ms + cost_ms) * 1_000_000),
        "attributes": [attribute(*pair) for pair in texts.items()],
        "links": list(links),
    }


def attribute(key, value):
    return {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}


def spans(names):
    """What the agent records of the same: sends, one poll with all messages on its links, and a process span each."""
    trace_id, group = f"{sorted(NAMES).index(names) + 1:032x}", {NAMES[names]["group"]: "cg"}
    made = []
    for offset in range(MESSAGES):
        at_ms = START_MS + offset * 1000
        link = {"traceId": trace_id, "spanId": f"{offset + 1:016x}"}
        if offset != UNTITLED:
            made.append(span(names, "publish", offset, at_ms, 4, number=offset + 1))
        made.append(span(names, "process", offset, at_ms + 50, 20, number=offset + 101, links=[link], **group))
    polled = [
        {"traceId": trace_id, "spanId": f"{at + 1:016x}", "attributes": [attribute(NAMES[names]["offset"], at)]}
        for at in range(MESSAGES)
    ]
    made.append(span(names, "receive", None, START_MS, 5, number=201, links=polled if names == "new" else (), **group))
    failed = {"messaging.destination.partition.id": "-1", NAMES[names]["offset"]: -1, "error.type": "TimeoutException"}
    made.append(span(names, "publish", None, START_MS + 1500, 5, number=202, **failed))
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [attribute("service.name", "svc")]},
                "scopeSpans": [{"scope": {"name": "io.opentelemetry.kafka-clients-0.11"}, "spans": made}],
            }
        ]
    }


@pytest.fixture(scope="module")
def both_jobs(tmp_path_factory):
    out = tmp_path_factory.mktemp("kafka-spans")
    with EmbeddedKafka() as kafka:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        kafka.create_topic("traces", 2)
        kafka.create_topic("spans", 2)
        for at, names in enumerate(NAMES):
            for offset in range(MESSAGES):
                body = body_of(*native(names, offset))
                producer.produce("traces", body, partition=at, timestamp=START_MS + offset * 1000 + 100)
            producer.produce("spans", json.dumps(spans(names)), partition=at)
        assert producer.flush(30) == 0
        source = f"kafka://{kafka.bootstrap_servers}"
        options = ReconcileOptions(
            native=(f"{source}/traces",),
            otlp=(f"{source}/spans",),
            out=out,
            profile="java-agent",
            native_writer="mqtrace",
            grace_ms=0,
            engine="local",
        )
        result = run(options)
        chosen = run(replace(options, out=out / "auto", profile="auto", native_writer="auto"))
        sources = {"native": options.native, "otlp": options.otlp}
        drawn = graph.run(ReconcileOptions(**sources, out=out, grace_ms=0, native_writer="mqtrace"))
    return result, read_verdicts(out), drawn, chosen


@pytest.fixture(scope="module")
def reconciled(both_jobs):
    return both_jobs[:2]


def test_sends_and_deliveries_match_by_their_position_in_the_topic(reconciled):
    _, rows = reconciled
    met = Counter((row["topic"], row["kind"]) for row in rows if row["native"] and row["otlp"])
    sends = {(topic_of(names), "publish"): MESSAGES - 1 for names in NAMES}
    assert met == sends | {(topic_of(names), "consume"): MESSAGES for names in NAMES}
    ids = {row["msg_id"] for row in rows if row["native"]}
    assert ids == {id_of(names, offset) for names in NAMES for offset in range(MESSAGES)}
    assert {row["key_level"] for row in rows if row["kind"] == "publish" and row["native"]} == {1}


def test_matched_events_have_no_difference_and_only_a_refused_send_is_lost(reconciled):
    result, rows = reconciled
    assert result.conservation.holds
    assert "MISMATCHED" not in result.status
    assert not result.duplicates
    alone = [(row["kind"], row["status"], row["reason"]) for row in rows if not (row["native"] and row["otlp"])]
    assert alone == [("publish", "OTLP_ONLY", "UNEXPLAINED")] * len(NAMES)


def test_result_contains_the_offsets_that_were_read(reconciled):
    result, _ = reconciled
    offsets = [
        (one.source.rpartition("/")[2], one.partition, one.first, one.end) for one in result.inputs.native.offsets
    ]
    assert offsets == [("traces", 0, 0, MESSAGES), ("traces", 1, 0, MESSAGES)]
    assert [(one.partition, one.first, one.end) for one in result.inputs.otlp.offsets] == [(0, 0, 1), (1, 0, 1)]
    assert result.inputs.native.layouts == ("kafka",)


def test_writers_are_detected_from_the_beginning_of_the_topics(both_jobs):
    result, chosen = both_jobs[0], both_jobs[3]
    assert (chosen.writers.profile, chosen.writers.native_writer) == ("java-agent", "mqtrace")
    assert "io.opentelemetry.kafka-clients-0.11 in kafka://" in chosen.writers.evidence[0]
    assert (chosen.status, chosen.reason, chosen.gates) == (result.status, result.reason, result.gates)


def test_graph_counts_each_send_and_delivery_once(both_jobs):
    """A span that goes by its place and the native record of its message are one; a send that failed is a send."""
    drawn = both_jobs[2]
    counts = {kind: sum(edge.count for edge in drawn.edges_of(kind)) for kind in ("publish", "consume")}
    assert counts == {"publish": len(NAMES) * MESSAGES, "consume": len(NAMES) * MESSAGES}
    met = [sum(getattr(edge, side) for edge in drawn.edges_of("consume")) for side in ("native", "otlp")]
    assert met == [len(NAMES) * MESSAGES] * 2
