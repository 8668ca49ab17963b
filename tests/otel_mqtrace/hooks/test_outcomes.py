"""How a handler ended: SUCCESS, TIME_OUT, EXCEPTION, RETURNNULL, FAILED, and who may say so."""

from __future__ import annotations

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.trace import Status, StatusCode

from otel_mqtrace import process
from otel_mqtrace.hooks.process import sources
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.mailbox import Letter, Mailbox


@pytest.fixture
def mailbox(tracing_with):
    box = Mailbox.of(tracing_with())
    sources.append(box)
    yield box
    sources.remove(box)


def _taken(exporter):
    span = exporter.take("process letters")
    record = trace_context_of(span)
    assert record.success is (record.context_code in {ContextCode.SUCCESS, ContextCode.TIME_OUT})
    assert (span.status.status_code is StatusCode.ERROR) is not record.success
    return span, record.context_code


def _handle(mailbox, *, automatic):
    """Return a block in which a letter is being handled, one way or the other."""
    if not automatic:
        return process(Letter(1))
    mailbox.take(Letter(1))

    class UntilNext:
        def __enter__(self):
            return process.current()

        def __exit__(self, *_):
            mailbox.done()

    return UntilNext()


both_ways = pytest.mark.parametrize("automatic", [False, True], ids=["block", "automatic"])


@both_ways
def test_silence_is_success(mailbox, exporter, automatic):
    with _handle(mailbox, automatic=automatic):
        pass
    span, code = _taken(exporter)
    assert code is ContextCode.SUCCESS
    assert "error.type" not in span.attributes


@pytest.mark.parametrize(("ms", "code"), [(999, ContextCode.SUCCESS), (1_000, ContextCode.TIME_OUT)])
@both_ways
def test_a_success_slower_than_the_limit_is_a_time_out(tracing_with, exporter, clock, automatic, ms, code):
    """process_timeout_ms; a time-out is no failure, as RocketMQ has it."""
    mailbox = Mailbox.of(tracing_with(process_timeout_ms=1_000))
    sources.append(mailbox)
    try:
        with _handle(mailbox, automatic=automatic):
            clock.advance(ms=ms)
    finally:
        sources.remove(mailbox)
    assert _taken(exporter)[1] is code


def test_a_failure_slower_than_the_limit_stays_a_failure(tracing_with, exporter, clock):
    """The limit is asked of successes only."""
    mailbox = Mailbox.of(tracing_with(process_timeout_ms=1))
    mailbox.take(Letter(1))
    process.failed()
    clock.advance(ms=50)
    mailbox.done()
    assert _taken(exporter)[1] is ContextCode.FAILED


def test_an_exception_out_of_a_block_is_exception(mailbox, exporter):
    with pytest.raises(LookupError), process(Letter(1)):
        raise LookupError("no such account")
    span, code = _taken(exporter)
    assert code is ContextCode.EXCEPTION
    assert span.attributes["error.type"] == "LookupError"
    assert span.status.description == "no such account"
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize("code", [ContextCode.FAILED, ContextCode.RETURNNULL, ContextCode.EXCEPTION])
@both_ways
def test_the_handler_says_it_from_wherever_it_is(mailbox, exporter, automatic, code):
    def deep():
        with trace.NoOpTracer().start_as_current_span("inner"):
            process.outcome(code.name)

    with _handle(mailbox, automatic=automatic):
        deep()
    span, said = _taken(exporter)
    assert said is code
    assert span.attributes["error.type"] == code.name


def test_a_task_of_the_handler_says_it(mailbox, exporter):
    async def part():
        process.failed()

    async def handle():
        async with process(Letter(1)):
            await asyncio.create_task(part())

    asyncio.run(handle())
    assert _taken(exporter)[1] is ContextCode.FAILED


def test_what_was_said_last_counts(mailbox, exporter):
    mailbox.take(Letter(1))
    process.failed()
    process.outcome(ContextCode.SUCCESS)
    mailbox.done()
    assert _taken(exporter)[1] is ContextCode.SUCCESS


def test_a_message_says_nothing_of_the_next(mailbox, exporter):
    mailbox.take(Letter(1))
    process.failed()
    mailbox.take(Letter(2))
    mailbox.done()
    assert [_taken(exporter)[1] for _ in range(2)] == [ContextCode.FAILED, ContextCode.SUCCESS]


def test_outside_of_any_handler_nobody_takes_notice(mailbox, exporter):
    process.failed()
    process.outcome("RETURNNULL")
    assert not process.current().span.is_recording()
    with process(Letter(1)):
        pass
    assert _taken(exporter)[1] is ContextCode.SUCCESS


@both_ways
def test_a_span_the_application_set_to_error_has_failed(mailbox, exporter, automatic):
    with _handle(mailbox, automatic=automatic):
        trace.get_current_span().set_status(Status(StatusCode.ERROR, "card refused"))
        trace.get_current_span().set_attribute("error.type", "CardRefused")
    span, code = _taken(exporter)
    assert code is ContextCode.FAILED
    assert span.status.description == "card refused"
    assert span.attributes["error.type"] == "CardRefused"


@both_ways
def test_a_span_the_application_set_to_ok_has_not(mailbox, exporter, automatic):
    with _handle(mailbox, automatic=automatic):
        trace.get_current_span().set_status(Status(StatusCode.OK))
    assert _taken(exporter)[1] is ContextCode.SUCCESS


def test_the_handle_of_a_block_is_what_current_returns(mailbox, exporter):
    with process(Letter(1)) as outer:
        with process(Letter(2)) as inner:
            assert process.current() is inner
        assert process.current() is outer
        process.failed()
    assert [_taken(exporter)[1] for _ in range(2)] == [ContextCode.SUCCESS, ContextCode.FAILED]


def test_one_failure_names_a_bundle_whoever_says_it(mailbox, exporter):
    for letter in process.each(mailbox.bundle(Letter(1), Letter(2), Letter(3))):
        if letter.number == 2:
            process.failed()
    span, code = _taken(exporter)
    assert code is ContextCode.FAILED
    assert span.attributes["messaging.batch.message_count"] == 3
