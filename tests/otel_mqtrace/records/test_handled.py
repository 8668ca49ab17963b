"""A recorded handling equals the span of the same handling, at its start and end, in both formats; its parent is read."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from opentelemetry.trace import SpanContext, StatusCode

from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.consume import ConsumeHook
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.model import ContextCode
from otel_mqtrace.records.handled import HandledSpan
from otel_mqtrace.spans.mapping import readable_span
from otel_mqtrace.wire.native import DIALECTS, decode_body
from tests.support.record_equality import Lane, Leaders, World, assert_equal, native_of

SENDER = SpanContext(3, 4, is_remote=True)
PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03"
texts = st.binary(max_size=6) | st.sampled_from([b"k1 k2", b"", b" ", b"a\x01b", "订单".encode()])
headers = st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "other"]), texts | st.none(), max_size=4).map(
    lambda fields: list(fields.items())
)
leaders = st.builds(Leaders, st.sampled_from([{}, {0: "b2:9092", 1: "b3:9092"}]), st.none() | st.just("C1"))


@dataclass
class _Message:
    topic: str = "orders"
    partition: int = 0
    offset: int = 7
    key: bytes | None = None
    body_length: int | None = 8
    headers: tuple = (("traceparent", PARENT), ("UNIQ_KEY", b"0A"))
    timestamp_ms: int | None = 1_700_000_000_000
    took_ms: int = 5
    leaders: Leaders | None = None


messages = st.builds(
    _Message,
    topic=st.sampled_from(["orders", "订单", "100%", "%s", "odd\x01topic"]),
    partition=st.integers(0, 3),
    offset=st.sampled_from([0, 127, 1 << 14, (1 << 42) + 1]),
    key=st.none() | st.binary(max_size=8),
    body_length=st.none() | st.integers(0, 1 << 20),
    headers=st.tuples(st.booleans(), headers).map(lambda both: [("traceparent", PARENT)] * both[0] + both[1]),
    timestamp_ms=st.none() | st.integers(0, 1 << 41),
    took_ms=st.sampled_from([0, 1, 300]),
    leaders=leaders,
)


class _World(World):
    def __init__(self, *, records=True, **options):
        super().__init__(records=records, **options)
        info = ClientInfo.of_kafka({"bootstrap.servers": "b1:9092", "client.id": "shop"}, group_name="billing")
        self.hook = ConsumeHook(tracing=self.tracing, info=info)

    def record(self, message):
        return self.hook.record(
            message.topic,
            (message.partition, message.offset, message.timestamp_ms, message.body_length, message.key),
            message.headers,
            message.leaders,
        )

    def open(self, *messages, batch=False):
        received = [
            IncomingMessage(
                each.topic,
                each.partition,
                each.offset,
                each.key,
                each.body_length or 0,
                each.body_length is None,
                each.headers,
                each.timestamp_ms,
                each.leaders and each.leaders.of(each.topic, each.partition),
                each.leaders and each.leaders.cluster_id,
            )
            for each in messages
        ]
        (call,) = self.hook.before(received, batch=batch)
        return call

    def end(self, call, took_ms=5, **how):
        self.clock.advance(ms=took_ms)
        self.hook.after(call, **how)

    def exported(self, call, took_ms=5, **how):
        self.end(call, took_ms, **how)
        (span,) = self.spans()
        return span, self.lane.take_all()


failures = st.sampled_from([{"exception": ValueError("no such order")}, {"code": ContextCode.SUCCESS, "error": "odd"}])
failures |= st.sampled_from([{"code": ContextCode.FAILED}, {"code": "RETURNNULL"}])


@given(messages, st.just({}) | failures, st.sampled_from(sorted(DIALECTS)))
def test_recorded_handling_equals_the_span_of_the_same_handling(message, how, dialect):
    recorded, other = _World(), _World(records=False)
    call = recorded.record(message)
    assert type(call.span) is HandledSpan
    recorded.end(call, message.took_ms, **how)
    other.end(other.open(message), message.took_ms, **how)
    assert_equal(recorded, other, dialect, expect_records=not how)


def test_start_that_finds_no_room_is_counted_under_its_group():
    started = _World().record(_Message()).span.record
    processor = MqTraceSpanProcessor(Lane(), max_queue_size=1, max_export_batch_size=1, background=False)
    for _ in range(2):
        processor.offer_record_start(started)
    (row,) = processor.ledger()["rows"]
    assert (row["group"], row["cause"], row["count"]) == ("billing", "queue_full", 1)


class _Reading(NativeFileSpanExporter):
    """An application's exporter, derived from one that takes records."""

    def export(self, spans, timeout_millis=None):
        self.names = [span.name for span in spans]
        return super().export(spans, timeout_millis)


