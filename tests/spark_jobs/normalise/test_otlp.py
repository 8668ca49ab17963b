"""Spans of any layout and any convention become canonical events on Spark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bridge.otlp.containers import Message, read_messages
from bridge.otlp.detect import detect
from bridge.otlp.plain_span import text_attributes
from bridge.otlp.spans import parse_message, spans_of
from otel_mqtrace._errors import UsageError
from spark_jobs.schemas import EVENT
from spark_jobs.sources.otlp import find_spans, split_batches
from tests.support.reading import events_of, malformed_of, otlp_side

VECTORS = Path(__file__).parents[2] / "vectors"
OTLP = VECTORS / "otlp"
ID = "C000020262BB60E53B936993952C0000"
OTHER = "C000020262BB60E53B936993952C0001"


def attribute(key, value):
    kinds = {str: "stringValue", bool: "boolValue", int: "intValue"}
    if isinstance(value, list):
        return {"key": key, "value": {"arrayValue": {"values": [{"stringValue": item} for item in value]}}}
    return {"key": key, "value": {kinds[type(value)]: str(value) if type(value) is int else value}}


def span(attributes, *, links=(), kind=4, scope="lib", start="5000000999", end="7000000000", status=0, number=1):
    made = {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        "name": "x",
        "kind": kind,
        "startTimeUnixNano": start,
        "endTimeUnixNano": end,
        "status": {"code": status} if status else {},
        "attributes": [attribute(key, value) for key, value in attributes.items()],
        "links": [
            {
                "traceId": "cd" * 16,
                "spanId": f"{at + 1:016x}",
                "attributes": [attribute(key, value) for key, value in link.items()],
            }
            for at, link in enumerate(links)
        ],
    }
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": [attribute("service.name", "svc")]},
                "scopeSpans": [{"scope": {"name": scope}, "spans": [made]}],
            }
        ]
    }


def events(tmp_path, *documents, **options):
    path = tmp_path / "made.jsonl"
    path.write_text("".join(json.dumps(document) + "\n" for document in documents), encoding="utf-8")
    side = otlp_side(tmp_path, str(path), **options)
    assert side.records_read + side.exploded == side.events + side.malformed
    return sorted(events_of(side), key=lambda row: (row["line"], row["record_index"])), malformed_of(side)


def _links(links):
    return [{**link, "attributes": dict(link["attributes"])} for link in links]


def test_json_lines_are_read_as_the_container_reader_reads_them():
    """Both readers agree on every column of every span: real Collectors, odd values, two conventions."""
    for name in ("otlp/layouts/traces.jsonl", "otlp/odd/traces.jsonl", "dual/app-4.9.8-dup/otlp.jsonl"):
        path = VECTORS / name
        pieces = [piece for task in find_spans([str(path)], parallelism=1).tasks for piece in task]
        read = [row for batch in split_batches(pieces) for row in batch.to_pylist() if row["expected"] is None]
        seen = [{**row, "attributes": dict(row["attributes"]), "links": _links(row["links"])} for row in read]
        plain = [
            one
            for item in read_messages(path, detect(path).layout, parse=parse_message)
            if isinstance(item, Message)
            for one in spans_of(item.content)
        ]
        assert len(seen) == len(plain)
        for one, other in zip(seen, plain, strict=True):
            same = [key for key in other if key in one and key not in {"attributes", "links", "bad"}]
            assert {key: one[key] for key in same} == {key: other[key] for key in same}
            assert _numbers(one["attributes"]) == _numbers(text_attributes(other["attributes"]))
            assert [_numbers(link["attributes"]) for link in one["links"]] == [
                _numbers(text_attributes(link["attributes"])) for link in other["links"]
            ]


def _numbers(attributes):
    """Numbers compare as numbers (Spark's parser drops the sign of -0); of maps each reader keeps its own JSON."""
    found = {}
    for key, text in attributes.items():
        if text is not None and text.startswith("{"):
            continue
        try:
            found[key] = repr(float(text) + 0.0)
        except (TypeError, ValueError):
            found[key] = (
                text
                if text is None or not text.startswith("[")
                else [_numbers({"x": item}) for item in json.loads(text)]
            )
    return found


def test_every_layout_gives_the_same_events(tmp_path):
    """Six layouts of the same 209 spans in one job: each event comes out six times, and the counts balance."""
    names = (
        "layouts/traces.jsonl",
        "layouts/traces.json.zst.framed",
        "layouts/traces.pb.framed",
        "layouts/traces.pb.zst.framed",
        "native-zstd/native.jsonl.zst",
        "native-zstd/native.pb.framed.zst",
    )
    side = otlp_side(tmp_path, *[str(OTLP / name) for name in names])
    assert side.records_read == 6 * 209
    assert side.records_read + side.exploded == side.events
    assert len(side.layouts) == 6
    columns = [name for name in EVENT.names if name not in {"path", "line", "raw_hash"}]
    repeated = Counter(repr([row[name] for name in columns]) for row in events_of(side))
    assert set(repeated.values()) == {6}


def test_damage_is_counted_and_located(tmp_path):
    """Cut-off tails are not records; a torn message in the middle is one bad record with its line."""
    names = [
        "killed/kill.jsonl",
        "killed/kill.pb.framed",
        "killed/kill.pb.zst.framed",
        "killed/kill.json.zst.framed",
        "append-after-kill/torn.jsonl",
        "append-after-kill/torn.pb.framed",
    ]
    side = otlp_side(tmp_path, *[str(OTLP / name) for name in names])
    assert side.truncated_tails == 4
    assert side.records_read == 67 + 67 + 63 + 57 + 78 + 81 + 2
    assert sorted((Path(row["path"]).name, row["line"]) for row in malformed_of(side)) == [
        ("torn.jsonl", 13),
        ("torn.pb.framed", 14),
    ]


@pytest.mark.parametrize(
    ("run", "spans", "expected"),
    [
        (
            "app-4.9.8-dup",
            288,
            {
                ("publish", None): 120,
                ("consume", None): 222,
                (None, "BATCH_PARENT"): 2,
                ("publish", "TRACE_TRAFFIC"): 15,
            },
        ),
        (
            "scenarios-5.3.3-old",
            330,
            {("publish", None): 212, ("consume", None): 55, (None, "POLL"): 6, ("publish", "TRACE_TRAFFIC"): 65},
        ),
    ],
)
def test_the_recorded_runs_hold_the_events_their_readme_counts(tmp_path, run, spans, expected):
    """Sends, deliveries (batches exploded), polls and the trace topics' own sends, custom topic included."""
    native_topics = {
        json.loads(line)["topic"]
        for line in (VECTORS / "dual" / run / "native.jsonl").read_text(encoding="utf-8").splitlines()
    }
    side = otlp_side(tmp_path, str(VECTORS / "dual" / run / "otlp.jsonl"), trace_topics=tuple(native_topics))
    found = Counter((row["kind"], row["scope"]) for row in events_of(side))
    assert side.records_read == spans
    assert found == expected


def test_a_span_of_ours_says_everything_in_its_attributes(tmp_path):
    """Every field of the record is found under its own attribute; times are cut to milliseconds."""
    attributes = {
        "mqtrace.trace_type": "Pub",
        "messaging.system": "kafka",
        "messaging.destination.name": "orders",
        "messaging.message.id": ID.lower(),
        "mqtrace.offset_msg_id": "orders-0@5",
        "mqtrace.group_name": "pg",
        "mqtrace.tags": "T",
        "mqtrace.keys": ["k2", "k1", "k2"],
        "mqtrace.store_host": "h:1",
        "mqtrace.cost_time": 9,
        "messaging.message.body.size": 7,
        "mqtrace.msg_type": "Delay_Msg",
        "mqtrace.success": False,
        "mqtrace.region_id": "r",
    }
    (row,), _ = events(tmp_path, span(attributes))
    expected = {
        "kind": "publish",
        "half": "whole",
        "scope": None,
        "msg_id": ID,
        "offset_msg_id": "orders-0@5",
        "topic": "orders",
        "group_name": "pg",
        "tags": "T",
        "keys": ["k1", "k2"],
        "store_host": "h:1",
        "body_length": 7,
        "msg_type": "Delay_Msg",
        "start_ms": 5000,
        "end_ms": 7000,
        "cost_ms": 9,
        "success": False,
        "context_code": None,
        "region_id": "r",
        "service": "svc",
        "batch_size": 1,
        "writer": "mqtrace",
        "record_index": 0,
    }
    assert {key: row[key] for key in expected} == expected


def test_a_span_for_several_messages_is_one_event_per_link(tmp_path):
    """What stands on a link wins over what stands on the span, which holds for all."""
    shared = {
        "mqtrace.trace_type": "Sub",
        "messaging.destination.name": "t",
        "messaging.consumer.group.name": "g",
        "mqtrace.context_code": "FAILED",
        "mqtrace.success": False,
    }
    links = [
        {"messaging.message.id": ID, "mqtrace.retry_times": 1},
        {"messaging.message.id": OTHER, "mqtrace.retry_times": 0, "messaging.destination.name": "retry"},
    ]
    found, _ = events(tmp_path, span(shared, links=links, kind=5))
    assert [
        (row["msg_id"], row["retry_times"], row["topic"], row["group_name"], row["context_code"], row["batch_size"])
        for row in found
    ] == [(ID, 1, "t", "g", "FAILED", 2), (OTHER, 0, "retry", "g", "FAILED", 2)]


@pytest.mark.parametrize(
    ("error", "status", "success", "code"),
    [
        (None, 0, True, "SUCCESS"),
        ("FAILED", 2, False, "FAILED"),
        ("EXCEPTION", 2, False, "EXCEPTION"),
        ("TIME_OUT", 2, True, "TIME_OUT"),
    ],
)
def test_a_delivery_in_new_names_tells_how_it_ended(tmp_path, error, status, success, code):
    """The agent's error.type is RocketMQ's return code; a delivery that took too long is a success to RocketMQ."""
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.message.id": ID,
        **({"error.type": error} if error else {}),
    }
    (row,), _ = events(tmp_path, span(attributes, kind=5, status=status, scope="io.opentelemetry.rocketmq-client-4.8"))
    assert (row["success"], row["context_code"], row["writer"]) == (success, code, "java-agent-new")


