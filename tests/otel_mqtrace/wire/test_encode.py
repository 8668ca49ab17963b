"""The encoder writes what RocketMQ's own encoder writes, byte for byte, and refuses what would do harm."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from otel_mqtrace._errors import EncodeError, UsageError
from otel_mqtrace.model import AccessChannel, MessageType, TraceBean, TraceContext, TraceType
from otel_mqtrace.wire.native import DIALECTS, decode_body, encode_context
from otel_mqtrace.wire.native.encode import DEFAULTS
from otel_mqtrace.wire.native.layout import FIELD_SEPARATOR, RECORD_TERMINATOR
from tests.support.native_vectors import VECTORS, json_lines, trace_context
from tests.support.strategies import sayable

GOLDEN = [
    pytest.param(item, dialect, id=f"{item['id']}-{dialect}-{item['access_channel']}")
    for item in json_lines(VECTORS / "golden.jsonl")
    for dialect in item["dialects"]
]
PUB = TraceContext(
    trace_type=TraceType.PUB,
    timestamp_ms=1700000000000,
    region_id="DefaultRegion",
    group_name="PG",
    cost_ms=1,
    success=True,
    beans=(TraceBean(topic="T", msg_id="ID", keys="k", msg_type=MessageType.NORMAL, body_length=1),),
)
SUB_BEFORE = TraceContext(trace_type=TraceType.SUB_BEFORE, timestamp_ms=1, beans=(TraceBean(msg_id="ID"),))
SUB_AFTER = TraceContext(trace_type=TraceType.SUB_AFTER, timestamp_ms=1, beans=(TraceBean(msg_id="ID"),))


def _fields(trace_ctx, dialect="5.5.0"):
    return encode_context(trace_ctx, dialect).body.decode().removesuffix(RECORD_TERMINATOR).split(FIELD_SEPARATOR)


@pytest.mark.parametrize(("item", "dialect"), GOLDEN)
def test_a_golden_vector_is_written_byte_for_byte(item, dialect):
    encoded = encode_context(
        trace_context(item["context"]), dialect, access_channel=AccessChannel[item["access_channel"]]
    )
    expected_keys = item["keys_split" if DIALECTS[dialect].splits_keys else "keys_unsplit"]
    assert encoded.body.decode() == item["body"]
    assert encoded.replaced == 0
    assert expected_keys is None or sorted(encoded.keys) == expected_keys


def test_every_dialect_is_covered_by_a_golden_vector():
    assert {dialect for item in json_lines(VECTORS / "golden.jsonl") for dialect in item["dialects"]} == set(DIALECTS)


@given(sayable())
def test_what_is_written_is_read_back(drawn):
    """decode(encode(x)) is x, one bean at a time, with null texts as the word and nothing else changed."""
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
        return replace(item, **present)

    return tuple(replace(kept(trace_ctx), access_channel=wire_channel, beans=(kept(bean),)) for bean in beans)


def test_separators_in_a_value_become_underscores_and_are_counted():
    """G11, which destroys RocketMQ's own trace message, is one readable record here, and its keys are clean too."""
    bean = replace(PUB.beans[0], keys="a\x01b\x02c")
    encoded = encode_context(replace(PUB, region_id="x\x02", beans=(bean,)))
    decoded = decode_body(encoded.body)
    assert decoded.errors == ()
    assert (decoded.contexts[0].region_id, decoded.contexts[0].beans[0].keys) == ("x_", "a_b_c")
    assert encoded.replaced == 3
    assert encoded.keys == {"ID", "a_b_c"}


