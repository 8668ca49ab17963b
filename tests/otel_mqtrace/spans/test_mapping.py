"""The table of the contract, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import INVALID_SPAN_CONTEXT, Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode, MessageType, TraceBean, TraceContext, TraceType, TransactionState
from otel_mqtrace.spans.mapping import OPERATIONS, cost_ms, share_attributes, span_attributes, trace_context_of
from otel_mqtrace.testing import RecordingExporter, recording_provider

_text = st.text(min_size=1, max_size=12)
_keys = st.lists(st.text("abc中🙂", min_size=1, max_size=4), min_size=1, max_size=3).map(" ".join)
_small = st.integers(min_value=0, max_value=2**40)
_beans = st.builds(
    TraceBean,
    topic=st.none() | _text,
    msg_id=st.none() | _text,
    offset_msg_id=st.none() | _text,
    tags=st.none() | _text,
    keys=st.none() | _keys,
    store_host=st.none() | _text,
    client_host=st.none() | _text,
    store_time_ms=st.none() | _small,
    retry_times=st.none() | _small,
    body_length=st.none() | _small,
    msg_type=st.none() | st.sampled_from(MessageType),
    transaction_id=st.none() | _text,
    transaction_state=st.none() | st.sampled_from(TransactionState),
    from_transaction_check=st.none() | st.booleans(),
)


@st.composite
def _contexts(draw):
    trace_type = draw(st.sampled_from(TraceType))
    before = trace_type is TraceType.SUB_BEFORE
    count = draw(st.integers(1, 5))
    beans = [draw(_beans) for _ in range(count)]
    if count > 1:  # several messages of one call always know their ids
        beans = [
            TraceBean(**{**{f: getattr(b, f) for f in TraceBean.__slots__}, "msg_id": f"id{i}"})
            for i, b in enumerate(beans)
        ]
    return TraceContext(
        trace_type=trace_type,
        timestamp_ms=draw(_small),
        region_id=draw(st.none() | _text),
        region_name=draw(st.none() | _text),
        group_name=draw(st.none() | _text),
        request_id=draw(st.none() | _text),
        cost_ms=None if before else draw(_small),
        success=None if before else draw(st.booleans()),
        context_code=None if before else draw(st.none() | st.sampled_from(ContextCode)),
        beans=tuple(beans),
    )


def _span_of(trace_ctx, *, extra_links=(), status=None):
    exporter = RecordingExporter()
    said = span_attributes(trace_ctx)
    operation = OPERATIONS[trace_ctx.trace_type]
    stamp_ns = trace_ctx.timestamp_ms * 1_000_000
    at_end = trace_ctx.trace_type is TraceType.SUB_AFTER
    span = (
        recording_provider(exporter)
        .get_tracer("t")
        .start_span(
            operation.span_name(None),
            kind=operation.kind,
            attributes=said.span,
            links=[*(Link(INVALID_SPAN_CONTEXT, own) for own in said.links), *extra_links],
            start_time=max(stamp_ns - 5, 0) if at_end else stamp_ns,
        )
    )
    if status is not None:
        span.set_status(Status(status))
    if trace_ctx.trace_type is TraceType.SUB_BEFORE:
        return span
    span.end(stamp_ns if at_end else stamp_ns + 7_000_000)
    return exporter.take()


@given(_contexts())
def test_a_trace_context_said_on_a_span_is_read_back_unchanged(trace_ctx):
    assert trace_context_of(_span_of(trace_ctx)) == trace_ctx


@given(_contexts())
def test_links_that_stand_for_no_message_are_no_beans(trace_ctx):
    stranger = Link(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1)))
    assert trace_context_of(_span_of(trace_ctx, extra_links=[stranger])) == trace_ctx


@pytest.mark.parametrize(
    "attributes",
    [{}, {semconv.MQTRACE_TRACE_TYPE: "Nonsense"}, {semconv.MQTRACE_TRACE_TYPE: 5}, {"http.method": "GET"}],
)
def test_a_span_that_is_no_record_is_none(attributes):
    exporter = RecordingExporter()
    recording_provider(exporter).get_tracer("t").start_span("x", attributes=attributes).end()
    assert trace_context_of(exporter.take()) is None


@pytest.mark.parametrize("trace_type", ["Pub", "EndTransaction", "Recall"])
def test_only_a_process_span_has_a_half_before_its_end(trace_type):
    tracer = recording_provider(RecordingExporter()).get_tracer("t")
    assert trace_context_of(tracer.start_span("x", attributes={semconv.MQTRACE_TRACE_TYPE: trace_type})) is None
    started = tracer.start_span("x", attributes={semconv.MQTRACE_TRACE_TYPE: "Sub", semconv.MQTRACE_SUCCESS: True})
    half = trace_context_of(started)
    assert half.trace_type is TraceType.SUB_BEFORE
    assert (half.success, half.cost_ms, half.context_code) == (None, None, None)


@pytest.mark.parametrize(("status", "success"), [(StatusCode.ERROR, False), (StatusCode.OK, True), (None, True)])
def test_a_span_that_does_not_say_its_success_is_judged_by_its_status(status, success):
    """Spans of other writers carry a status and times only."""
    record = trace_context_of(_span_of(TraceContext(trace_type=TraceType.PUB, timestamp_ms=10), status=status))
    assert (record.success, record.cost_ms, record.timestamp_ms) == (success, 7, 10)


def test_foreign_values_under_our_names_read_as_absent():
    """A wrong type never raises; it is simply not there."""
    exporter = RecordingExporter()
    wrong = {
        semconv.MQTRACE_TRACE_TYPE: "Pub",
        semconv.MQTRACE_RETRY_TIMES: "three",
        semconv.MQTRACE_MSG_TYPE: "?",
        semconv.MQTRACE_CONTEXT_CODE: 9,
        semconv.MESSAGING_MESSAGE_ID: 12,
        semconv.MESSAGING_MESSAGE_BODY_SIZE: True,
    }
    recording_provider(exporter).get_tracer("t").start_span("x", attributes=wrong).end()
    record = trace_context_of(exporter.take())
    assert record.beans == (TraceBean(),)
    assert record.context_code is None


def test_what_is_equal_for_all_messages_is_said_once():
    said = share_attributes([{"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1}])
    assert said.span == {"a": 1}
    assert said.links == ({"b": 2}, {"b": 3}, {})


@given(st.integers(0, 10**15), st.integers(0, 10**12), st.integers(1, 50))
def test_cost_is_whole_milliseconds_of_the_stamps_divided_by_the_messages(start_ns, elapsed_ns, messages):
    """Native stamps are milliseconds, so the cost is the difference of those, as RocketMQ computes it."""
    end_ns = start_ns + elapsed_ns
    assert cost_ms(start_ns, end_ns, messages) == (end_ns // 10**6 - start_ns // 10**6) // messages


def test_names_and_kinds_are_those_of_the_contract():
    assert {op.span_name("T"): op.kind for op in OPERATIONS.values()} == {
        "send T": SpanKind.PRODUCER,
        "process T": SpanKind.CONSUMER,
        "end_transaction T": SpanKind.CLIENT,
        "recall T": SpanKind.CLIENT,
    }


def test_a_span_that_answers_for_itself_is_asked():
    class Discreet(ReadableSpan):
        @property
        def attributes(self):
            return {**super().attributes, semconv.MQTRACE_KEYS: "***"}

    record = TraceContext(trace_type=TraceType.PUB, timestamp_ms=1, beans=(TraceBean(topic="orders", keys="secret"),))
    told = BoundedAttributes(attributes=span_attributes(record).span)
    (bean,) = trace_context_of(Discreet("send orders", attributes=told, start_time=1, end_time=2)).beans
    assert bean.keys == "***"
