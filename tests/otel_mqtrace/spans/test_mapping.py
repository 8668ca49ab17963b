"""Trace contexts in span attributes, started spans, and the processor's settings."""

from functools import partial
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, compute_cost_ms, share_attributes, trace_context_of
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.testing import RecordingExporter, recording_provider
from tests.support.lanes import Scripted
from tests.support.native_spans import span_attributes
from tests.support.strategies import fields_of

_text = st.text(min_size=1, max_size=12)
_keys = st.lists(st.text("abc中🙂", min_size=1, max_size=4), min_size=1, max_size=3).map(" ".join)
_small = st.integers(min_value=0, max_value=2**40)
_beans = fields_of(TraceBean, _text, _small, keys=st.none() | _keys)


@st.composite
def _contexts(draw):
    trace_type = draw(st.sampled_from(TraceType))
    beans = draw(st.lists(_beans, min_size=1, max_size=5))
    if len(beans) > 1:  # several messages of one call always know their ids
        beans = [bean._replace(msg_id=f"id{number}") for number, bean in enumerate(beans)]
    own = {"timestamp_ms": _small, "cost_ms": _small, "success": st.booleans(), "access_channel": st.none()}
    if trace_type is TraceType.SUB_BEFORE:
        own |= dict.fromkeys(("cost_ms", "success", "context_code"), st.none())
    fixed = {"trace_type": st.just(trace_type), "beans": st.just(tuple(beans))}
    return draw(fields_of(TraceContext, _text, _small, **own, **fixed))


_ENDED = RecordingExporter()
_TRACER = recording_provider(_ENDED).get_tracer("t")


def _span_of(trace_ctx, *, extra_links=(), status=None):
    attributes, of_links = span_attributes(trace_ctx)
    operation = OPERATIONS[trace_ctx.trace_type]
    stamp_ns = trace_ctx.timestamp_ms * 1_000_000 + 999_999
    at_end = trace_ctx.trace_type is TraceType.SUB_AFTER
    span = _TRACER.start_span(
        operation.span_name(None),
        kind=operation.kind,
        attributes=attributes,
        links=[*(Link(INVALID_SPAN_CONTEXT, own) for own in of_links), *extra_links],
        start_time=max(stamp_ns - 7_000_000, 0) if at_end else stamp_ns,
    )
    if status is not None:
        span.set_status(Status(status))
    if trace_ctx.trace_type is TraceType.SUB_BEFORE:
        return span
    span.end(stamp_ns if at_end else stamp_ns + 7_000_000)
    return _ENDED.take()


def _ended(attributes):
    return ReadableSpan("x", attributes=attributes, start_time=1, end_time=2)


@given(_contexts())
def test_trace_context_on_a_span_is_read_back_unchanged(trace_ctx):
    stranger = Link(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1)))  # stands for no message
    assert trace_context_of(_span_of(trace_ctx)) == trace_ctx
    assert trace_context_of(_span_of(trace_ctx, extra_links=[stranger])) == trace_ctx


@pytest.mark.parametrize(
    "attributes",
    [{}, {semconv.MQTRACE_TRACE_TYPE: "Nonsense"}, {semconv.MQTRACE_TRACE_TYPE: 5}, {"http.method": "GET"}],
)
def test_span_without_a_trace_type_has_no_trace_context(attributes):
    assert trace_context_of(_ended(attributes)) is None


@pytest.mark.parametrize("trace_type", ["Pub", "EndTransaction", "Recall", "Sub"])
def test_open_span_has_a_trace_context_if_it_is_a_process_span(trace_type):
    attributes = {semconv.MQTRACE_TRACE_TYPE: trace_type, semconv.MQTRACE_SUCCESS: True}
    half = trace_context_of(ReadableSpan("x", attributes=attributes, start_time=0))
    expected = TraceContext(trace_type=TraceType.SUB_BEFORE, timestamp_ms=0, beans=(TraceBean(),))
    assert half == (expected if trace_type == "Sub" else None)


@pytest.mark.parametrize(("status", "success"), [(StatusCode.ERROR, False), (StatusCode.OK, True), (None, True)])
@pytest.mark.parametrize("trace_type", [TraceType.PUB, TraceType.SUB_AFTER])
def test_success_of_a_foreign_span_is_its_status(trace_type, status, success):
    """Spans of other writers carry a status and times only."""
    record = trace_context_of(_span_of(TraceContext(trace_type=trace_type, timestamp_ms=10), status=status))
    assert (record.success, record.cost_ms, record.timestamp_ms) == (success, 7, 10)
    is_failed_handling = trace_type is TraceType.SUB_AFTER and not success
    assert record.context_code is (ContextCode.FAILED if is_failed_handling else None)


