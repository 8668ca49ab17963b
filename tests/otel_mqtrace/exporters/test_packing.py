"""From spans to trace messages: grouping, sizes, keys, and spans that the SDK's limits cut."""

from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, TracerProvider

from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.exporters.packing import MAX_KEYS_BYTES, Packing, SpanPacker
from otel_mqtrace.hooks.consume import ConsumeHook
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.model import MessageType, TraceType, TransactionState
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.testing import RecordingExporter
from otel_mqtrace.wire.native import decode_body, encode_context
from tests.support.landings import landed_bodies, records_of
from tests.support.mailbox import incoming
from tests.support.native_spans import bean, pub, sub, traced


def _pack(*contexts, encode=encode_context, max_message_bytes=128_000, **bounds):
    packing = Packing(encode, "5.5.0", max_message_bytes, **bounds)
    for origin, trace_ctx in enumerate(contexts):
        packing.add_context(origin, trace_ctx)
    packing.finish_messages()
    return packing.packed


def _ids(packed):
    return [record.beans[0].msg_id for message in packed.messages for record in decode_body(message.value).contexts]


@pytest.mark.parametrize("trace_type", TraceType)
def test_every_message_of_a_call_has_a_record_for_every_type(trace_type):
    """Of some types the wire says only the first message of a context: packing gives each one a context of its own."""
    fields = {"msg_type": MessageType.TRANS_COMMIT, "transaction_state": TransactionState.COMMIT_MESSAGE}
    call = pub(1)._replace(trace_type=trace_type, beans=(bean(1, **fields), bean(2, **fields)))
    assert _ids(_pack(call)) == [bean(1).msg_id, bean(2).msg_id]


def test_call_over_two_topics_becomes_two_contexts():
    """A consumer of several topics gets batches that RocketMQ never has."""
    packed = _pack(sub(bean(1), bean(2, topic="stock"), bean(3)))
    ids = [[record.beans[0].msg_id for record in decode_body(each.value).contexts] for each in packed.messages]
    assert ids == [[bean(1).msg_id, bean(3).msg_id], [bean(2).msg_id]]


def test_message_size_is_limited_in_encoded_bytes():
    chinese = pub(1, keys="订" * 50)
    size = len(encode_context(chinese).body)
    assert len(_pack(chinese, chinese, max_message_bytes=2 * size).messages) == 1
    assert len(_pack(chinese, chinese, max_message_bytes=2 * size - 1).messages) == 2


def test_keys_longer_than_the_limit_begin_a_new_message():
    """RocketMQ's brokers refuse the message otherwise (apache/rocketmq#6579)."""
    packed = _pack(*(pub(n, keys=f"{n}-" + "k" * 6000) for n in range(8)), max_message_bytes=10**6)
    assert len(packed.messages) == 3
    assert all(len(message.keys.encode()) <= MAX_KEYS_BYTES for message in packed.messages)
    assert packed.keys_left_out == 0


def test_key_too_long_for_any_message_is_left_out_and_counted():
    [message] = (packed := _pack(pub(1, keys="short " + "订" * 10_000))).messages
    assert message.keys.split(" ") == [bean(1).msg_id, "short"]
    assert packed.keys_left_out == 1
    assert _ids(packed) == [bean(1).msg_id]


TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=60)
CONTEXTS = st.lists(
    st.builds(
        lambda kind, numbers, topic, region, keys: (
            pub(numbers[0], topic=topic, keys=keys)._replace(region_id=region)
            if kind is TraceType.PUB
            else sub(*(bean(n, topic=topic, keys=keys) for n in numbers))._replace(region_id=region)
        ),
        st.sampled_from([TraceType.PUB, TraceType.SUB_BEFORE]),
        st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
        st.sampled_from(["orders", "stock"]),
        st.sampled_from(["DefaultRegion", "eu", None]),
        TEXT,
    ),
    max_size=12,
)


