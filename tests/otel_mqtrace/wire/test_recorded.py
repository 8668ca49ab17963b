"""Recorded bodies of real clients and the reference vectors."""

import re
from enum import IntEnum

import pytest

from bridge.codec.records_json import body_json, target_named
from otel_mqtrace.model import AccessChannel, TraceType
from otel_mqtrace.wire.native import decode_body, encode_context
from otel_mqtrace.wire.native.layout import BEAN_FIELDS, FIELDS
from tests.support.native_vectors import RECORDED_FILES, VECTORS, json_lines, recorded

# The application put U+0001 and U+0002 into a key, so the record it made is two pieces of nothing.
EXPLAINED_SCENARIO = "keys_separator"
EXPLAINED = [(None, "9 fields, needs 12"), ("trace_type", "unknown record type")]

REFERENCE_NAMES = {
    name: {"timestamp_ms": "timeStamp", "cost_ms": "costTime"}.get(name)
    or re.sub("_(.)", lambda letter: letter[1].upper(), name)
    for name in ("trace_type", *FIELDS)
    if name != "exactly_once_status"  # which no reader keeps
}
INVENTED = {
    **dict.fromkeys(("regionId", "groupName", "topic", "offsetMsgId", "tags", "keys"), ("",)),
    **dict.fromkeys(("costTime", "contextCode", "bodyLength", "retryTimes"), (0,)),
    **dict.fromkeys(("storeHost", "clientHost"), ("<reader>", "192.0.2.2")),
    "timeStamp": ("<now>",),
    "requestId": ("<fresh>",),
    "success": (True,),
}
"""What the reference reader makes up for a field that is not on the wire (192.0.2.2 is the machine it ran on)."""


@pytest.mark.parametrize("name", RECORDED_FILES)
@pytest.mark.parametrize("reader", ["writer", "newest"])
def test_record_is_read_as_the_reference_reads_it(name, reader):
    compared = 0
    for body in recorded(name):
        reference = body.reference if reader == "writer" else body.newest
        if "error" in reference:
            continue
        decoded = decode_body(body.body, msg_type_map=body.msg_type_map if reader == "writer" else "a")
        assert decoded.errors == ()
        for trace_ctx, theirs in zip(decoded.contexts, reference["contexts"], strict=True):
            assert _differences(_flat(trace_ctx), theirs, reader) == {}, f"{name} line {body.line}"
            compared += 1
    assert compared > 0


def _flat(trace_ctx):
    (bean,) = trace_ctx.beans
    values = {key: getattr(bean if name in BEAN_FIELDS else trace_ctx, name) for name, key in REFERENCE_NAMES.items()}
    return {
        key: int(value) if isinstance(value, IntEnum) else getattr(value, "value", value)
        for key, value in values.items()
    }


def _differences(ours, reference, reader):
    (bean,) = reference["traceBeans"]
    theirs = {key: value for key, value in {**reference, **bean}.items() if key != "traceBeans"}
    theirs.setdefault("fromTransactionCheck", False if ours["transactionState"] else None)  # left out when false
    if reader == "newest" and ours["traceType"] == TraceType.SUB_BEFORE.value and ours["clientHost"]:
        theirs["clientHost"] = ours["clientHost"]  # the newest reader skips 4.8.0's ninth field
    return {
        key: (ours.get(key), theirs.get(key))
        for key in ours.keys() | theirs.keys()
        if ours.get(key) != theirs.get(key) and not (ours.get(key) is None and theirs.get(key) in INVENTED.get(key, ()))
    }


@pytest.mark.parametrize("name", RECORDED_FILES)
def test_recorded_body_is_explained_or_written_again_in_its_own_dialect(name):
    charset = "gbk" if "gbk" in name else "utf-8"
    written, bad = 0, []
    for body in recorded(name):
        decoded = decode_body(body.body, msg_type_map=body.msg_type_map, charset=charset)
        if decoded.errors:
            bad.append((body.scenario, [(error.field, error.reason) for error in decoded.errors]))
        if decoded.errors or "5.1.4/CLOUD" in decoded.dialects:
            continue
        again = [
            encode_context(trace_ctx, dialect.removesuffix("/CLOUD"), charset=charset).body
            for trace_ctx, dialect in zip(decoded.contexts, decoded.dialects, strict=True)
        ]
        assert b"".join(again) == body.body
        written += len(again)
    assert written > 0
    assert bad in ([], [(EXPLAINED_SCENARIO, EXPLAINED)])


def test_glued_records_of_real_clients_are_recovered():
    thrown, halves = 0, []
    for body in recorded("rocketmq-4.9.8-cloud"):
        decoded = decode_body(body.body)
        halves += [trace_ctx.trace_type for trace_ctx in decoded.contexts]
        glued = [one for one in decoded.contexts if one.access_channel is AccessChannel.CLOUD]
        thrown += "error" in body.newest and bool(glued)
    assert thrown == 7
    assert halves.count(TraceType.SUB_AFTER) == halves.count(TraceType.SUB_BEFORE) > 25


GOLDEN = json_lines(VECTORS / "golden.jsonl")
READ = [*json_lines(VECTORS / "read_only.jsonl"), *json_lines(VECTORS / "decode_only.jsonl")]


def test_every_vector_of_the_reference_is_here():
    named = [*(f"G{number:02}" for number in range(1, 37)), *(f"D{number}" for number in range(1, 10))]
    assert {item["id"] for item in (*GOLDEN, *READ)} == {*named, *(f"X{number:02}" for number in range(1, 27))}


@pytest.mark.parametrize("item", READ, ids=lambda item: "-".join(filter(None, (item["id"], item.get("case")))))
def test_body_is_read_like_its_vector(item):
    read = list(body_json(0, decode_body(item["body"].encode(), msg_type_map=item.get("msg_type_map", "a"))))
    assert [_fields_of(record, ours) for record, ours in zip(read, item["ours"], strict=True)] == item["ours"]
    assert all(target_named(record["dialect"]) for record in read if "error" not in record)


def _fields_of(record, ours):
    if "error" in record:
        return {"error": {name: record["error"][name] for name in ("field", "reason")}}
    return {name: record[name] for name in ours if name in record}
