"""Records of sends, of single events and of batches equal the spans of the same events, in both formats."""

import copy
import json
from dataclasses import dataclass, field
from operator import attrgetter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry import baggage, context, trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_by_opentelemetry
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.consume import ConsumeHook
from otel_mqtrace.hooks.send import UNKNOWN_BODY, SendHook
from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
from otel_mqtrace.model import ContextCode, MessageType
from otel_mqtrace.records.batch import BatchSpan
from otel_mqtrace.records.span import EventSpan
from otel_mqtrace.wire.native import DIALECTS
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans
from tests.otel_mqtrace.records.test_handled import PARENT, _Message, _World, failures, leaders, texts
from tests.support.opentelemetry_release import needs_sdk
from tests.support.programs import run_in_child
from tests.support.record_equality import Leaders, World, assert_equal, native_of, spans_of

keys = st.none() | st.binary(max_size=8) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
bodies = st.none() | st.binary(max_size=300) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
sent_headers = st.none() | st.lists(
    st.tuples(st.sampled_from(["TAGS", "KEYS", "other"]), texts | st.none()), max_size=3
)


class _SendWorld(World):
    """Two hooks that differ in nothing: the ids, the clock and the request ids of both count from one."""

    def __init__(self, client_id=None, *, records=True, **options):
        super().__init__(records=records, **options)
        info = ClientInfo.of_kafka({"bootstrap.servers": "b1:9092", "client.id": client_id}, group_name=None)
        self.hook = SendHook(tracing=self.tracing, info=info)

    def by_record(self, sending):
        recorded = self.hook.record(sending.topic, sending.body, sending.key, sending.headers, sending.leaders, None)
        if recorded is None:
            return None
        sent, pairs = recorded
        self.clock.advance(ms=sending.took_ms)
        if sending.error is None:
            self.hook.end_record(sent, sending.partition, sending.offset)
        else:
            self.hook.after(self.hook.reopen(sent), error=sending.error, description="Local: Message timed out")
        return pairs

    def sent(self, **sending):
        self.by_record(_Sending(**sending))
        return self.ended.take()

    def by_span(self, sending):
        call = self.hook.before(sending.topic, body=sending.body, key=sending.key, headers=sending.headers)
        self.clock.advance(ms=sending.took_ms)
        if sending.error is not None:
            self.hook.after(call, error=sending.error, description="Local: Message timed out")
            return call.headers
        self.hook.after(
            call,
            partition=sending.partition,
            offset=sending.offset,
            store_host=sending.leaders.of(sending.topic, sending.partition),
            cluster_id=sending.leaders.cluster_id,
        )
        return call.headers


@dataclass
class _Sending:
    topic: str = "orders"
    body: object = b"an order"
    key: object = None
    headers: list | None = None
    partition: int = 0
    offset: int = 7
    took_ms: int = 5
    leaders: Leaders = field(default_factory=lambda: Leaders({0: "b2:9092"}, "C1"))
    error: str | None = None


sendings = st.builds(
    _Sending,
    topic=st.sampled_from(["orders", "a-b.c", "订单", "100%", "odd\x01topic", "%s"]),
    body=bodies,
    key=keys,
    headers=sent_headers,
    partition=st.integers(0, 3),
    offset=st.sampled_from([0, 127, 128, 1 << 14, (1 << 42) + 1, (1 << 63) - 1]),
    took_ms=st.sampled_from([0, 1, 300, 1 << 31]),
    leaders=leaders,
    error=st.none() | st.just("_MSG_TIMED_OUT"),
)


@given(sendings, st.none() | st.just("shop"), st.booleans(), st.sampled_from(sorted(DIALECTS)))
def test_recorded_send_equals_the_span_of_the_same_send(sending, client_id, has_parent, dialect):
    recorded, other, headers = _SendWorld(client_id), _SendWorld(client_id, records=False), []
    for world, send in ((recorded, recorded.by_record), (other, other.by_span)):
        handler = world.tracing.tracer.start_span("handler") if has_parent else trace.INVALID_SPAN
        with trace.use_span(handler, end_on_exit=False):
            headers.append(send(sending))
    assert headers[0] == headers[1]
    assert_equal(recorded, other, dialect, expect_records=sending.error is None)


@pytest.mark.parametrize(
    "copied", [copy.copy, pytest.param(copy.deepcopy, marks=needs_sdk(40, "attributes cannot be copied deeply"))]
)
def test_copy_of_a_span_is_equal(copied):
    world = _SendWorld(resource=Resource({"service.name": "shop"}))
    with trace.use_span(world.tracing.tracer.start_span("handler")):
        span = world.sent(key=b"k")
    assert json.loads(copied(span).to_json()) == json.loads(span.to_json())


@needs_sdk(40, "its encoder writes other flags and resources")
@pytest.mark.parametrize("name", ["_attributes", "_name", "_resource"])
def test_values_a_processor_assigned_are_exported(name):
    span = _SendWorld().sent()
    assigned = {"_attributes": {"only": "this"}, "_name": "renamed", "_resource": Resource({"service.name": "other"})}
    setattr(span, name, assigned[name])
    assert ExportTraceServiceRequest.FromString(encode_spans([span]).body) == encode_by_opentelemetry([span])


def test_random_ids_are_unique():
    hook = SendHook(tracing=Tracing.create(tracer_provider=TracerProvider(shutdown_on_exit=False)))
    drawn = [hook.record("orders", b"x", None, None, None, None)[0].ids for _ in range(100)]
    assert len(set(drawn)) == 100


@pytest.mark.parametrize(
    "given",
    [[("traceparent", b"x")], [("UNIQ_KEY", b"x")], [("DELAY", b"3")], [("Baggage", b"a=b")], {"uniq_key": b"x"}],
)
def test_send_with_trace_headers_needs_a_span(given):
    assert _SendWorld().by_record(_Sending(headers=given)) is None


