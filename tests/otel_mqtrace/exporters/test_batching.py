"""How encoded contexts share trace messages."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mqtrace.exporters.packing import MAX_KEYS_BYTES, Packing
from otel_mqtrace.model import MessageType, TraceType, TransactionState
from otel_mqtrace.wire.native import EncodedContext, decode_body, encode_context
from tests.support.native_spans import bean, pub, sub


def _pack(*contexts, encode=encode_context, max_message_bytes=128_000, **bounds):
    packing = Packing(encode, "5.5.0", max_message_bytes, **bounds)
    for origin, trace_ctx in enumerate(contexts):
        packing.add_context(origin, trace_ctx)
    packing.finish_messages()
    return packing.packed


def _ids(packed):
    return [record.beans[0].msg_id for message in packed.messages for record in decode_body(message.value).contexts]


def test_contexts_of_one_topic_and_region_share_a_message():
    [message] = _pack(pub(1), pub(2)).messages
    assert message.value == encode_context(pub(1)).body + encode_context(pub(2)).body
    assert set(message.keys.split(" ")) == encode_context(pub(1)).keys | encode_context(pub(2)).keys
    assert (message.topic, message.region_id, message.contexts) == ("orders", "DefaultRegion", 2)
    assert message.origins == {0, 1}


@pytest.mark.parametrize("trace_type", TraceType)
def test_every_message_of_a_call_gets_its_record_whatever_the_type(trace_type):
    """Of some types the wire says only the first message of a context: packing gives each one a context of its own."""
    said = {"msg_type": MessageType.TRANS_COMMIT, "transaction_state": TransactionState.COMMIT_MESSAGE}
    call = replace(pub(1), trace_type=trace_type, beans=(bean(1, **said), bean(2, **said)))
    assert _ids(_pack(call)) == [bean(1).msg_id, bean(2).msg_id]


def test_topics_and_regions_do_not_mix():
    """As in RocketMQ: grouped by source topic and region."""
    packed = _pack(pub(1), pub(2, topic="stock"), pub(3, region_id="eu"), pub(4))
    assert [(m.topic, m.region_id, m.contexts) for m in packed.messages] == [
        ("orders", "DefaultRegion", 2),
        ("stock", "DefaultRegion", 1),
        ("orders", "eu", 1),
    ]


def test_a_listener_call_over_two_topics_becomes_two_contexts():
    """A consumer of several topics gets batches that RocketMQ never has."""
    packed = _pack(sub(bean(1), bean(2, topic="stock"), bean(3)))
    assert [(m.topic, len(decode_body(m.value).contexts)) for m in packed.messages] == [("orders", 2), ("stock", 1)]


def test_several_messages_of_one_send_get_a_record_each():
    packed = _pack(replace(pub(1), beans=(*pub(1).beans, *pub(2).beans, *pub(3).beans)))
    assert _ids(packed) == [bean(n).msg_id for n in (1, 2, 3)]


def test_the_size_is_tested_before_adding_and_in_encoded_bytes():
    """A message may be exactly as large as allowed, in bytes of UTF-8 rather than characters, and no larger."""
    chinese = pub(1, keys="订" * 50)
    size = len(encode_context(chinese).body)
    assert len(_pack(chinese, chinese, max_message_bytes=2 * size).messages) == 1
    assert len(_pack(chinese, chinese, max_message_bytes=2 * size - 1).messages) == 2


def test_a_listener_call_too_large_for_one_message_is_split_by_its_messages():
    """Never refused whole."""
    packed = _pack(sub(*map(bean, range(50))), max_message_bytes=1000)
    assert len(packed.messages) > 1
    assert _ids(packed) == [bean(n).msg_id for n in range(50)]
    assert packed.refused == {}
    assert {origin for message in packed.messages for origin in message.origins} == {0}


def test_one_message_too_large_alone_is_counted_and_its_neighbours_travel():
    packed = _pack(pub(1), sub(bean(2), bean(3, keys="x" * 5000), bean(4)), pub(5), max_message_bytes=1000)
    assert packed.refused == {1: "too_large"}
    assert _ids(packed) == [bean(n).msg_id for n in (1, 2, 4, 5)]


def test_what_cannot_be_encoded_is_counted_and_its_neighbours_travel():
    """The encoder's complaint is kept for the log."""
    unsayable = replace(pub(2), timestamp_ms=2**70)
    packed = _pack(pub(1), unsayable, pub(3))
    assert packed.refused == {1: "encode_error"}
    assert _ids(packed) == [bean(1).msg_id, bean(3).msg_id]
    assert packed.first_error


def test_an_encoder_that_has_nothing_to_say_makes_no_message():
    packed = _pack(pub(1), encode=lambda _ctx, _dialect: EncodedContext(b"", frozenset({"k"})))
    assert (packed.messages, packed.refused) == ([], {})


def test_separators_inside_values_are_counted():
    assert _pack(pub(1, client_host="c"), pub(2, store_host="a\x01b\x02c")).replaced == 2


def test_a_key_set_that_grows_too_long_begins_a_new_message():
    """RocketMQ's brokers refuse the message otherwise (apache/rocketmq#6579)."""
    packed = _pack(*(pub(n, keys=f"{n}-" + "k" * 6000) for n in range(8)), max_message_bytes=10**6)
    assert len(packed.messages) == 3
    assert all(len(message.keys.encode()) <= MAX_KEYS_BYTES for message in packed.messages)
    assert packed.keys_left_out == 0


def test_keys_too_long_for_any_message_are_left_out_and_counted_but_the_record_stays():
    """The message id is the last key to go: it is what people search by."""
    [message] = (packed := _pack(pub(1, keys="short " + "订" * 10_000))).messages
    assert message.keys.split(" ") == [bean(1).msg_id, "short"]
    assert packed.keys_left_out == 1
    assert _ids(packed) == [bean(1).msg_id]


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=60)
CONTEXTS = st.lists(
    st.builds(
        lambda kind, numbers, topic, region, keys: (
            replace(pub(numbers[0], topic=topic, keys=keys), region_id=region)
            if kind is TraceType.PUB
            else replace(sub(*(bean(n, topic=topic, keys=keys) for n in numbers)), region_id=region)
        ),
        st.sampled_from([TraceType.PUB, TraceType.SUB_BEFORE]),
        st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
        st.sampled_from(["orders", "stock"]),
        st.sampled_from(["DefaultRegion", "eu", None]),
        TEXT,
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(contexts=CONTEXTS, max_message_bytes=st.integers(100, 3000), max_keys_bytes=st.integers(40, 500))
def test_no_bound_is_ever_exceeded_and_no_record_is_lost_or_doubled(contexts, max_message_bytes, max_keys_bytes):
    packed = _pack(*contexts, max_message_bytes=max_message_bytes, max_keys_bytes=max_keys_bytes)
    assert all(len(message.value) <= max_message_bytes for message in packed.messages)
    assert all(len(message.keys.encode()) <= max_keys_bytes for message in packed.messages)
    accepted = [ctx for position, ctx in enumerate(contexts) if position not in packed.refused]
    wanted = Counter(bean.msg_id for ctx in accepted for bean in ctx.beans)
    found = Counter(_ids(packed))
    assert wanted <= found
    assert found <= Counter(bean.msg_id for ctx in contexts for bean in ctx.beans)
    assert packed.refused.keys() | {o for message in packed.messages for o in message.origins} == set(
        range(len(contexts))
    )