def test_attribute_of_another_type_is_read_as_absent():
    wrong = {
        semconv.MQTRACE_TRACE_TYPE: "Pub",
        semconv.MQTRACE_RETRY_TIMES: "three",
        semconv.MQTRACE_MSG_TYPE: "?",
        semconv.MQTRACE_CONTEXT_CODE: 9,
        semconv.MESSAGING_MESSAGE_ID: 12,
        semconv.MESSAGING_MESSAGE_BODY_SIZE: True,
        semconv.MQTRACE_KEYS: 5,
    }
    record = trace_context_of(_ended(wrong))
    assert record.beans == (TraceBean(),)
    assert record.context_code is None


def test_values_equal_for_all_messages_are_on_the_span_only():
    shared, of_links = share_attributes([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1}])
    assert shared == {"a": 1}
    assert of_links == [{"b": 2}, {"b": 3}, {}]


@given(st.integers(0, 10**15), st.integers(0, 10**12), st.integers(1, 50))
def test_cost_is_the_whole_milliseconds_between_the_stamps_per_message(start_ns, elapsed_ns, messages):
    """Native stamps are milliseconds, so the cost is the difference of those, as RocketMQ computes it."""
    end_ns = start_ns + elapsed_ns
    assert compute_cost_ms(start_ns, end_ns, messages) == (end_ns // 10**6 - start_ns // 10**6) // messages


def test_span_names_and_kinds_are_those_of_the_contract():
    of_clients = dict.fromkeys(("end_transaction T", "recall T"), SpanKind.CLIENT)
    expected = {"send T": SpanKind.PRODUCER, "process T": SpanKind.CONSUMER, **of_clients}
    assert {op.span_name("T"): op.kind for op in OPERATIONS.values()} == expected


def test_attributes_of_a_span_subclass_are_used():
    class Discreet(ReadableSpan):
        @property
        def attributes(self):
            return {**super().attributes, semconv.MQTRACE_KEYS: "***"}

    record = TraceContext(trace_type=TraceType.PUB, timestamp_ms=1, beans=(TraceBean(topic="orders", keys="secret"),))
    attributes = BoundedAttributes(attributes=span_attributes(record)[0])
    (bean,) = trace_context_of(Discreet("send orders", attributes=attributes, start_time=1, end_time=2)).beans
    assert bean.keys == "***"


def test_started_spans_are_offered_as_snapshots_to_exporters_of_starts():
    provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
    starts, plain = RecordingExporter(), Scripted()
    starts.exports_starts, starts.wants = True, lambda each: each.attributes.get("mine", False)
    processor = MqTraceSpanProcessor(starts, plain, background=False)
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("t")
    stranger = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))
    under = trace.set_span_in_context(trace.NonRecordingSpan(stranger))
    live = tracer.start_span("a", under, SpanKind.CLIENT, {"mine": True, "x": 1}, [Link(stranger)])
    live.set_attribute("x", 2)
    live.end()
    tracer.start_span("b").end()
    processor.force_flush()
    first, second = starts.take_all()
    assert (first.end_time, dict(first.attributes)) == (None, {"mine": True, "x": 1})
    assert not hasattr(first, "set_attribute")
    parts = attrgetter("name", "context", "parent", "kind", "links", "start_time", "resource", "instrumentation_scope")
    assert parts(first) == parts(second)
    assert (second.end_time is not None, second.attributes["x"]) == (True, 2)
    assert plain.names == ["a", "b"]
    assert [lane.stats()["offered"] for lane in processor.lanes] == [2, 2]  # one span twice; two spans once


def test_default_settings_are_those_of_the_contract():
    settings = MqTraceSpanProcessor(Scripted()).settings
    assert (settings.export_timeout_millis, settings.shutdown_timeout_millis) == (30_000, 30_000)
    assert (_batching(settings), settings.drop_policy) == ((2048, 100, 500, "arrival"), "newest")


def _batching(settings):
    return settings.max_queue_size, settings.max_export_batch_size, settings.schedule_delay_millis, settings.linger_from


