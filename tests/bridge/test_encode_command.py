"""`mqtrace encode`: the inverse of decode, byte for byte, and what it refuses."""

from __future__ import annotations

import base64

import pytest

from otel_mqtrace.wire.native import decode_body
from tests.bridge.terminal import PUB, SUB_BEFORE, body_line, objects
from tests.support.native_vectors import VECTORS, json_lines, recorded


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((f"rocketmq-{release}", []) for release in ("5.3.3", "5.3.3-cloud", "4.8.0", "4.9.1")),
        ("rocketmq-4.9.8-gbk", ["--charset", "gbk"]),
        ("rocketmq-5.0.0", ["--msg-type-map", "b"]),
    ],
)
def test_encode_is_the_inverse_of_decode(mqtrace, name, options):
    type_map = "b" if "b" in options else "a"
    bodies = [one.body for one in recorded(name) if not decode_body(one.body, msg_type_map=type_map).errors]
    _, records, _ = mqtrace("decode", *options, stdin=b"".join(map(body_line, bodies)))
    assert type_map == "a" or {item["dialect"] for item in objects(records)} == {"5.0.0"}
    of_encode = [] if type_map == "b" else options  # the map is in the dialect of each record
    code, out, err = mqtrace("encode", *of_encode, "--framing", "jsonl-base64", stdin=records)
    assert (code, err) == (0, "")
    assert [base64.b64decode(item["body_base64"]) for item in objects(out)] == bodies


def test_raw_output_is_the_bodies_themselves(mqtrace):
    _, records, _ = mqtrace("decode", stdin=PUB + SUB_BEFORE)
    assert mqtrace("encode", stdin=records) == (0, PUB + SUB_BEFORE, "")


def test_named_dialect_overrides_the_dialect_of_records(mqtrace):
    """`--dialect 4.8.0` writes 15 and 9 fields, `5.5.0/CLOUD` the channel's SubAfter."""
    _, records, _ = mqtrace("decode", stdin=PUB + SUB_BEFORE)
    _, old, _ = mqtrace("encode", "--dialect", "4.8.0", stdin=records)
    assert [piece.count(b"\x01") + 1 for piece in old.split(b"\x02")[:2]] == [15, 9]
    after = b'{"trace_type": "SubAfter", "msg_id": "ID"}'
    assert mqtrace("encode", "--dialect", "5.5.0/CLOUD", stdin=after)[1].endswith(b"\x010\x01\x02")
    assert mqtrace("encode", "--dialect", "5.5.0", stdin=after)[1].endswith(b"\x010\x010\x01null\x02")


def test_glued_record_is_written_separately(mqtrace):
    glued = {item["id"]: item["body"] for item in json_lines(VECTORS / "read_only.jsonl")}["G27"].encode()
    _, records, _ = mqtrace("decode", stdin=glued)
    code, out, _ = mqtrace("encode", stdin=records)
    assert code == 0
    assert out == glued.replace(b"\x01SubAfter", b"\x01\x02SubAfter") + b"\x02"


def test_refused_records_are_counted_and_the_rest_is_written(mqtrace):
    _, good, _ = mqtrace("decode", stdin=PUB)
    refused = [
        *(b'{"trace_type": "Pub", "msg_id": 7}', b"[]", b"{", b'{"msg_id": "ID"}', b'{"trace_type": "Sub"}'),
        *(b'{"trace_type": "Pub"}', b'{"error": {}}', b'{"trace_type": "Pub", "success": 1}'),
    ]
    code, out, err = mqtrace("encode", stdin=b"\n".join([*refused, good]))
    assert (code, out) == (1, PUB)
    assert err == "mqtrace: 8 of 9 records were refused; first: line 1: msg_id: 7 is not of type str\n"
