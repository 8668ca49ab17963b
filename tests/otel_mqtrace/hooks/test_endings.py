"""Whatever the application or the wire hands us, a span that was opened ends, and a poll keeps its other messages."""

from __future__ import annotations

import pytest
from opentelemetry import propagate
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import StatusCode

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.process import Handling, SingleOwner
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.model import ContextCode
from otel_mqtrace.testing import RecordingExporter, recording_provider


class UnspeakableError(Exception):
    """An exception that cannot be printed."""

    def __str__(self):
        raise ZeroDivisionError


class _BrokenPropagator(TextMapPropagator):
    """An application's own propagator, with a defect."""

    fields = frozenset()

    def extract(self, carrier, context=None, getter=None):
        raise ZeroDivisionError

    def inject(self, carrier, context=None, setter=None):
        raise ZeroDivisionError


@pytest.fixture
def exporter():
    return RecordingExporter()


@pytest.fixture
def tracing(exporter):
    return Tracing.create(settings=Settings(), tracer_provider=recording_provider(exporter))


@pytest.fixture
def broken_propagator():
    usual = propagate.get_global_textmap()
    propagate.set_global_textmap(_BrokenPropagator())
    yield
    propagate.set_global_textmap(usual)


def _message(topic="t", *headers):
    return IncomingMessage(topic=topic, partition=0, offset=1, headers=headers)


def test_a_handlers_exception_that_cannot_be_printed_is_recorded_by_its_type(tracing, exporter):
    before = guard.failures()
    hook = ConsumeHook(tracing=tracing)
    (call,) = hook.before([_message()])
    hook.after(call, code=ContextCode.EXCEPTION, exception=UnspeakableError())
    span = exporter.take("process t")
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "UnspeakableError")
    assert span.attributes["mqtrace.context_code"] == "EXCEPTION"
    assert span.attributes["error.type"] == "UnspeakableError"
    assert [event.attributes["exception.type"] for event in span.events] == ["UnspeakableError"]
    assert guard.failures() == before


def test_a_clients_exception_that_cannot_be_printed_is_recorded_by_its_type(tracing, exporter):
    hook = SendHook(tracing=tracing)
    hook.after(hook.before("t"), error="_FAIL", exception=UnspeakableError())
    span = exporter.take("send t")
    assert span.attributes["mqtrace.success"] is False
    assert [event.attributes["exception.type"] for event in span.events] == ["UnspeakableError"]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("FAILED", "FAILED"),
        (ContextCode.FAILED, "FAILED"),
        ("typo", "RETURNNULL"),
        (99, "RETURNNULL"),
        ([], "RETURNNULL"),
    ],
)
def test_an_outcome_nobody_knows_is_no_outcome(tracing, exporter, said, code):
    """Neither door raises, neither loses the span: it reads RETURNNULL, as when nobody says how it went."""
    before = guard.failures()
    hook = ConsumeHook(tracing=tracing)
    first, second = (*hook.before([_message()]), *hook.before([_message()]))
    hook.after(first, code=said)
    handling = Handling(SingleOwner(hook, second))
    handling.outcome(said)
    hook.after(second, code=handling.code)
    for span in exporter.take_all("process t"):
        assert (span.attributes["mqtrace.context_code"], span.attributes["mqtrace.success"]) == (code, False)
    assert guard.failures() == before


def test_what_fails_after_the_claim_still_ends_the_span(tracing, exporter):
    """A status of a kind the SDK cannot take, say."""

    class Odd:
        def __bool__(self):
            raise ZeroDivisionError

        __eq__ = None
        __hash__ = None

    hook = SendHook(tracing=tracing)
    call = hook.before("t")
    hook.after(call, partition=Odd())
    exporter.take("send t")


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 20, "2147483648", "-1", "1.5", "many", ""])
def test_a_retry_count_that_is_no_32_bit_number_counts_as_none(tracing, exporter, text):
    """RocketMQ's is an int; what is longer would be lost in OTLP and refused by the native codec."""
    hook = ConsumeHook(tracing=tracing)
    for call in hook.before([_message("t", ("RECONSUME_TIME", text.encode()))]):
        hook.after(call)
    assert exporter.take("process t").attributes["mqtrace.retry_times"] == 0


def test_the_largest_retry_count_is_read(tracing, exporter):
    hook = ConsumeHook(tracing=tracing)
    for call in hook.before([_message("t", ("RECONSUME_TIME", b"2147483647"))]):
        hook.after(call)
    assert exporter.take("process t").attributes["mqtrace.retry_times"] == 2_147_483_647


def test_a_message_that_cannot_be_recorded_costs_the_poll_nothing_else(tracing, exporter):
    hook = ConsumeHook(tracing=tracing)
    torn = _message("torn", ("a header without a value",))
    calls = hook.before([_message("before"), torn, _message("after")])
    assert [call.indexes for call in calls] == [(0,), (2,)]
    for call in calls:
        hook.after(call)
    assert [span.name for span in exporter.take_all()] == ["process before", "process after"]


def test_a_propagator_that_fails_leaves_no_span_open(tracing, exporter, broken_propagator):
    send, consume = SendHook(tracing=tracing), ConsumeHook(tracing=tracing)
    call = send.before("t", headers=[("a", b"1")])
    assert call.headers is None
    send.after(call)
    exporter.take("send t")
    for each in consume.before([_message("t", ("traceparent", b"x"))]):
        consume.after(each)
    assert exporter.take_all() == []
