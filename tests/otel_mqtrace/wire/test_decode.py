"""The decoder reads every known writer, reports what it cannot read, and never lets a bad record take its neighbours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import AccessChannel, ContextCode, MessageType, TraceType, TransactionState
from otel_mqtrace.wire.native import DecodedBody, absent, decode_body, encode_context
from otel_mqtrace.wire.native.decode import MAX_OFFENDING_TEXT
from tests.support.native_vectors import VECTORS, json_lines
from tests.support.strategies import bodies, pieces, sayable

ODD = {item["id"]: item["body"].encode() for item in json_lines(VECTORS / "read_only.jsonl")}
PUB = "Pub\x011700000000000\x01R\x01G\x01T\x01ID\x01tag\x01k\x01SH\x0126\x015"
SUB_BEFORE = "SubBefore\x011700000000000\x01R\x01G\x01REQ\x01ID\x010"
SUB_AFTER = "SubAfter\x01REQ\x01ID\x015\x01true\x01k"
END = "EndTransaction\x011\x01R\x01G\x01T\x01ID\x01t\x01k\x01SH\x012\x01TX\x01{state}\x01false\x02"
GOOD = SUB_BEFORE + "\x01k\x02"


def _one(text, **options):
    decoded = decode_body(text.encode(), **options)
    assert decoded.errors == ()
    (trace_ctx,) = decoded.contexts
    return trace_ctx


def _bad(text):
    decoded = decode_body(text.encode())
    assert decoded.contexts == ()
    (error,) = decoded.errors
    return error.field, error.reason


# -- anything may arrive ----------------------------------------------------------------------------------------------


@given(bodies, st.sampled_from("ab"), st.sampled_from(["utf-8", "gbk", "latin-1"]))
def test_no_bytes_make_it_raise(body, msg_type_map, charset):
    decoded = decode_body(body, msg_type_map=msg_type_map, charset=charset)
    indexes = sorted([*decoded.record_indexes, *(error.record_index for error in decoded.errors)])
    assert indexes == list(range(len(decoded.contexts) + len(decoded.errors)))
    assert len(decoded.contexts) == len(decoded.record_indexes) == len(decoded.dialects)
    assert len(indexes) >= sum(1 for piece in body.decode(charset, errors="replace").split("\x02") if piece)
    assert all(len(error.text) <= MAX_OFFENDING_TEXT for error in decoded.errors)


@given(st.lists(pieces, max_size=5), st.data())
def test_a_body_may_be_fed_in_parts(parts, data):
    cut = data.draw(st.integers(0, len(parts)))
    first, second = ("".join(piece + "\x02" for piece in half).encode() for half in (parts[:cut], parts[cut:]))
    one, other, whole = (decode_body(body) for body in (first, second, first + second))
    assert whole.contexts == one.contexts + other.contexts
    assert [error.reason for error in whole.errors] == [error.reason for error in one.errors + other.errors]


@given(sayable(), st.binary(max_size=40))
def test_trailing_data_does_not_touch_what_came_before(drawn, tail):
    trace_ctx, dialect, channel = drawn
    body = encode_context(trace_ctx, dialect, access_channel=channel).body
    alone = decode_body(body)
    followed = decode_body(body + tail)
    assert followed.contexts[: len(alone.contexts)] == alone.contexts
    assert followed.record_indexes[: len(alone.contexts)] == alone.record_indexes


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_a_body_cut_off_anywhere_loses_only_its_last_record(cut):
    decoded = decode_body((GOOD + GOOD[:cut]).encode())
    assert decoded.contexts[0] == _one(GOOD)
    assert len(decoded.contexts) + len(decoded.errors) == 2


def test_a_long_glued_body_takes_linear_time():
    count = 100_000
    decoded = decode_body(b"SubAfter\x01R\x01I\x011\x01true\x01k\x010\x01" * count)
    assert len(decoded.contexts) == count


# -- the reference's own decode vectors, X01-X26 ----------------------------------------------------------------------


def test_a_pub_is_read_at_every_length_there_is():
    """X01-X05: 11 fields are too few; 12 leave success and offset id out, 13 the offset id, 15 add the client host."""
    assert _bad(PUB + "\x02") == (None, "11 fields, needs 12")
    short, middle = _one(PUB + "\x010\x02"), _one(PUB + "\x010\x01false\x02")
    full, long = _one(PUB + "\x010\x01OFF\x01false\x02"), _one(PUB + "\x010\x01OFF\x01false\x01CH\x01more\x02")
    assert (short.success, short.beans[0].offset_msg_id) == (None, None)
    assert (middle.success, middle.beans[0].offset_msg_id) == (False, None)
    assert (full.success, full.beans[0].offset_msg_id, full.beans[0].client_host) == (False, "OFF", None)
    assert (long.success, long.beans[0].offset_msg_id, long.beans[0].client_host) == (False, "OFF", "CH")


def test_booleans_are_javas():
    """X06: true in any case, everything else is false."""
    assert _one(PUB + "\x010\x01OFF\x01TRUE\x02").success is True
    assert _one(PUB + "\x010\x01OFF\x01yes\x02").success is False


def test_empty_fields_at_the_end_are_missing_numbers_but_empty_texts():
    """X07, X12: an empty success was never written, an empty keys was."""
    assert _one(PUB + "\x010\x01\x01\x02").success is None
    assert _one(SUB_BEFORE + "\x01\x02").beans[0].keys == ""


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        (PUB + "\x019\x01OFF\x01true\x02", "msg_type", "unknown message type ordinal"),
        (PUB.replace("1700000000000", "x") + "\x010\x02", "timestamp_ms", "not a number"),
        (SUB_AFTER + "\x015\x02", "context_code", "unknown context code ordinal"),
        (END.format(state="UNKNOWN"), "transaction_state", "unknown transaction state"),
        ("SubAfter\x01REQ\x01ID\x015\x01true\x02", None, "5 fields, needs 6"),
        ("pub\x01x\x02", "trace_type", "unknown record type"),
        ("hello world", "trace_type", "unknown record type"),
        ("\x01\x02", "trace_type", "unknown record type"),
        ("Recall\x011\x01R\x01G\x01T\x01ID\x02", None, "6 fields, needs 7"),
    ],
)
def test_a_bad_record_says_which_field_and_why(text, field, reason):
    """X08, X09, X20, X22, X23: where the reference throws or looks away, we say what is wrong."""
    assert _bad(text) == (field, reason)


def test_numbers_are_javas():
    """X10: a sign and digits of any script; no spaces, no underscores, no more bits than Java has."""

    def body_length(text):
        return f"Pub\x011\x01R\x01G\x01T\x01ID\x01t\x01k\x01SH\x01{text}\x010\x010\x02"

    assert _one(body_length("+26")).beans[0].body_length == 26
    assert _one(body_length("-5")).beans[0].body_length == -5
    assert _one(body_length("٢٦")).beans[0].body_length == 26
    assert _one(body_length("2147483647")).beans[0].body_length == 2147483647
    for wrong in ("", " 26", "26 ", "2_6", "+", "0x1", "1.0", "1e3", "\U0001d7da", "²"):
        assert _bad(body_length(wrong)) == ("body_length", "not a number"), wrong
    for large in ("2147483648", "-2147483649", "9" * 5000):
        assert _bad(body_length(large)) == ("body_length", "does not fit 32 bits"), large


def test_sub_before_is_read_with_and_without_client_host():
    """X11, X13: 8 fields or 4.8.0's 9."""
    assert _one(GOOD).beans[0].client_host is None
    assert _one(SUB_BEFORE + "\x01k\x01CH\x02").beans[0].client_host == "CH"


