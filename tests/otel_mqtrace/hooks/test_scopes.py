"""Nothing of ours stays current: not in another thread, task or coroutine, not after break, an exception, or the GC."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from contextvars import copy_context

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.context import Context

from otel_mqtrace import process
from otel_mqtrace.hooks.consume import ConsumeHook, IncomingMessage, ProcessSpan
from otel_mqtrace.hooks.in_flight import Delivery
from tests.support.consuming import in_thread, let_others_run
from tests.support.mailbox import Letter, Mailbox


@pytest.fixture
def mailbox(mailbox, exporter):
    yield mailbox
    gc.collect()
    exporter.take_all("process letters")


def _here():
    return trace.get_current_span().get_span_context().span_id


def _nothing_here():
    assert trace.get_current_span() is trace.INVALID_SPAN


class TestAutomatic:
    def test_next_poll_in_another_thread_ends_the_message_where_it_was_polled(self, mailbox):
        mailbox.take(Letter(1))
        assert _here()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(mailbox.take, Letter(2)).result(timeout=10)
            _nothing_here()
            mailbox.done()
            assert pool.submit(_here).result(timeout=10) == 0

    async def test_task_keeps_the_message_of_its_copied_context(self, mailbox):
        mailbox.take(Letter(1))
        first = _here()
        go_on = asyncio.Event()

        async def background():
            await go_on.wait()
            return _here()

        task = asyncio.create_task(background())
        mailbox.take(Letter(2))
        assert _here() not in {0, first}
        go_on.set()
        assert await task == first
        mailbox.done()
        _nothing_here()

    def test_next_poll_in_a_copied_context_ends_the_message_in_both(self, mailbox):
        mailbox.take(Letter(1))

        def poll():
            mailbox.take(Letter(2))
            assert _here()
            mailbox.done()
            _nothing_here()

        copy_context().run(poll)
        _nothing_here()

    def test_span_of_the_application_stays_current_when_the_message_ends(self, mailbox, tracing, exporter):
        mailbox.take(Letter(1))
        with tracing.tracer.start_as_current_span("mine") as mine:
            mailbox.done()
            assert trace.get_current_span() is mine
        _nothing_here()
        exporter.take("mine")

    def test_baggage_of_the_handler_stays_when_the_message_ends(self, mailbox):
        mailbox.take(Letter(1, headers=(("baggage", b"from=sender"),)))
        context.attach(baggage.set_baggage("mine", "1"))
        mailbox.done()
        _nothing_here()
        assert baggage.get_baggage("mine") == "1"

    def test_consumers_polled_inside_each_other_s_messages_do_not_nest(self, mailbox, tracing, exporter):
        other = Mailbox.of(tracing)
        with tracing.tracer.start_as_current_span("loop") as loop:
            mailbox.take(Letter(1))
            other.take(Letter(2))
            inner = trace.get_current_span()
            mailbox.done()
            assert trace.get_current_span() is inner
            other.done()
            assert trace.get_current_span() is loop
        assert inner.parent.span_id == exporter.take("loop").context.span_id


class TestBlocks:
    def test_block_that_ends_in_another_thread_is_current_in_neither(self, mailbox, caplog):
        block = process(Letter(1))
        block.__enter__()
        assert _here()
        in_thread(lambda: block.__exit__(None, None, None))
        _nothing_here()
        assert caplog.records == []

    def test_blocks_that_end_in_the_wrong_order_leave_no_current_span(self, mailbox):
        outer, inner = process(Letter(1)), process(Letter(2))
        outer.__enter__()
        with ExitStack() as stack:
            stack.enter_context(inner)
            second = _here()
            outer.__exit__(None, None, None)
            assert _here() == second
        _nothing_here()

    def test_context_the_handler_attached_ends_with_the_block(self, mailbox):
        with process(Letter(1)):
            context.attach(baggage.set_baggage("mine", "1"))
        _nothing_here()
        assert baggage.get_baggage("mine") is None

    def test_automatic_message_is_current_again_after_a_block(self, mailbox):
        mailbox.take(Letter(1))
        automatic = _here()
        with process(Letter(2)):
            assert _here() != automatic
        assert _here() == automatic
        mailbox.done()

    def test_block_ends_once(self, mailbox, exporter):
        block = process(Letter(1))
        with block:
            pass
        block.__exit__(None, None, None)
        _nothing_here()
        exporter.take("process letters")

    def test_executor_thread_has_the_message_in_a_copied_context_only(self, mailbox):
        with ThreadPoolExecutor(1) as pool, process(Letter(1)):
            assert pool.submit(_here).result(timeout=10) == 0
            assert pool.submit(copy_context().run, _here).result(timeout=10) == _here()
            assert pool.submit(_here).result(timeout=10) == 0

    async def test_concurrent_tasks_have_their_own_message(self, mailbox, exporter):
        async def handle(number, barrier):
            async with process(Letter(number)) as handling:
                for _ in range(3):
                    await barrier()
                    assert trace.get_current_span() is handling.span
                    assert process.current() is handling

        await asyncio.gather(*(handle(n, let_others_run) for n in range(5)))
        _nothing_here()
        assert len({span.context.span_id for span in exporter.take_all("process letters")}) == 5

    async def test_cancelled_handler_ends_with_the_error_and_leaves_no_current_span(self, mailbox, exporter):
        started = asyncio.Event()

        async def handle():
            async with process(Letter(1)):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(handle())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        _nothing_here()
        assert exporter.take("process letters").attributes["error.type"] == "CancelledError"


def test_taking_a_span_keeps_what_another_thread_adds_meanwhile():
    def handling():
        return ProcessSpan(trace.INVALID_SPAN, Context(), 1, 0, {}, Context())

    class Shared(list):
        def remove(self, call):
            self.append(added)  # another thread, in the middle of it
            super().remove(call)

    taken, added, delivery = handling(), handling(), Delivery()
    delivery.calls = Shared()
    delivery.hold(object(), [taken])
    assert delivery.take(taken) is not None
    assert list(map(id, delivery.calls)) == [id(added)]
    assert delivery.take(taken) is None


def test_finish_ends_what_another_thread_adds_meanwhile(tracing, exporter):
    hook = ConsumeHook(tracing=tracing)
    first, late = (hook.before([IncomingMessage("letters", 0, offset)])[0] for offset in range(2))

    class Shared(list):
        def pop(self, at):
            if late.is_open and late not in self:
                self.append(late)  # another thread, in the middle of it
            return super().pop(at)

    delivery = Delivery()
    delivery.calls = Shared()
    delivery.hold(hook, [first])
    delivery.finish()
    assert [first.is_open, late.is_open] == [False, False]
    exporter.take_all("process letters")