def test_start_reaches_an_export_of_the_application_as_a_span(tmp_path):
    started = _World().record(_Message()).span.record
    exporter = _Reading(directory=tmp_path)
    processor = MqTraceSpanProcessor(exporter, background=False)
    processor.offer_record_start(started)
    assert processor.force_flush()
    assert exporter.names == ["process orders"]
    assert processor.stats()["_Reading"]["exported"] == 1


@pytest.mark.parametrize(
    ("write", "read"),
    [
        (lambda span: span.set_attribute("order", 7), lambda span: span.attributes["order"] == 7),
        (lambda span: span.set_attributes({"order": 7}), lambda span: span.attributes["order"] == 7),
        (lambda span: span.add_event("paid"), lambda span: span.events[0].name == "paid"),
        (lambda span: span.add_link(SENDER), lambda span: span.links[-1].context == SENDER),
        (lambda span: span.update_name("bill"), lambda span: span.name == "bill"),
        (lambda span: span.set_status(StatusCode.OK), lambda span: span.status.is_ok),
        (lambda span: span.record_exception(ValueError("odd")), lambda span: span.events[0].name == "exception"),
    ],
)
def test_first_write_of_the_handler_makes_an_sdk_span(write, read):
    world = _World()
    call = world.record(_Message())
    assert trace.get_current_span(call.otel_ctx) is call.span
    assert call.span._attributes["messaging.kafka.offset"] == 7
    write(call.span)
    assert read(call.span)
    span, lane = world.exported(call)
    assert read(span)
    assert span.attributes["mqtrace.success"] is True
    in_lane = list(map(readable_span, lane))
    assert span.context.span_id == in_lane[0].context.span_id
    assert len({request_id for each in in_lane if (request_id := each.attributes["mqtrace.request_id"])}) == 1


def test_write_or_end_after_the_end_changes_nothing(caplog):
    world = _World()
    call = world.record(_Message())
    span, _ = world.exported(call)
    call.span.set_attribute("order", 7)
    assert "ended span" in caplog.text
    assert call.span.get_span_context() == span.context
    assert not call.span.is_recording()
    assert "order" not in span.attributes
    world.hook.after(call)
    world.hook.after(call, code=ContextCode.FAILED)
    world.ended.assert_empty()


def test_trace_state_and_baggage_of_a_message_are_current():
    recorded, other = _World(), _World(records=False)
    message = _Message(headers=(("traceparent", PARENT), ("tracestate", b"vendor=x"), ("baggage", b"order=42")))
    call = recorded.record(message)
    assert baggage.get_baggage("order", call.otel_ctx) == "42"
    assert call.span.get_span_context().trace_state == {"vendor": "x"}
    recorded.end(call)
    other.end(other.open(message))
    assert_equal(recorded, other, "5.5.0", expect_records=True)


def test_handling_over_the_limit_is_a_time_out():
    world = _World()
    span, _ = world.exported(world.record(_Message()), took_ms=16 * 60_000)
    assert span.attributes["mqtrace.context_code"] == "TIME_OUT"


@pytest.mark.parametrize("name", ["Tracestate", "Traceparent", "DELAY", "uniq_key", "RECONSUME_TIME"])
def test_headers_that_need_more_than_a_record_get_a_span(name):
    assert _World().record(_Message(headers=((name, b"x=1"),))) is None


def test_message_received_within_a_span_gets_a_span():
    world = _World()
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))):
        assert world.record(_Message()) is None


@pytest.mark.parametrize(("status", "is_success"), [(StatusCode.UNSET, True), (StatusCode.ERROR, False)])
@pytest.mark.parametrize("form", ["record", "open"])
def test_span_that_the_handler_ended_is_equal_in_both_formats(form, status, is_success):
    world = _World()
    call = getattr(world, form)(_Message())
    call.span.set_status(status, "card refused")
    call.span.end(call.start_ns + 5_000_000)
    span, exported = world.exported(call, code=ContextCode.EXCEPTION, exception=ValueError("after the end"))
    [(body, _)], refused = native_of(exported, "5.5.0")
    record = decode_body(body).contexts[-1]
    code = ContextCode.SUCCESS if is_success else ContextCode.FAILED
    assert (record.success, record.context_code, refused) == (is_success, code, {})
    assert (span.attributes["mqtrace.success"], span.attributes["mqtrace.context_code"]) == (is_success, code.name)
    assert span.status.description == (None if is_success else "card refused")