def test_sub_after_is_read_at_every_length_there_is():
    """X14-X18: what is not there is None: no code for C++, no time and group before 4.8.0, ONS's own eighth field."""
    assert (_one(SUB_AFTER + "\x02").context_code, _one(SUB_AFTER + "\x02").timestamp_ms) == (None, None)
    assert _one(SUB_AFTER + "\x014\x02").context_code is ContextCode.FAILED
    trailing = _one(SUB_AFTER + "\x014\x01\x02")
    assert (trailing.timestamp_ms, trailing.group_name, trailing.access_channel) == (None, None, AccessChannel.CLOUD)
    assert _one(SUB_AFTER + "\x014\x011700000000000\x02").timestamp_ms is None
    for tail in ("\x02", "\x01tenth\x02"):
        full = _one(SUB_AFTER + "\x014\x011700000000000\x01G" + tail)
        assert (full.timestamp_ms, full.group_name) == (1700000000000, "G")
    assert _one("SubAfter\x01REQ\x01ID\x015\x01true\x01\x014\x011\x01G\x02").beans[0].keys == ""


def test_glued_cloud_records_are_taken_apart():
    """X19: what 4.9.5-4.9.8 and 5.1.4-5.3.0 glued together, even to a record of another type, is recovered."""
    decoded = decode_body(ODD["G27"] + GOOD.encode())
    assert decoded.errors == ()
    assert [trace_ctx.trace_type.value for trace_ctx in decoded.contexts] == ["SubAfter", "SubAfter", "SubBefore"]
    assert [trace_ctx.beans[0].keys for trace_ctx in decoded.contexts] == ["k1", "k2", "k"]
    assert decoded.dialects == ("5.1.4/CLOUD", "5.1.4/CLOUD", "5.5.0")
    assert decode_body(ODD["G26"]).dialects == ("5.1.4/CLOUD",)


