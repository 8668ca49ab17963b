"""An event of any client, recorded through the manual hooks, exports exactly what its span exports."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, context, trace

from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage
from otel_mqtrace.hooks.send import UNKNOWN_BODY, SendHook
from otel_mqtrace.model import ContextCode, MessageType
from otel_mqtrace.records.event import EventSpan
from otel_mqtrace.wire.native import DIALECTS
from tests.support.record_equality import World, assert_equal

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
texts = st.binary(max_size=6) | st.sampled_from([b"k1 k2", b"", b"a\x01b", "订单".encode()])
topics = st.sampled_from(["orders", "订单", "100%", "odd\x01topic"])
headers = st.dictionaries(
    st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "DELAY", "other", "traceparent"]), texts | st.just(SENT), max_size=4
)
systems = st.sampled_from(["kafka", "rocketmq", "mybroker"])
sends = st.fixed_dictionaries(
    {"topic": topics},
    optional={
        "body": st.none() | st.binary(max_size=20) | st.text(max_size=5) | st.just(UNKNOWN_BODY),
        "key": st.binary(max_size=4) | st.text(max_size=4),
        "headers": headers | headers.map(lambda given: list(given.items())),
        "partition": st.integers(-1, 3),
        "transaction_id": st.just("T1"),
        "msg_id": st.text(max_size=8, alphabet="A0é"),
        "tags": st.text(max_size=4),
        "keys": st.lists(st.text(max_size=3), max_size=2),
        "msg_type": st.sampled_from(MessageType),
        "message_group": st.just("g"),
        "delivery_timestamp_ms": st.integers(0, 1 << 40),
        "carries_headers": st.booleans(),
    },
)
outcomes = st.fixed_dictionaries(
    {},
    optional={
        "partition": st.integers(-1, 3),
        "offset": st.integers(-1, 300),
        "store_host": st.just("b2:9092"),
        "cluster_id": st.just("C1"),
        "msg_id": st.just("0A"),
        "offset_msg_id": st.just("0B"),
        "body_length": st.integers(0, 5),
        "error": st.sampled_from(["TIMED_OUT"]),
        "description": st.just("late"),
        "exception": st.just(ValueError("no")),
        "outcome": st.just("not_awaited"),
    },
)
received = st.builds(
    IncomingMessage,
    topic=st.just("orders"),
    partition=st.none() | st.integers(0, 3),
    offset=st.none() | st.integers(0, 300),
    key=st.none() | st.binary(max_size=4),
    body_length=st.integers(0, 20),
    tombstone=st.booleans(),
    headers=headers.map(lambda given: list(given.items())),
    timestamp_ms=st.none() | st.integers(0, 1 << 40),
    store_host=st.none() | st.just("b2:9092"),
    msg_id=st.none() | st.just("0A"),
    tags=st.none() | st.just("paid"),
    keys=st.none() | st.just(("k1", "k2")),
    msg_type=st.none() | st.sampled_from(MessageType),
    retry_times=st.none() | st.integers(0, 3),
    message_group=st.none() | st.just("g"),
)
endings = st.fixed_dictionaries(
    {}, optional={"code": st.sampled_from(ContextCode), "exception": st.just(ValueError("no")), "error": st.just("odd")}
)
currents = st.sampled_from(
    [
        {},
        baggage.set_baggage("tenant", "7", {}),
        trace.set_span_in_context(
            trace.NonRecordingSpan(trace.SpanContext(5, 6, is_remote=False, trace_flags=trace.TraceFlags(1))), {}
        ),
    ]
)


def _both(play, current, dialect, *, is_record):
    recorded, other, results = World(records=True), World(records=False), []
    for world in (recorded, other):
        token = context.attach(context.Context(current))
        try:
            results.append(play(world))
        finally:
            context.detach(token)
    assert results[0] == results[1]
    assert_equal(recorded, other, dialect, expect_records=is_record)


@given(sends, outcomes, systems, currents, st.sampled_from(sorted(DIALECTS)))
@settings(max_examples=150, deadline=None)
def test_send_through_the_manual_hook_equals_its_span(send, outcome, system, current, dialect):
    def play(world):
        hook = SendHook(tracing=world.tracing, system=system, group_name="shop", servers="b1:9092")
        call = hook.before(**send)
        world.clock.advance(ms=3)
        hook.after(call, **outcome)
        return call.headers, call.attributes

    _both(play, current, dialect, is_record=outcome.keys().isdisjoint({"error", "exception"}))


@given(st.lists(received, min_size=1, max_size=3), endings, systems, currents, st.sampled_from(sorted(DIALECTS)))
@settings(max_examples=150, deadline=None)
def test_delivery_through_the_manual_hook_equals_its_span(messages, ending, system, current, dialect):
    def play(world):
        hook = ConsumeHook(tracing=world.tracing, system=system, group_name="billing", servers="b1:9092")
        (call,) = hook.before(messages, batch=len(messages) > 1)
        world.clock.advance(ms=3)
        hook.after(call, **ending)
        return call.messages

    is_success = ending.get("code") in {None, ContextCode.SUCCESS, ContextCode.TIME_OUT}
    _both(play, current, dialect, is_record=is_success)


@pytest.mark.parametrize("written", [lambda span: span.set_attribute("order", 7), lambda span: span.add_event("paid")])
def test_event_that_is_written_to_ends_as_an_sdk_span_with_the_same_ids(written):
    world = World(records=True)
    hook = SendHook(tracing=world.tracing)
    call = hook.before("orders", body=b"x")
    assert type(call.span) is EventSpan
    ids = call.span.get_span_context()
    written(call.span)
    hook.after(call, partition=0, offset=7)
    (span,) = world.spans()
    assert not isinstance(span, EventSpan)
    assert span.get_span_context() == ids
    assert span.attributes["messaging.kafka.offset"] == 7
    assert "order" in span.attributes or span.events[0].name == "paid"
