"""`mqtrace encode`: the inverse of decode, byte for byte, and what it refuses."""

from __future__ import annotations

import base64

import pytest

from otel_mqtrace.wire.native import decode_body
from tests.bridge.terminal import PUB, SUB_BEFORE, body_line, objects
from tests.support.native_vectors import VECTORS, json_lines, recorded


@pytest.mark.parametrize("name", ["rocketmq-5.3.3", "rocketmq-5.3.3-cloud", "rocketmq-4.8.0", "rocketmq-4.9.1"])
def test_encode_is_the_inverse_of_decode(mqtrace, name):
    bodies = [body for body in recorded(name) if not decode_body(body.body).errors]
    _, records, _ = mqtrace("decode", stdin=b"".join(body_line(body.body) for body in bodies))
    code, out, err = mqtrace("encode", "--framing", "jsonl-base64", stdin=records)
    assert (code, err) == (0, "")
    assert [base64.b64decode(item["body_base64"]) for item in objects(out)] == [body.body for body in bodies]


def test_a_gbk_body_is_written_again_in_gbk(mqtrace):
    bodies = [body.body for body in recorded("rocketmq-4.9.8-gbk")]
    _, records, _ = mqtrace("decode", "--charset", "gbk", stdin=b"".join(map(body_line, bodies)))
    code, out, _ = mqtrace("encode", "--charset", "gbk", "--framing", "jsonl-base64", stdin=records)
    assert code == 0
    assert [base64.b64decode(item["body_base64"]) for item in objects(out)] == bodies


def test_what_was_decoded_under_map_b_is_written_in_map_b(mqtrace):
    bodies = [body.body for body in recorded("rocketmq-5.0.0") if not decode_body(body.body, msg_type_map="b").errors]
    _, records, _ = mqtrace("decode", "--msg-type-map", "b", stdin=b"".join(map(body_line, bodies)))
    _, out, _ = mqtrace("encode", "--framing", "jsonl-base64", stdin=records)
    assert {item["dialect"] for item in objects(records)} == {"5.0.0"}
    assert [base64.b64decode(item["body_base64"]) for item in objects(out)] == bodies


def test_raw_output_is_the_bodies_themselves(mqtrace):
    _, records, _ = mqtrace("decode", stdin=PUB + SUB_BEFORE)
    assert mqtrace("encode", stdin=records) == (0, PUB + SUB_BEFORE, "")


def test_a_named_dialect_wins_over_the_records_own(mqtrace):
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