def test_lone_surrogates_become_question_marks_and_are_counted():
    """A text that UTF-8 cannot carry is written as Java writes it, and the loss is counted."""
    bean = replace(PUB.beans[0], keys="k\ud83d")
    encoded = encode_context(replace(PUB, group_name="g\ud83d", beans=(bean,)))
    assert decode_body(encoded.body).contexts[0].group_name == "g?"
    assert encoded.replaced == 2
    assert encoded.keys == {"ID", "k?"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_sub_before_never_ends_in_an_empty_field(dialect):
    """An empty text at the end is written as null, because Java's reader would throw the whole body away."""
    bean = TraceBean(msg_id="ID", keys="", client_host="")
    assert _fields(replace(SUB_BEFORE, beans=(bean,)), dialect)[-1] == "null"


@pytest.mark.parametrize("dialect", ["4.9.5", "5.1.4"])
def test_the_glued_form_is_refused(dialect):
    """The CLOUD SubAfter that destroys its neighbours is never written, whoever asks for it."""
    for trace_ctx, channel in (
        (SUB_AFTER, AccessChannel.CLOUD),
        (replace(SUB_AFTER, access_channel=AccessChannel.CLOUD), AccessChannel.LOCAL),
    ):
        with pytest.raises(EncodeError, match=r"without terminator.*5\.3\.1") as caught:
            encode_context(trace_ctx, dialect, access_channel=channel)
        assert caught.value.field == "access_channel"
    assert encode_context(SUB_BEFORE, dialect, access_channel=AccessChannel.CLOUD).body


def test_the_contexts_own_channel_wins():
    """As in RocketMQ, a context that knows its access channel overrides the writer's."""
    of_cloud = encode_context(SUB_AFTER, access_channel=AccessChannel.CLOUD)
    assert encode_context(replace(SUB_AFTER, access_channel=AccessChannel.CLOUD)) == of_cloud
    assert of_cloud.body.endswith(b"\x01\x02")


@pytest.mark.parametrize(
    ("trace_ctx", "dialect", "field"),
    [
        (replace(PUB, beans=()), "5.5.0", "beans"),
        (replace(SUB_BEFORE, beans=()), "5.5.0", "beans"),
        (replace(PUB, beans=(TraceBean(msg_id="ID"),)), "5.5.0", "msg_type"),
        (replace(PUB, beans=(TraceBean(msg_type=MessageType.ORDER),)), "4.9.5", "msg_type"),
        (replace(PUB, cost_ms=1 << 31), "5.5.0", "cost_ms"),
        (replace(PUB, timestamp_ms=-(1 << 63) - 1), "5.5.0", "timestamp_ms"),
        (replace(PUB, trace_type=TraceType.END_TRANSACTION), "4.8.0", "trace_type"),
        (replace(PUB, trace_type=TraceType.END_TRANSACTION), "5.5.0", "transaction_state"),
        (replace(PUB, trace_type=TraceType.RECALL), "5.3.1", "trace_type"),
    ],
)
def test_what_the_format_cannot_say_is_refused_by_field(trace_ctx, dialect, field):
    with pytest.raises(EncodeError) as caught:
        encode_context(trace_ctx, dialect)
    assert caught.value.field == field
    assert "\n" not in str(caught.value)


def test_absent_numbers_and_flags_are_rocketmqs_initial_values():
    """A context with nothing but its message type is written, each absent field as RocketMQ's own objects start out."""
    bare = TraceContext(trace_type=TraceType.PUB, beans=(TraceBean(msg_type=MessageType.NORMAL),))
    assert _fields(bare) == ["Pub", "0", *["null"] * 7, "0", "0", "0", "null", "true"]
    assert _fields(SUB_AFTER)[2:] == ["ID", "0", "true", "null", "0", "1", "null"]
    assert DEFAULTS["from_transaction_check"] is False


def test_an_unknown_dialect_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"unknown dialect '6\.0'.*5\.5\.0"):
        encode_context(PUB, "6.0")


def test_another_charset_is_written_on_request():
    bean = replace(PUB.beans[0], keys="订单 😀", tags="标签")
    encoded = encode_context(replace(PUB, beans=(bean,)), "4.9.5", charset="gbk")
    assert "\x01标签\x01订单 ?\x01".encode("gbk") in encoded.body
    assert encoded.replaced == 1
    assert encoded.keys == {"ID", "订单", "😀"}
    with pytest.raises(UsageError, match="klingon"):
        encode_context(PUB, charset="klingon")
