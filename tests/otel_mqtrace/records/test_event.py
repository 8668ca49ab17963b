"""Records of single events and of batches."""

import json
from operator import attrgetter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, context, trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_by_opentelemetry
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage
from otel_mqtrace.hooks.send import UNKNOWN_BODY, SendHook
from otel_mqtrace.model import ContextCode, MessageType
from otel_mqtrace.records.batch import BatchSpan
from otel_mqtrace.records.event import EventSpan
from otel_mqtrace.wire.native import DIALECTS
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans
from tests.otel_mqtrace.records import test_sent
from tests.otel_mqtrace.records.test_handled import PARENT, _Message, _World
from tests.support.record_equality import Leaders, World, assert_equal, encode_whole, native_of, spans_of

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
@settings(max_examples=60)
def test_send_through_the_manual_hook_equals_its_span(send, outcome, system, current, dialect):
    def play(world):
        hook = SendHook(tracing=world.tracing, system=system, group_name="shop", servers="b1:9092")
        call = hook.before(**send)
        world.clock.advance(ms=3)
        hook.after(call, **outcome)
        return call.headers, call.attributes

    _both(play, current, dialect, is_record=outcome.keys().isdisjoint({"error", "exception"}))


@given(st.lists(received, min_size=1, max_size=3), endings, systems, currents, st.sampled_from(sorted(DIALECTS)))
@settings(max_examples=60)
def test_delivery_through_the_manual_hook_equals_its_span(messages, ending, system, current, dialect):
    def play(world):
        hook = ConsumeHook(tracing=world.tracing, system=system, group_name="billing", servers="b1:9092")
        (call,) = hook.before(messages, batch=len(messages) > 1)
        world.clock.advance(ms=3)
        hook.after(call, **ending)
        return call.messages

    code = ending.get("code", ContextCode.SUCCESS)
    is_success = code is ContextCode.TIME_OUT or (code is ContextCode.SUCCESS and "exception" not in ending)
    _both(play, current, dialect, is_record=is_success)


@pytest.mark.parametrize("written", [lambda span: span.set_attribute("order", 7), lambda span: span.add_event("paid")])
def test_event_that_is_written_to_ends_as_an_sdk_span_with_the_same_parts(written):
    world = World(records=True)
    hook = SendHook(tracing=world.tracing)
    call = hook.before("orders", body=b"x")
    assert type(call.span) is EventSpan
    parts = attrgetter("context", "parent", "name", "kind", "start_time", "resource", "instrumentation_scope")
    known = parts(call.span)
    written(call.span)
    hook.after(call, partition=0, offset=7)
    (span,) = world.spans()
    assert not isinstance(span, EventSpan)
    assert parts(span) == known
    assert span.attributes["messaging.kafka.offset"] == 7
    assert "order" in span.attributes or span.events[0].name == "paid"


def test_send_that_the_application_ended_has_no_context_code():
    world = World(records=True)
    SendHook(tracing=world.tracing).before("orders", body=b"x").span.end()
    assert "mqtrace.context_code" not in world.spans()[0].attributes


batch_headers = st.dictionaries(st.sampled_from(["UNIQ_KEY", "other"]), texts | st.none(), max_size=2)
rare = st.just({}) | st.dictionaries(st.sampled_from(["TAGS", "KEYS", "DELAY", "tracestate"]), texts, max_size=1)
traced = st.sampled_from([{}, {"traceparent": PARENT}, {"traceparent": PARENT.decode()}])
row = st.tuples(
    st.integers(0, 1),
    st.none() | st.integers(1, 3),
    st.none() | st.integers(0, 3),
    st.none() | st.sampled_from([b"k", b"\xff", "订".encode()]),
    st.builds(lambda *all_of: [pair for each in all_of for pair in each.items()], batch_headers, rare, traced)
    | st.none(),
)
batches = st.lists(row, min_size=1, max_size=5).map(
    lambda rows: [(partition, offset, *rest) for offset, (partition, *rest) in enumerate(rows, 127)]
)
leaders = st.builds(Leaders, st.sampled_from([{}, {0: "b2:9092", 1: "b3:9092"}]), st.none() | st.just("C1"))
ROWS = [(0, offset, 1, 3, None, [("traceparent", PARENT)]) for offset in (1, 2)]
ODD_IDS = [(0, offset, 1, 3, None, [("UNIQ_KEY", each)]) for offset, each in enumerate((b"a\nb", b"\xff"))]
RETRIED = [(*row[:-1], [("RECONSUME_TIME", b"2")]) for row in ROWS]
TEXT = [(0, 1, 1, 3, None, [("traceparent", PARENT.decode())])]