def test_neighbours_of_a_bad_record_are_kept():
    """X24, G11: the good records stay, the bad pieces are reported with their index and text."""
    decoded = decode_body((GOOD + "SubBefore\x01x\x02" + GOOD).encode() + ODD["G11"])
    assert decoded.record_indexes == (0, 2)
    assert [(error.record_index, error.reason) for error in decoded.errors] == [
        (1, "2 fields, needs 8"),
        (3, "9 fields, needs 12"),
        (4, "unknown record type"),
    ]
    assert decoded.errors[1].text.endswith("\x01a\x01b")


def test_a_missing_last_terminator_and_empty_pieces_are_harmless():
    """X22, X25: nothing between terminators is nothing."""
    assert _one(GOOD.removesuffix("\x02")) == _one(GOOD)
    assert decode_body(b"\x02\x02") == decode_body(b"") == DecodedBody()


def test_message_types_depend_on_the_writers_map():
    """X26: the same ordinal is another type for 5.0.0 and 5.1.0; nothing on the wire says so."""
    text = END.format(state="COMMIT_MESSAGE")
    assert _one(text).beans[0].msg_type is MessageType.TRANS_COMMIT
    assert _one(text, msg_type_map="b").beans[0].msg_type is MessageType.TRANS_HALF


# -- other writers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vector", "dialect", "keys"),
    [
        ("D1", "4.8.0", "k1 k2"),
        ("D2", "4.8.0", "null"),
        ("D3", "5.5.0", "null"),
        ("D4", "4.9.1", "k1"),
        ("D5", "5.5.0", ""),
        ("D6", "5.5.0", "dKey"),
        ("D7", "cpp-2", "dKey"),
        ("D8", "ons", "k1"),
        ("D9", "5.5.0", ""),
        ("G20", "5.5.0", ""),
    ],
)
def test_clients_in_other_languages_are_read(vector, dialect, keys):
    decoded = decode_body(ODD[vector])
    assert decoded.errors == ()
    assert decoded.dialects == (dialect,)
    assert decoded.contexts[0].beans[0].keys == keys


def test_a_shape_nobody_writes_has_no_dialect():
    """Pub with 12 or 13 fields is read, but no released client wrote it."""
    assert decode_body((PUB + "\x010\x02").encode()).dialects == (None,)


def test_absence_is_a_question_of_its_own():
    assert [absent(text) for text in (None, "", "null", "dKey", "NULL", "0")] == [True] * 4 + [False] * 2


def test_another_charset_may_be_named():
    body = (PUB + "\x010\x02").replace("tag", "标签").encode("gbk")
    assert decode_body(body, charset="gbk").contexts[0].beans[0].tags == "标签"
    damaged = decode_body(body)
    assert damaged.errors == ()
    assert "\ufffd" in damaged.contexts[0].beans[0].tags


@pytest.mark.parametrize("options", [{"charset": "nonsense"}, {"charset": "base64"}, {"msg_type_map": "c"}])
def test_a_wrong_option_is_the_callers_mistake(options):
    with pytest.raises(UsageError):
        decode_body(b"x", **options)


def test_every_transaction_state_is_read():
    """The three names, RocketMQ's misspelling included."""
    states = [_one(END.format(state=state.value)).beans[0].transaction_state for state in TransactionState]
    assert states == list(TransactionState)
    assert {trace_type.value for trace_type in TraceType} >= {"EndTransaction"}