def test_other_peoples_spans_leave_with_the_scope_that_says_why(tmp_path):
    """HTTP, polls, settlements, parents of batches and the trace topics' sends are out of scope, each by name."""
    found, _ = events(
        tmp_path,
        span({"http.request.method": "GET"}, kind=2),
        span({"messaging.system": "kafka", "messaging.operation.type": "receive"}, kind=3),
        span({"messaging.system": "kafka", "messaging.operation.type": "settle"}, kind=3),
        span({"messaging.system": "rocketmq", "messaging.operation.type": "send"}, links=[{}], kind=3),
        span(
            {
                "messaging.system": "rocketmq",
                "messaging.operation.type": "send",
                "messaging.destination.name": "rmq_sys_TRACE_DATA_cn",
            }
        ),
        span(
            {"messaging.system": "rocketmq", "messaging.operation": "publish", "messaging.destination.name": "custom"}
        ),
        trace_topics=("custom",),
    )
    assert [row["scope"] for row in found] == [
        "NOT_MESSAGING",
        "POLL",
        "SETTLE",
        "BATCH_PARENT",
        "TRACE_TRAFFIC",
        "TRACE_TRAFFIC",
    ]


def test_captured_headers_close_the_gaps_of_a_one_way_send(tmp_path):
    """A one-way send has no result and so no message id; the captured UNIQ_KEY, KEYS and TAGS say what it was."""
    attributes = {
        "messaging.system": "rocketmq",
        "messaging.operation": "publish",
        "messaging.header.UNIQ_KEY": [ID],
        "messaging.header.KEYS": ["b a"],
        "messaging.header.TAGS": ["T"],
    }
    (row,), _ = events(tmp_path, span(attributes, scope="io.opentelemetry.rocketmq-client-4.8"))
    assert (row["msg_id"], row["keys"], row["tags"], row["success"], row["writer"]) == (
        ID,
        ["a", "b"],
        "T",
        None,
        "java-agent-old",
    )


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path):
    """Collectors write U+2028 raw; lines end at a newline only."""
    path = tmp_path / "made.jsonl"
    made = span({"messaging.system": "kafka", "messaging.operation.type": "send", "mqtrace.tags": "a\u2028b\x85c"})
    path.write_text(json.dumps(made, ensure_ascii=False) + "\n", encoding="utf-8")
    side = otlp_side(tmp_path, str(path))
    assert [row["tags"] for row in events_of(side)] == ["a\u2028b\x85c"]


def test_lines_of_other_signals_are_nothing_and_foreign_lines_are_bad(tmp_path):
    """Metrics and logs may share the file; JSON that is no telemetry and times that are no numbers are counted."""
    send = {"messaging.system": "kafka", "messaging.operation.type": "send"}
    found, bad = events(
        tmp_path,
        span(send),
        {"resourceMetrics": []},
        {"resourceLogs": []},
        {},
        {"hello": 1},
        span(send, start="soon"),
    )
    assert len(found) == 1
    assert sorted((row["line"], row["field"], row["reason"]) for row in bad) == [
        (5, None, "not OTLP traces"),
        (6, "start_ns", "not a number"),
    ]


def test_empty_files_are_an_empty_side(tmp_path):
    """Nothing was written is no error of the reader; the run decides what it means."""
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    side = otlp_side(tmp_path, str(tmp_path / "empty.jsonl"))
    assert (side.records_read, side.events, side.last_event_ms) == (0, 0, None)
    with pytest.raises(UsageError, match="choose one of"):
        otlp_side(tmp_path, str(tmp_path / "empty.jsonl"), otlp_format="xml")