def _recorded(world, topic, rows, known):
    return world.hook.record_batch(topic, [row[:-1] for row in rows], [row[-1] for row in rows], known)


def _opened(world, topic, rows, known):
    messages = [
        _Message(topic, partition, offset, key, length, pairs or (), stored_ms, leaders=known)
        for partition, offset, stored_ms, length, key, pairs in rows
    ]
    return world.open(*messages, batch=True)


def _sorted_links(span):
    for link in span.links:
        link.attributes.sort(key=lambda attribute: attribute.key)
    return span


@given(
    st.sampled_from(["orders", "订单", "100%"]),
    batches,
    leaders,
    st.sampled_from(sorted(DIALECTS)),
    st.sampled_from([0, 3, 700]),
)
@example("orders", ODD_IDS, None, "5.5.0", 3)
@example("orders", RETRIED, None, "5.5.0", 3)
@example("orders", TEXT, None, "5.5.0", 3)
def test_recorded_batch_equals_the_span_of_the_same_batch(topic, rows, known, dialect, took_ms):
    world, other = _World(), _World()
    call = _recorded(world, topic, rows, known)
    if call is None:  # the state of one message's trace is its span's; only bytes are read here
        ((*_, pairs),) = rows
        assert "tracestate" in dict(pairs) or type(dict(pairs)["traceparent"]) is str
        return
    ours, lane = world.exported(call, took_ms)
    theirs, whole_lane = other.exported(_opened(other, topic, rows, known), took_ms)
    assert type(ours) is BatchSpan
    for one, another in zip(lane, whole_lane, strict=True):
        assert native_of([one], dialect) == native_of([another], dialect, encode_whole)
    written = spans_of(encode_spans([ours]).body)
    expected = spans_of(encode_by_opentelemetry([theirs]).SerializeToString())
    assert [_sorted_links(each) for each in written] == [_sorted_links(each) for each in expected]
    assert json.loads(ours.to_json()) == json.loads(theirs.to_json())


@pytest.mark.parametrize(
    "how", [{"code": ContextCode.FAILED}, {"code": ContextCode.EXCEPTION, "exception": ValueError("no")}]
)
def test_failed_batch_has_its_outcome_in_both_formats(how):
    world = _World()
    call = _recorded(world, "orders", ROWS, None)
    span, lane = world.exported(call, **how)
    ((_, _, body, _),), _ = native_of([lane[1]], "5.5.0")
    assert body.count(b"\x01false\x01") == 2
    assert spans_of(encode_spans([span]).body)[0].status.code == 2


def _an_event():
    world = World(records=True)
    hook = SendHook(tracing=world.tracing)
    hook.after(hook.before("orders", body=b"x", headers={"traceparent": SENT}), partition=0, offset=7)
    return world.spans()


@pytest.mark.parametrize(
    "make",
    [
        lambda: [test_sent._World().by_record(test_sent._Sending())[1]],
        _an_event,
        lambda: (world := _World()).exported(world.record(_Message()))[1],
        lambda: (world := _World()).exported(_recorded(world, "orders", [*ROWS, (0, 3, 1, 3, None, None)], None))[1],
    ],
)
def test_record_is_written_without_its_span_until_its_attributes_are_read(make):
    *starts, span = make()
    assert all(each.to_native("5.5.0") for each in starts)
    assert b"".join(span.to_otlp())
    assert bool(span.to_native("5.5.0")) is (make is not _an_event)
    span._attributes["mqtrace.group_name"] = "hidden"  # as redacting code does
    assert span.to_otlp() is span.to_native("5.5.0") is None
    ((_, _, body, _),), _ = native_of([span], "5.5.0")
    assert b"\x01hidden" in body
    assert b"hidden" in encode_spans([span]).body


def test_batch_that_a_handler_wrote_to_has_what_it_wrote():
    world = _World()
    call = _recorded(world, "orders", ROWS, None)
    call.span.set_attribute("order", 7)
    span, _ = world.exported(call)
    (written,) = spans_of(encode_spans([span]).body)
    assert {each.key for each in written.attributes} >= {"order", "mqtrace.request_id"}
    assert len(written.links) == 2


def test_batch_of_more_messages_than_a_span_has_links_needs_spans():
    assert _recorded(_World(), "orders", ROWS * 65, None) is None


def test_unsampled_batch_is_current_and_not_recorded():
    world = _World(sampler=ALWAYS_OFF)
    call = _recorded(world, "orders", ROWS, None)
    assert call.span.get_span_context().is_valid
    assert not call.span.get_span_context().trace_flags.sampled
    world.hook.after(call)
    world.ended.assert_empty()