def test_forked_child_ends_no_send_of_its_parent():
    world = _SendWorld()
    sent, _ = world.hook.record("orders", b"x", None, None, None, None)

    def end_both_ways():
        world.hook.end_record(sent, 0, 1)
        world.hook.after(world.hook.reopen(sent), error="X")
        return len(world.ended.take_all())

    assert run_in_child(end_both_ways) == 0
    world.hook.end_record(sent, 0, 1)
    assert len(world.ended.take_all()) == 1


SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
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
above = trace.NonRecordingSpan(trace.SpanContext(5, 6, is_remote=False, trace_flags=trace.TraceFlags(1)))
currents = st.sampled_from([{}, baggage.set_baggage("tenant", "7", {}), trace.set_span_in_context(above, {})])


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
    assert call.span.raw_attribute("messaging.destination.name") == "orders"
    parts = attrgetter("context", "parent", "name", "kind", "start_time", "resource", "instrumentation_scope")
    known = parts(call.span)
    written(call.span)
    hook.after(call, partition=0, offset=7)
    (span,) = world.spans()
    assert not isinstance(span, EventSpan)
    assert parts(span) == known
    assert span.attributes["messaging.kafka.offset"] == 7
    assert "order" in span.attributes or span.events[0].name == "paid"


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
ROWS = [(0, offset, 1, 3, None, [("traceparent", PARENT)]) for offset in (1, 2)]
ODD_IDS = [(0, offset, 1, 3, None, [("UNIQ_KEY", each)]) for offset, each in enumerate((b"a\nb", b"\xff"))]
RETRIED = [(*row[:-1], [("RECONSUME_TIME", b"2")]) for row in ROWS]
TEXT = [(0, 1, 1, 3, None, [("traceparent", PARENT.decode())])]
NAMED = [(0, offset, 1, 3, None, [("UNIQ_KEY", b"A%d" % offset)]) for offset in (1, 2)]


def _recorded(world, topic, rows, known):
    return world.hook.record_batch(topic, [row[:-1] for row in rows], [row[-1] for row in rows], known)


def _opened(world, topic, rows, known):
    messages = [
        _Message(topic, partition, offset, key, length, pairs or (), stored_ms, leaders=known)
        for partition, offset, stored_ms, length, key, pairs in rows
    ]
    return world.open(*messages, batch=True)


@given(
    st.sampled_from(["orders", "订单", "100%"]),
    batches,
    leaders,
    st.sampled_from(sorted(DIALECTS)),
    st.sampled_from([0, 3, 700]),
    st.just({}) | failures,
)
@example("orders", ODD_IDS, None, "5.5.0", 3, {})
@example("orders", RETRIED, None, "5.5.0", 3, {})
@example("orders", TEXT, None, "5.5.0", 3, {})
@example("orders", [ROWS[0], (0, 2, 1, 3, None, [("KEYS", b"k")])], None, "5.5.0", 3, {})
@example("odd\x01topic", NAMED, None, "5.5.0", 3, {})
def test_recorded_batch_equals_the_span_of_the_same_batch(topic, rows, known, dialect, took_ms, how):
    recorded, other = _World(), _World(records=False)
    call = _recorded(recorded, topic, rows, known)
    if call is None:  # the state of one message's trace is its span's; only bytes are read here
        ((*_, pairs),) = rows
        assert "tracestate" in dict(pairs) or type(dict(pairs)["traceparent"]) is str
        return
    assert type(call.span) is BatchSpan
    recorded.end(call, took_ms, **how)
    other.end(_opened(other, topic, rows, known), took_ms, **how)
    assert_equal(recorded, other, dialect, expect_records=not how)


ODD_PARENTS = (
    b"00-" + b"a" * 33 + b"-" + b"b" * 15 + b"-01",  # dashes elsewhere
    b"00-" + b"a" * 14 + b"--" + b"a" * 16 + b"-" + b"b" * 16 + b"-01",
    b"00-" + b"a" * 32 + b"-" + b"0" * 16 + b"-01",  # no id
    b"00-" + b"0" * 32 + b"-" + b"b" * 16 + b"-01",
    *(PARENT[:9] + odd + PARENT[10:] for odd in (b"g", b"A")),
    b"ff" + PARENT[2:],  # no version
)


@pytest.mark.parametrize("parents", [*((PARENT, each) for each in ODD_PARENTS), (PARENT[:-1], b"1" + PARENT)])
def test_recorded_batch_with_an_odd_trace_header_equals_its_span(parents):
    rows = [(0, offset, 1, 3, None, [("traceparent", each)]) for offset, each in enumerate(parents)]
    recorded, other = _World(), _World(records=False)
    recorded.end(_recorded(recorded, "orders", rows, None))
    other.end(_opened(other, "orders", rows, None))
    assert_equal(recorded, other, "5.5.0", expect_records=True)


def _an_event():
    world = World(records=True)
    hook = SendHook(tracing=world.tracing)
    hook.after(hook.before("orders", body=b"x", headers={"traceparent": SENT}), partition=0, offset=7)
    return world.spans()


@pytest.mark.parametrize(
    "make",
    [
        lambda: [_SendWorld().sent()],
        _an_event,
        lambda: (world := _World()).exported(world.record(_Message()))[1],
        lambda: (world := _World()).exported(_recorded(world, "orders", [*ROWS, (0, 3, 1, 3, None, None)], None))[1],
    ],
)
def test_attribute_that_a_processor_changed_is_exported(make):
    *_starts, span = make()
    span._attributes["mqtrace.group_name"] = "hidden"  # as redacting code does
    ((body, _),), _ = native_of([span], "5.5.0")
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
