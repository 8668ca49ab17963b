"""Encode and decode a native body."""

import pytest
from hypothesis import given

from otel_mqtrace._errors import EncodeError, UsageError
from otel_mqtrace.model import AccessChannel, MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.wire.native import DIALECTS, absent, decode_body, encode_context
from otel_mqtrace.wire.native.encode import DEFAULTS
from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR, RECORD_TERMINATOR
from tests.support.native_vectors import VECTORS, context, json_lines, trace_context
from tests.support.strategies import sayable

ODD = {item["id"]: item["body"].encode() for item in json_lines(VECTORS / "read_only.jsonl")}
PUB = "Pub\x011700000000000\x01R\x01G\x01T\x01ID\x01tag\x01k\x01SH\x0126\x015"
SUB_BEFORE = "SubBefore\x011700000000000\x01R\x01G\x01REQ\x01ID\x010"
SUB_AFTER = "SubAfter\x01REQ\x01ID\x015\x01true\x01k"
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


# -- beside the reference's vectors, which test_recorded reads (X01-X26) -----------------------------------------------


@pytest.mark.parametrize(
    ("text", "field", "reason"),
    [
        (PUB + "\x012147483648\x01OFF\x01true\x02", "msg_type", "does not fit 32 bits"),
        (SUB_AFTER + "\x015\x02", "context_code", "unknown context code ordinal"),
        ("SubAfter\x01REQ\x01ID\x015\x01true\x02", None, "5 fields, needs 6"),
        ("Recall\x011\x01R\x01G\x01T\x01ID\x02", None, "6 fields, needs 7"),
    ],
)
def test_bad_record_has_field_and_reason(text, field, reason):
    """Where the reference throws or looks away, we say what is wrong."""
    assert _bad(text) == (field, reason)


def _body_length(text):
    return f"Pub\x011\x01R\x01G\x01T\x01ID\x01t\x01k\x01SH\x01{text}\x010\x010\x02"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("+26", 26),
        ("-5", -5),
        ("٢٦", 26),
        ("2147483647", 2147483647),
        ("2147483647".zfill(9_000), 2147483647),
        *((f"-{zero * 9_000}{seven}", -7) for zero, seven in ("07", "\u0660\u0667")),
        *((text, "not a number") for text in ("", " 26", "26 ", "2_6", "+", "0x1", "1.0", "1e3", "\U0001d7da", "²")),
        *(
            (text, "does not fit 32 bits")
            for text in ("2147483648", "-2147483649", "-" + "9" * 9_000, "1".ljust(9_000, "0"))
        ),
        ("2147483648".zfill(9_000), "does not fit 32 bits"),
    ],
    ids=lambda each: repr(each)[:20],
)
def test_number_is_read_or_refused_as_java_does(text, number):
    """X10: a sign and digits of any script; no spaces, no underscores, no more bits than Java has."""
    if isinstance(number, int):
        assert _one(_body_length(text)).beans[0].body_length == number
    else:
        assert _bad(_body_length(text)) == ("body_length", number)


def test_ordinal_with_a_sign_is_read_as_java_reads_it():
    assert _one(PUB + "\x01+0\x02").beans[0].msg_type is MessageType.NORMAL


def test_neighbours_of_a_bad_record_are_kept():
    decoded = decode_body((GOOD + "SubBefore\x01x\x02" + GOOD).encode() + ODD["G11"])
    assert (decoded.contexts, decoded.record_indexes) == (decode_body(GOOD.encode()).contexts * 2, (0, 2))
    assert [(error.record_index, error.reason) for error in decoded.errors] == [
        (1, "2 fields, needs 8"),
        (3, "9 fields, needs 12"),
        (4, "unknown record type"),
    ]
    assert decoded.errors[1].text.endswith("\x01a\x01b")


def test_empty_null_and_dkey_are_absent():
    assert [absent(text) for text in (None, "", "null", "dKey", "NULL", "0")] == [True] * 4 + [False] * 2


def test_body_is_read_in_the_given_charset_and_a_shape_of_no_release_has_no_dialect():
    body = (PUB + "\x010\x02").replace("tag", "标签").encode("gbk")
    decoded = decode_body(body, charset="gbk")
    assert (decoded.contexts[0].beans[0].tags, decoded.dialects) == ("标签", (None,))
    damaged = decode_body(body)
    assert damaged.errors == ()
    assert "\ufffd" in damaged.contexts[0].beans[0].tags