@settings(max_examples=80)
@given(contexts=CONTEXTS, max_message_bytes=st.integers(100, 3000), max_keys_bytes=st.integers(40, 500))
@example([pub(1), sub(bean(2), bean(3, keys="x" * 5_000), bean(4)), sub(*map(bean, range(50)))], 1_000, MAX_KEYS_BYTES)
def test_limits_hold_and_every_record_that_is_not_too_large_is_sent_once(contexts, max_message_bytes, max_keys_bytes):
    packed = _pack(*contexts, max_message_bytes=max_message_bytes, max_keys_bytes=max_keys_bytes)
    for message in packed.messages:
        assert len(message.value) <= max_message_bytes
        assert len(message.keys.encode()) <= max_keys_bytes
        sources = {(contexts[origin].beans[0].topic, contexts[origin].region_id) for origin in message.origins}
        assert len(sources) == 1
    beans = [(origin, trace_ctx, each) for origin, trace_ctx in enumerate(contexts) for each in trace_ctx.beans]
    fits = [len(encode_context(ctx._replace(beans=(each,))).body) <= max_message_bytes for _, ctx, each in beans]
    assert Counter(_ids(packed)) == Counter(
        each.msg_id for (_, _, each), is_sent in zip(beans, fits, strict=True) if is_sent
    )
    refused = {origin: "too_large" for (origin, _, _), is_sent in zip(beans, fits, strict=True) if not is_sent}
    assert packed.refused == refused


_TOPIC = "orders-of-the-whole-northern-region"
_IDS = [f"{number:032X}" for number in range(3)]


def _send(tracing, number=0, *, write=lambda _span: None, **options):
    hook = SendHook(tracing=tracing, group_name="shop", servers="broker:9092")
    call = hook.before(**{"topic": _TOPIC, "body": b"x", "headers": {"UNIQ_KEY": _IDS[number]}, **options})
    write(call.span)
    hook.after(call, partition=0, offset=number)


def _process(tracing, *numbers, write=lambda _span: None):
    hook = ConsumeHook(tracing=tracing, group_name="billing", servers="broker:9092")
    messages = [incoming(("UNIQ_KEY", _IDS[each].encode()), topic=_TOPIC, offset=each) for each in numbers]
    for call in hook.before(messages):
        write(call.span)
        hook.after(call)


def _link(span, count=1):
    for number in range(count):
        span.add_link(trace.SpanContext(1, number + 1, is_remote=True))


def _fill(span):
    span.set_attributes({f"app.{number}": number for number in range(200)})


ALL_FIVE = "Pub 0 SubBefore 0 SubBefore 1 SubAfter 0 SubAfter 1"
LAST_TWO = "SubBefore 0 SubBefore 1 SubBefore 2 SubAfter 1 SubAfter 2"
LENGTH = "ATTRIBUTE_VALUE_LENGTH"
LIMITED = {
    "default limits": ({}, lambda t: (_send(t), _process(t, 0, 1)), ALL_FIVE, (3, 3, 0, 0), ""),
    "short ids": ({"max_attribute_length": 16}, lambda t: (_send(t), _process(t, 1)), "", (3, 0, 3, 0), LENGTH),
    "an id's length": ({"max_attribute_length": 32}, lambda t: _send(t, topic=_TOPIC[:32]), "Pub 0", (1, 1, 0, 0), ""),
    "a topic's length": ({"max_attribute_length": len(_TOPIC)}, _send, "Pub 0", (1, 1, 0, 0), ""),
    "short keys": ({"max_attribute_length": 48}, lambda t: _send(t, keys=["k" * 49]), "Pub 0", (1, 0, 1, 0), LENGTH),
    "application's": ({}, lambda t: _process(t, 0, write=_fill), "SubBefore 0", (2, 1, 1, 0), "SPAN_ATTRIBUTE_COUNT"),
    "links": ({"max_links": 3}, lambda t: _process(t, 0, 1, 2, write=_link), LAST_TWO, (2, 1, 1, 0), "SPAN_LINK_COUNT"),
    "empty links": ({"max_link_attributes": 0}, lambda t: _process(t, 0, 1), "", (2, 0, 2, 0), "LINK_ATTRIBUTE_COUNT"),
    "application's links": (
        {"max_links": 1},
        lambda t: _send(t, write=lambda span: _link(span, 3) or span.set_attribute("", "refused by the SDK")),
        "Pub 0",
        (1, 1, 0, 0),
        "",
    ),
    **{
        f"first {kept} attributes": (
            {"max_span_attributes": kept},
            lambda t: (_send(t), _process(t, 0)),
            records,
            (3, 0, 3, 0),
            "SPAN_ATTRIBUTE_COUNT",
        )
        for kept, records in ((1, ""), (4, ""), (10, ""), (16, "Pub 0 SubBefore 0"))
    },
}