@pytest.mark.parametrize(
    ("preset", "given", "expected"),
    [
        ("rocketmq4", {}, (1024, 100, 500, "arrival")),
        ("rocketmq4", {"max_queue_size": 50}, (50, 50, 500, "arrival")),
        ("rocketmq5", {}, (2048, 10, 5000, "last_batch")),
        ("rocketmq5", {"max_export_batch_size": None}, (2048, 10, 5000, "last_batch")),
        ("rocketmq5", {"max_export_batch_size": 50}, (2048, 20, 5000, "last_batch")),  # traceMsgBatchNum's bound
    ],
)
def test_preset_has_the_settings_of_its_rocketmq_generation(preset, given, expected):
    """The numbers and the flush rule of AsyncTraceDispatcher before and since 5.3.1."""
    assert _batching(MqTraceSpanProcessor.preset(preset, Scripted(), **given).settings) == expected


def test_preset_of_the_environment_is_between_its_other_names_and_opentelemetrys(monkeypatch):
    monkeypatch.setenv("MQTRACE_PRESET", "rocketmq5")
    monkeypatch.setenv("MQTRACE_LINGER_MS", "50")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "300")
    assert _batching(MqTraceSpanProcessor(Scripted()).settings) == (2048, 10, 50, "last_batch")
    assert MqTraceSpanProcessor(Scripted(), max_export_batch_size=50).settings.max_export_batch_size == 50
    assert MqTraceSpanProcessor.preset("rocketmq4", Scripted()).settings.max_export_batch_size == 100


def test_unknown_preset_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="rocketmq4, rocketmq5"):
        MqTraceSpanProcessor.preset("rocketmq6", Scripted())


@pytest.mark.parametrize("wrong", ["soon", "1" * 5_000])
def test_environment_is_used_without_arguments(monkeypatch, caplog, wrong):
    monkeypatch.setattr("otel_mqtrace.config._warned", set())
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "300")
    monkeypatch.setenv("OTEL_BSP_EXPORT_TIMEOUT", "7000")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", wrong)
    monkeypatch.setenv("MQTRACE_QUEUE_SIZE", "400")
    monkeypatch.setenv("MQTRACE_LINGER_MS", "50")
    monkeypatch.setenv("MQTRACE_SHUTDOWN_TIMEOUT_MS", "9000")
    monkeypatch.setenv("MQTRACE_DROP_POLICY", "oldest")
    MqTraceSpanProcessor(Scripted())
    settings = MqTraceSpanProcessor(Scripted(), schedule_delay_millis=70).settings
    assert (settings.max_queue_size, settings.export_timeout_millis, settings.schedule_delay_millis) == (400, 7000, 70)
    assert (settings.shutdown_timeout_millis, settings.drop_policy) == (9000, "oldest")
    (warning,) = caplog.messages
    assert warning.startswith(
        f"mqtrace: OTEL_BSP_SCHEDULE_DELAY = {wrong!r}: a number of milliseconds above 0 was expected"
    )
    assert warning.endswith("the default is 500")


def test_batch_size_fits_the_queue_size_of_the_environment(monkeypatch):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    assert MqTraceSpanProcessor(Scripted()).settings.max_export_batch_size == 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_queue_size": 0},
        {"max_queue_size": "many"},
        {"max_export_batch_size": 11, "max_queue_size": 10},
        {"schedule_delay_millis": 0},
        {"export_timeout_millis": float("nan")},
        {"shutdown_timeout_millis": float("inf")},
        {"drop_policy": "random"},
        {"drop_policy": ["newest"]},
        {"on_drop": 3},
        {"ledger_dir": 3},
        {"meter_provider": "metrics"},
        {"clock": 3},
    ],
    ids=repr,
)
@pytest.mark.parametrize("preset", [None, "rocketmq4", "rocketmq5"])
def test_wrong_value_in_code_is_refused_by_its_argument(wrong, preset, caplog):
    if preset == "rocketmq5" and len(wrong) == 2:
        wrong = {"max_export_batch_size": 11, "max_queue_size": 9}
    make = MqTraceSpanProcessor if preset is None else partial(MqTraceSpanProcessor.preset, preset)
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} must "):
        make(Scripted(), **wrong)
    assert caplog.records == []


@pytest.mark.parametrize("wrong", [None, "mqtrace_native", Scripted, [Scripted()]])
def test_what_is_no_exporter_object_is_refused(wrong):
    with pytest.raises(ValueError, match=r"^exporters must be span exporters, as objects, not \("):
        MqTraceSpanProcessor(wrong)


@pytest.mark.parametrize(
    "name", ["messaging.consumer.group.name", "messaging.kafka.consumer.group", "messaging.rocketmq.client_group"]
)
def test_group_is_read_from_the_attributes_of_the_conventions(name):
    assert trace_context_of(_ended({semconv.MQTRACE_TRACE_TYPE: "Sub", name: "billing"})).group_name == "billing"