@pytest.mark.parametrize("options", [{"charset": "nonsense"}, {"charset": "base64"}, {"msg_type_map": "c"}])
def test_wrong_option_is_a_usage_error(options):
    with pytest.raises(UsageError, match=r"unknown (charset|message type map) "):
        decode_body(b"x", **options)


GOLDEN = [
    pytest.param(item, dialect, id=f"{item['id']}-{dialect}-{item['access_channel']}")
    for item in json_lines(VECTORS / "golden.jsonl")
    for dialect in item["dialects"]
]
CALL = {"region_id": "DefaultRegion", "group_name": "PG", "cost_ms": 1, "success": True}
MESSAGE = {"topic": "T", "msg_id": "ID", "keys": "k", "msg_type": MessageType.NORMAL, "body_length": 1}
PUB_CONTEXT = context(TraceType.PUB, 1700000000000, **CALL, **MESSAGE)
BEFORE_CONTEXT = context(TraceType.SUB_BEFORE, 1, msg_id="ID")
END_CONTEXT = PUB_CONTEXT._replace(trace_type=TraceType.END_TRANSACTION)
AFTER_CONTEXT = context(TraceType.SUB_AFTER, 1, msg_id="ID")


def _fields(trace_ctx, dialect="5.5.0"):
    return encode_context(trace_ctx, dialect).body.decode().removesuffix(RECORD_TERMINATOR).split(FIELD_SEPARATOR)


@pytest.mark.parametrize(("item", "dialect"), GOLDEN)
def test_golden_vector_is_written_byte_for_byte_also_after_reading(item, dialect):
    channel, row = AccessChannel[item["access_channel"]], DIALECTS[dialect]
    encoded = encode_context(trace_context(item["context"]), dialect, access_channel=channel)
    expected_keys = item["keys_split" if row.splits_keys else "keys_unsplit"]
    assert encoded.body.decode() == item["body"]
    assert encoded.replaced == 0
    assert expected_keys is None or sorted(encoded.keys) == expected_keys
    decoded = decode_body(encoded.body, msg_type_map=row.message_type_map)
    again = [encode_context(each, dialect, access_channel=channel).body for each in decoded.contexts]
    assert (decoded.errors, b"".join(again)) == ((), encoded.body)


def test_every_dialect_is_covered_by_a_golden_vector():
    assert {dialect for item in json_lines(VECTORS / "golden.jsonl") for dialect in item["dialects"]} == set(DIALECTS)


@given(sayable())
def test_written_context_is_read_back(drawn):
    trace_ctx, dialect, channel = drawn
    encoded = encode_context(trace_ctx, dialect, access_channel=channel)
    decoded = decode_body(encoded.body, msg_type_map=DIALECTS[dialect].message_type_map)
    assert decoded.errors == ()
    assert decoded.contexts == _projection(trace_ctx, dialect, channel)


def _projection(trace_ctx, dialect, channel):
    """Return what the wire keeps of a context: one bean per record, null as a word, no empty last text."""
    form = DIALECTS[dialect].form(trace_ctx.trace_type, channel)
    trailing = channel is AccessChannel.CLOUD and form.count == 7 and DIALECTS[dialect].sub_after == 9
    wire_channel = AccessChannel.CLOUD if trailing and trace_ctx.trace_type is TraceType.SUB_AFTER else None
    first_only = trace_ctx.trace_type in {TraceType.PUB, TraceType.END_TRANSACTION, TraceType.RECALL}
    beans = trace_ctx.beans[:1] if first_only else trace_ctx.beans

    def kept(item):
        present = {
            name: value if value is not None and (value != "" or name != form.fields[-1]) else "null"
            for name in form.fields
            if hasattr(item, name)
            for value in [getattr(item, name)]
        }
        return item._replace(**present)

    return tuple(kept(trace_ctx)._replace(access_channel=wire_channel, beans=(kept(bean),)) for bean in beans)


