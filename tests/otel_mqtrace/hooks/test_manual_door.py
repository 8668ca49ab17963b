"""SendHook and ConsumeHook for any other client, and the wall between our mistakes and the application."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextvars import copy_context

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_mqtrace import ConsumeHook, MqTraceInstrumentor, SendHook
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks import guard, transaction
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.outcome import Handling
from otel_mqtrace.hooks.propagation import header_text, index_headers, pairs_of, propagator_in_force, replace_headers
from otel_mqtrace.hooks.scope import BlockScope, PollScope
from otel_mqtrace.hooks.tracing import ClientInfo, Tracing, host_and_port
from otel_mqtrace.hooks.transaction import TransactionHook
from otel_mqtrace.model import ContextCode, TransactionState
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import ManualClock, RecordingExporter, recording_provider


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def exporter():
    kept = RecordingExporter()
    yield kept
    kept.assert_empty()


@pytest.fixture
def tracing(clock, exporter):
    return Tracing.create(
        settings=Settings(), tracer_provider=recording_provider(exporter, fixed_ids=True), clock=clock
    )


def test_a_message_goes_through_both_doors(tracing, clock, exporter):
    send = SendHook(system="mybroker", group_name="shop", servers="broker:9000", tracing=tracing)
    consume = ConsumeHook(system="mybroker", group_name="billing", servers="broker:9000", tracing=tracing)
    call = send.before("orders", body=b"abc", headers=[("KEYS", b"k1 k2")])
    clock.advance(ms=12)
    send.after(call, partition=3, offset=42, store_host="node-2:9000")
    clock.advance(ms=5)
    message = IncomingMessage(topic="orders", partition=3, offset=42, headers=call.headers, body_length=3)
    (processing,) = consume.before([message])
    clock.advance(ms=7)
    consume.after(processing, code=ContextCode.FAILED)
    sent, processed = trace_context_of(exporter.take()), exporter.take()
    received = trace_context_of(processed)
    assert (sent.timestamp_ms, sent.cost_ms, sent.success) == (1_700_000_000_000, 12, True)
    assert (sent.beans[0].offset_msg_id, sent.beans[0].store_host) == ("orders-3@42", "node-2:9000")
    assert (received.timestamp_ms, received.cost_ms, received.success) == (1_700_000_000_024, 7, False)
    assert received.beans[0].msg_id == sent.beans[0].msg_id
    assert received.beans[0].keys == "k1 k2"
    assert processed.attributes["messaging.system"] == "mybroker"
    assert processed.parent.span_id == call.span_context.span_id


def test_a_span_ends_once_whoever_comes_second(tracing, exporter, caplog):
    """A delivery report and a closing producer may race: exactly one of them ends the span, without a complaint."""
    hook = SendHook(tracing=tracing)
    call = hook.before("orders")
    hook.after(call, partition=0, offset=1)
    with caplog.at_level(logging.WARNING):
        hook.after(call, error="abandoned")
    assert exporter.take().attributes["mqtrace.success"] is True
    assert caplog.records == []


def test_a_clock_that_steps_back_makes_no_negative_cost(tracing, clock, exporter):
    """The end is never before the start."""
    hook = SendHook(tracing=tracing)
    call = hook.before("orders")
    clock.advance(ms=-5)
    hook.after(call)
    assert exporter.take().attributes["mqtrace.cost_time"] == 0


def test_messages_of_several_topics_are_several_spans(tracing, exporter):
    hook = ConsumeHook(tracing=tracing)
    calls = hook.before([IncomingMessage(topic=name, partition=0, offset=n) for n, name in enumerate("abab")])
    assert [call.indexes for call in calls] == [(0, 2), (1, 3)]
    for call in calls:
        hook.after(call)
    assert [span.name for span in exporter.take_all()] == ["process a", "process b"]


class _Counting(CompositePropagator):
    extractions = 0

    def extract(self, carrier, context=None, getter=None):
        self.extractions += 1
        return super().extract(carrier, context, getter)


@pytest.mark.parametrize("ambient", [{}, {"mine": "1"}])
def test_headers_are_extracted_once(tracing, exporter, ambient):
    usual = propagate.get_global_textmap()
    counting = _Counting([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
    propagate.set_global_textmap(counting)
    propagator_in_force()  # a new one is tried out, once
    counting.extractions = 0
    token = context.attach(_with_baggage(ambient))
    try:
        hook = ConsumeHook(tracing=tracing)
        headers = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("baggage", b"a=b")]
        (call,) = hook.before([IncomingMessage(topic="t", partition=0, offset=1, headers=headers)])
        assert baggage.get_all(call.otel_ctx) == {**ambient, "a": "b"}
    finally:
        context.detach(token)
        propagate.set_global_textmap(usual)
    hook.after(call)
    assert exporter.take().parent.span_id == 0xB7AD6B7169203331
    assert counting.extractions == 1


def _with_baggage(entries):
    current = Context()
    for name, value in entries.items():
        current = baggage.set_baggage(name, value, current)
    return current


def test_an_overlong_transaction_is_bounded_and_counted(tracing, exporter, caplog, monkeypatch):
    monkeypatch.setattr(transaction, "_overflowed", Counter())
    hook, ends = SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo(), max_messages=2)
    ends.begin()
    for _ in range(5):
        call = hook.before("orders", transaction_id=ends.transaction_id)
        hook.after(call)
        ends.joined(call)
    ends.ended(TransactionState.COMMIT_MESSAGE, start_ns=ends.now_ns())
    assert len(exporter.take_all("end_transaction orders")) == 2
    assert len(exporter.take_all("send orders")) == 5
    assert MqTraceInstrumentor().unrecorded["transaction_too_long"] == 3
    assert ["5 messages" in record.getMessage() for record in caplog.records] == [True]


def test_a_transaction_that_was_given_up_loses_nothing(tracing, exporter):
    before = MqTraceInstrumentor().unrecorded
    hook, ends = SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo(), max_messages=1)
    for _ in range(2):
        ends.begin()
        for _ in range(2):
            call = hook.before("orders", transaction_id=ends.transaction_id)
            hook.after(call)
            ends.joined(call)
    assert MqTraceInstrumentor().unrecorded == before
    exporter.take_all("send orders")


@pytest.mark.parametrize(("queue_size", "ends_shown"), [(None, 1000), (100, 50), (1, 1)])
def test_the_ends_of_one_transaction_fit_into_the_queue(clock, exporter, queue_size, ends_shown):
    """They all come at once: a bound above the queue would be a sure loss."""
    tracing = Tracing.create(
        settings=Settings(queue_size=queue_size), tracer_provider=recording_provider(exporter), clock=clock
    )
    hook, ends = SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo())
    ends.begin()
    call = hook.before("orders", transaction_id=ends.transaction_id)
    hook.after(call)
    for _ in range(1_100):
        ends.joined(call)
    ends.ended(TransactionState.ROLLBACK_MESSAGE, start_ns=ends.now_ns())
    assert len(exporter.take_all("end_transaction orders")) == ends_shown
    exporter.take_all("send orders")


def test_what_breaks_inside_us_is_counted_and_logged_once(caplog, monkeypatch):
    monkeypatch.setattr(guard, "_failures", {})

    @guard.guarded("a test place")
    def broken():
        raise ZeroDivisionError

    assert [broken(), broken()] == [None, None]
    assert guard.failures() == {"a test place": 2}
    (record,) = caplog.records
    assert "a test place" in record.getMessage()
    assert record.exc_info[0] is ZeroDivisionError


@given(st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5) | st.text(max_size=5))))
def test_rewriting_headers_changes_a_copy_only(headers):
    """Each written name stands exactly once; everything else keeps its order."""
    before = list(headers)
    sent = replace_headers(headers, {"traceparent": "t"}, frozenset({"tracestate"}))
    assert headers == before
    assert [name.lower() for name, _ in sent].count("traceparent") == 1
    assert sent[:-1] == [pair for pair in before if pair[0].lower() not in {"traceparent", "tracestate"}]


@pytest.mark.parametrize("headers", [(("a", b"1"),), [["a", b"1"]], 5, "text"])
def test_headers_no_client_accepts_are_left_to_the_client(headers):
    assert pairs_of(headers) is None


def test_the_last_header_of_a_name_counts_and_none_is_no_value():
    assert header_text(index_headers([("a", b"1"), ("A", b"x"), ("a", b"2"), ("a", None)]), "a") == "2"
    assert header_text(index_headers([("a", None)]), "a") is None


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("broker:9092", ("broker", 9092)),
        ("SASL_SSL://broker:9093,other:1", ("broker", 9093)),
        ("[::1]:9092", ("::1", 9092)),
        ("::1", ("::1", None)),
        ("broker", ("broker", None)),
        ("", (None, None)),
    ],
)
def test_the_first_server_is_taken_apart(servers, expected):
    assert host_and_port(servers) == expected


class TestScopes:
    def test_a_block_left_in_another_context_disturbs_nothing(self, tracing, exporter, caplog):
        """A generator closed by somebody else: skipped, and no error in the log."""
        span = tracing.tracer.start_span("mine")
        scope = copy_context().run(BlockScope, trace.set_span_in_context(span))
        scope.leave()
        assert caplog.records == []
        span.end()
        exporter.take("mine")

    def test_an_automatic_scope_left_from_elsewhere_is_taken_back(self, tracing, exporter):
        span = tracing.tracer.start_span("mine")
        scope = PollScope(Context(), Handling(span), Context())
        copy_context().run(scope.leave)
        assert trace.get_current_span() is trace.INVALID_SPAN
        span.end()
        exporter.take("mine")


def test_what_a_message_said_stays_said_whatever_becomes_of_it(tracing, exporter):
    """The list, the message, its headers and its key are the caller's own, who may use them again."""
    hook = ConsumeHook(tracing=tracing)
    headers, key = [("UNIQ_KEY", b"ID1")], bytearray(b"k1")
    message = IncomingMessage(topic="t", partition=0, offset=1, key=key, headers=headers)
    handed = [message]
    (call,) = hook.before(handed)
    handed.clear()
    message.offset, headers[0], key[:] = 2, ("UNIQ_KEY", b"ID2"), b"k2"
    hook.after(call)
    said = exporter.take().attributes
    names = ("messaging.message.id", "messaging.kafka.offset", "messaging.kafka.message.key")
    assert [said[name] for name in names] == ["ID1", 1, "k1"]


def test_a_propagator_of_the_applications_is_asked_by_the_thread_that_consumes(tracing, exporter):
    """It may look at what is current there; what it finds is what counts, whichever is in force when a span is read."""

    class Watching(_Counting):
        def extract(self, *args, **kwargs):
            assert threading.current_thread() is threading.main_thread()
            return super().extract(*args, **kwargs)

    usual = propagate.get_global_textmap()
    propagate.set_global_textmap(Watching([TraceContextTextMapPropagator()]))
    try:
        hook = ConsumeHook(tracing=tracing)
        headers = [("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
        messages = [IncomingMessage(topic="t", partition=0, offset=offset, headers=headers) for offset in (1, 2)]
        for call in hook.before(messages, batch=True):
            hook.after(call)
    finally:
        propagate.set_global_textmap(usual)
    span, found = exporter.take(), []
    reader = threading.Thread(target=lambda: found.extend(link.context.span_id for link in span.links))
    reader.start()
    reader.join()
    assert found == [0xB7AD6B7169203331] * 2