def _recorded(directory, act, limits, **options):
    processor = MqTraceSpanProcessor(NativeFileSpanExporter(directory=directory, **options), background=False)
    provider = TracerProvider(span_limits=SpanLimits(**limits), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    act(Tracing.create(tracer_provider=provider, settings=Settings()))
    processor.force_flush()
    return processor, records_of(landed_bodies(directory))


@pytest.mark.parametrize(("limits", "act", "records", "stats", "variable"), LIMITED.values(), ids=LIMITED)
def test_cut_record_is_counted_and_logged_once_with_its_limit(tmp_path, caplog, limits, act, records, stats, variable):
    processor, written = _recorded(tmp_path, act, limits)
    account = processor.stats()["NativeFileSpanExporter"]
    assert " ".join(f"{one.trace_type.value} {_IDS.index(one.beans[0].msg_id)}" for one in written) == records
    assert {one.beans[0].topic for one in written if one.trace_type is TraceType.PUB} <= {_TOPIC, _TOPIC[:32]}
    truncated = account["dropped"].get("truncated", 0)
    assert (account["offered"], account["exported"], truncated, account["failed"]) == stats
    lost = sum(row["count"] for row in processor.ledger()["rows"])
    _, whole = _recorded(tmp_path / "whole", act, {"max_span_attributes": SpanLimits.UNSET})
    assert lost + len(written) == len(whole)  # a record in part is no loss
    lines = [each.getMessage() for each in caplog.records if "incomplete" in each.getMessage()]
    assert [f"OTEL_{variable}_LIMIT" in line for line in lines] == [True] * bool(variable)


def test_ledger_counts_of_a_call_the_messages_that_are_too_large(tmp_path):
    messages = [incoming(("KEYS", b"k" * size), topic=_TOPIC, offset=at) for at, size in enumerate((1, 500, 1))]

    def consume(tracing):
        hook = ConsumeHook(tracing=tracing, group_name="billing")
        hook.after(*hook.before(messages, batch=True))

    processor, written = _recorded(tmp_path, consume, {}, max_message_bytes=400)
    assert processor.stats()["NativeFileSpanExporter"]["dropped"]["too_large"] == 2
    assert [(row["cause"], row["count"]) for row in processor.ledger()["rows"]] == [("too_large", 1)] * 2
    assert len(written) == 4


def test_of_a_call_that_is_delivered_in_part_the_undelivered_messages_are_lost():
    exporter = RecordingExporter()
    processor, trace_calls = traced(exporter)
    trace_calls(sub(*(bean(number, keys="k" * 200) for number in range(3)), before=False))
    processor.force_flush()
    packer = SpanPacker(encode=encode_context, dialect="5.5.0", max_message_bytes=400, region_id=None)
    packed = packer.pack_batches([exporter.take_all()])
    for lost, messages in ((packed.messages[1:], {0: 2}), (packed.messages, {})):
        outcome = packer.settle(1, packed, lost)
        assert (len(packed.messages), outcome.failed, outcome.messages) == (3, 1, messages)


def test_cut_span_of_another_library_is_not_a_lost_record(tmp_path):
    processor = MqTraceSpanProcessor(NativeFileSpanExporter(directory=tmp_path), background=False)
    provider = TracerProvider(span_limits=SpanLimits(max_span_attributes=1), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    provider.get_tracer("another").start_span("send orders", attributes={"a": 1, "b": 2}).end()
    assert processor.stats()["NativeFileSpanExporter"]["offered"] == 0
    provider.shutdown()