@pytest.mark.parametrize(
    ("given", "written", "replaced"),
    [("a\x01b\x02c", "a_b_c", 2), ("k\ud83d", "k?", 1)],
    ids=["separators", "surrogate"],
)
def test_separators_and_lone_surrogates_are_replaced_and_counted(given, written, replaced):
    """A text that UTF-8 cannot carry is written as Java writes it, and the loss is counted."""
    bean = PUB_CONTEXT.beans[0]._replace(keys=given)
    encoded = encode_context(PUB_CONTEXT._replace(group_name=given, beans=(bean,)))
    decoded = decode_body(encoded.body)
    assert decoded.errors == ()
    assert (decoded.contexts[0].group_name, decoded.contexts[0].beans[0].keys) == (written, written)
    assert encoded.replaced == 2 * replaced
    assert encoded.keys == {"ID", written}


@pytest.mark.parametrize("dialect", ["4.9.5", "5.1.4"])
def test_glued_form_is_refused(dialect):
    """As in RocketMQ, a context that knows its access channel overrides the writer's."""
    for trace_ctx, channel in (
        (AFTER_CONTEXT, AccessChannel.CLOUD),
        (AFTER_CONTEXT._replace(access_channel=AccessChannel.CLOUD), AccessChannel.LOCAL),
    ):
        with pytest.raises(EncodeError, match=r"without terminator.*5\.3\.1") as caught:
            encode_context(trace_ctx, dialect, access_channel=channel)
        assert caught.value.field == "access_channel"
    assert encode_context(BEFORE_CONTEXT, dialect, access_channel=AccessChannel.CLOUD).body


@pytest.mark.parametrize(
    ("trace_ctx", "dialect", "field", "message"),
    [
        (PUB_CONTEXT._replace(beans=()), "5.5.0", "beans", "Pub cannot be written without messages"),
        (BEFORE_CONTEXT._replace(beans=()), "5.5.0", "beans", "SubBefore cannot be written"),
        (PUB_CONTEXT._replace(beans=(TraceBean(msg_id="ID"),)), "5.5.0", "msg_type", "a record needs a message type"),
        (PUB_CONTEXT._replace(beans=(TraceBean(msg_type=MessageType.ORDER),)), "4.9.5", "msg_type", "no ordinal for"),
        (PUB_CONTEXT._replace(cost_ms=1 << 31), "5.5.0", "cost_ms", "does not fit the 32 bits"),
        (PUB_CONTEXT._replace(timestamp_ms=-(1 << 63) - 1), "5.5.0", "timestamp_ms", "does not fit the 64 bits"),
        (END_CONTEXT, "4.8.0", "trace_type", "has no EndTransaction record"),
        (END_CONTEXT, "5.5.0", "transaction_state", "needs a state"),
        (PUB_CONTEXT._replace(trace_type=TraceType.RECALL), "5.3.1", "trace_type", "has no Recall record"),
    ],
)
def test_unencodable_value_is_refused_by_field(trace_ctx, dialect, field, message):
    with pytest.raises(EncodeError, match=message) as caught:
        encode_context(trace_ctx, dialect)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_absent_numbers_and_flags_are_written_as_rocketmq_does():
    bare = TraceContext(trace_type=TraceType.PUB, beans=(TraceBean(msg_type=MessageType.NORMAL),))
    assert _fields(bare) == ["Pub", "0", *["null"] * 7, "0", "0", "0", "null", "true"]
    assert _fields(PUB_CONTEXT._replace(timestamp_ms=-(1 << 63)))[1] == str(-(1 << 63))
    assert _fields(AFTER_CONTEXT)[2:] == ["ID", "0", "true", "null", "0", "1", "null"]
    assert DEFAULTS["from_transaction_check"] is False


def test_body_is_written_in_the_given_charset():
    bean = PUB_CONTEXT.beans[0]._replace(keys="订单 😀 ", tags="标签")
    encoded = encode_context(PUB_CONTEXT._replace(beans=(bean,)), "4.9.5", charset="gbk")
    assert "\x01标签\x01订单 ? \x01".encode("gbk") in encoded.body
    assert encoded.replaced == 1
    assert encoded.keys == {"ID", "订单", "😀"}
    with pytest.raises(UsageError, match="klingon"):
        encode_context(PUB_CONTEXT, charset="klingon")
