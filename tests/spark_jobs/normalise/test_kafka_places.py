"""Spans that know a message by its place only, or half of what happened to it, say just that."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_jobs.normalise.message_ids import claims_in, resolve_message_ids
from spark_jobs.schemas import EVENT
from tests.support.reading import events_of, otlp_side

ID = "C000020262BB60E53B936993952C0000"
OURS = {"messaging.system": "kafka", "messaging.destination.name": "orders", "mqtrace.trace_type": "Sub"}
DOTTED = {"messaging.system": "kafka", "messaging.operation": "process", "messaging.destination": "a.b"}
ROCKETMQ = {"messaging.system": "rocketmq", "messaging.destination.name": "orders", "mqtrace.trace_type": "Pub"}
OFFSET_ID = "C0A8000100002A9F0000000000000042"


def attributes(texts):
    return [{"key": key, "value": {"stringValue": value}} for key, value in texts.items()]


def span(name, texts, *, links=(), status=None):
    return {
        "traceId": "ab" * 16,
        "spanId": f"{abs(hash(name)) % 16**16:016x}",
        "name": name,
        "kind": 5,
        "startTimeUnixNano": "5000000000",
        "endTimeUnixNano": "5020000000",
        "status": {"code": status} if status else {},
        "attributes": attributes(texts),
        "links": [{"traceId": "cd" * 16, "spanId": "01" * 8, "attributes": attributes(link)} for link in links],
    }


SPANS = [
    span("before", {**OURS, "messaging.message.id": ID, "mqtrace.half": "before"}),
    span("after", {**OURS, "messaging.message.id": ID, "mqtrace.half": "after", "mqtrace.success": "true"}),
    span("whole", {**OURS, "messaging.message.id": ID}),
    span("dotted", {**DOTTED, "messaging.message_id": "a.b.3.77"}),
    span("not dotted", {**DOTTED, "messaging.message_id": "order.3.77"}),
    span("older partition", {**DOTTED, "messaging.kafka.partition": "3", "messaging.kafka.message.offset": "9"}),
    span(
        "one id for all",
        {**OURS, "messaging.message.id": ID, "messaging.destination.partition.id": "4"},
        links=[{"messaging.kafka.offset": "7"}, {"messaging.kafka.offset": "8"}],
    ),
    span("a link to its send", {**OURS, "messaging.message.id": ID}, links=[{}]),
    span("a RocketMQ send without an id", {**ROCKETMQ, "mqtrace.offset_msg_id": OFFSET_ID}),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The events of all the spans, by the name of the span."""
    folder = tmp_path_factory.mktemp("places")
    path = folder / "spans.jsonl"
    lines = [{"resourceSpans": [{"scopeSpans": [{"scope": {"name": "x"}, "spans": [one]}]}]} for one in SPANS]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    side = otlp_side(folder, str(path))
    rows = sorted(events_of(side), key=lambda row: (row["line"], row["record_index"]))
    by_name = {one["name"]: [row for row in rows if row["line"] == at] for at, one in enumerate(SPANS, start=1)}
    return side, by_name


def test_a_span_of_half_a_call_is_that_half_and_claims_no_end(found):
    """Forwarded from SubBefore alone: when and how the call ended, nobody knows."""
    _, by_name = found
    (before,), (after,), (whole,) = by_name["before"], by_name["after"], by_name["whole"]
    assert [row["half"] for row in (before, after, whole)] == ["before", "after", "whole"]
    assert [before[name] for name in ("end_ms", "cost_ms", "success", "context_code")] == [None] * 4
    assert (before["start_ms"], after["end_ms"], after["success"], whole["success"]) == (5000, 5020, True, True)


def test_a_message_without_an_id_goes_by_its_place(found):
    """Partition and offset under every name they had, or joined with dots where an id should be."""
    side, by_name = found
    ids = {name: [(row["msg_id"], row["offset_msg_id"]) for row in rows] for name, rows in by_name.items()}
    assert ids["dotted"] == [("a.b-3@77", "a.b-3@77")]
    assert ids["older partition"] == [("a.b-3@9", "a.b-3@9")]
    assert ids["not dotted"] == [("order.3.77", None)]
    assert ids["a RocketMQ send without an id"] == [(OFFSET_ID, OFFSET_ID)]
    assert side.by_place == 3


def test_what_is_equal_for_a_batch_stands_on_the_span_and_the_rest_on_its_links(found):
    """Two copies of one message, taken by one poll, are two deliveries; a mere link to the send makes no message."""
    _, by_name = found
    assert [(row["msg_id"], row["offset_msg_id"]) for row in by_name["one id for all"]] == [
        (ID, "orders-4@7"),
        (ID, "orders-4@8"),
    ]
    assert [row["msg_id"] for row in by_name["a link to its send"]] == [ID]


def test_a_place_is_called_by_the_message_that_was_sent_there(found):
    """Whatever wrote the record, a Kafka place or RocketMQ's offset id; a topic made anew has every offset twice."""
    side, _ = found
    sends = [
        ("publish", ID, "a.b-3@77"),
        ("publish", "A", "a.b-3@9"),
        ("publish", "B", "a.b-3@9"),
        ("recall", "C", "x"),
        ("publish", "X", OFFSET_ID),
    ]
    made = [{"side": "native", "kind": kind, "msg_id": msg_id, "offset_msg_id": place} for kind, msg_id, place in sends]
    columns = pa.Table.from_pylist([{**dict.fromkeys(EVENT.names), **row} for row in made], schema=EVENT)
    claims = claims_in({name: columns[name].combine_chunks() for name in columns.column_names})
    events = events_of(side)
    ids = resolve_message_ids(pa.array([row["msg_id"] for row in events]), claims).to_pylist()
    named = {row["offset_msg_id"]: msg_id for row, msg_id in zip(events, ids, strict=True)}
    assert (named["a.b-3@77"], named["a.b-3@9"], named["orders-4@7"]) == (ID, "a.b-3@9", ID)
    assert named[OFFSET_ID] == "X"
