"""The process span: its parent and links, who opens it, and where it is current, also after a break, an exception or the GC."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from contextvars import copy_context

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_mqtrace import ConsumeHook, SendHook, process
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.consume import IncomingMessage, ProcessSpan
from otel_mqtrace.hooks.in_flight import Delivery, ExplicitMode
from tests.support.consuming import in_thread, let_others_run
from tests.support.mailbox import SENDER, TRACEPARENT, Letter, Mailbox

UNSAMPLED = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
HERE = 0xA


def _message(*headers, offset=7):
    return IncomingMessage(topic="orders", partition=0, offset=offset, headers=headers)


def _hangs(span):
    return span.parent and span.parent.span_id, [link.context.span_id for link in span.links]


MODES = ("auto", "link", "parent", "both")
AMBIENT = NonRecordingSpan(SpanContext(0xB, HERE, False, TraceFlags(1)))


@pytest.mark.parametrize("as_record", [False, True])
@pytest.mark.parametrize(
    ("process_context", "alone", "beside_a_span"),
    [
        ("auto", (SENDER, [SENDER]), (HERE, [SENDER])),
        ("link", (None, [SENDER]), (HERE, [SENDER])),
        ("parent", (SENDER, []), (SENDER, [HERE])),
        ("both", (SENDER, [SENDER]), (SENDER, [SENDER, HERE])),
    ],
)
def test_parent_and_links_follow_the_option(tracing_with, exporter, process_context, alone, beside_a_span, as_record):
    hook = ConsumeHook(tracing=tracing_with(process_context=process_context))
    for ambient, expected in ((nullcontext(), alone), (trace.use_span(AMBIENT), beside_a_span)):
        with ambient:
            recorded = hook.record("orders", (0, 7, None, 1, None), [TRACEPARENT], None) if as_record else None
            hook.after(recorded or hook.before([_message(TRACEPARENT)])[0])
        assert _hangs(exporter.take("process orders")) == expected


@pytest.mark.parametrize("process_context", MODES)
def test_several_senders_are_linked_without_a_parent(processed, process_context):
    messages = [_message(TRACEPARENT, offset=n) for n in range(2)]
    assert _hangs(processed(*messages, batch=True, process_context=process_context)) == (None, [SENDER, SENDER])


@pytest.mark.parametrize("process_context", MODES)
def test_untraced_message_gets_the_current_span_as_parent(processed, process_context):
    with trace.use_span(AMBIENT):
        assert _hangs(processed(_message(), process_context=process_context)) == (HERE, [])


def test_baggage_without_a_span_is_no_parent(processed):
    token = context.attach(baggage.set_baggage("mine", "1"))
    try:
        assert _hangs(processed(_message(TRACEPARENT))) == (SENDER, [SENDER])
    finally:
        context.detach(token)


class TestConsumeHook:
    def test_hook_gets_the_span_and_its_messages(self, tracing_with, processed, exporter):
        calls = []

        def hook(span, messages):
            span.set_attribute("tenant", "t1")
            calls.append((span.name, [message.offset for message in messages]))

        messages = [_message(TRACEPARENT, offset=n) for n in range(2)]
        tracing = tracing_with({"consume_hook": hook}, receive_spans=True)
        ConsumeHook(tracing=tracing).received(messages, start_ns=0, batch=True)
        assert exporter.take("poll orders").attributes["tenant"] == "t1"
        assert processed(*messages, batch=True, collaborators={"consume_hook": hook}).attributes["tenant"] == "t1"
        assert calls == [("poll orders", [0, 1]), ("process orders", [0, 1])]

    def test_exception_of_the_hook_is_counted_and_costs_no_span(self, processed, monkeypatch):
        monkeypatch.setattr(guard, "_failures", counted := {})
        span = processed(_message(TRACEPARENT), collaborators={"consume_hook": lambda span, messages: 1 / 0})
        assert span.attributes["mqtrace.success"] is True
        assert counted == {"consume_hook": 1}
        counted.clear()

    def test_hooks_are_not_called_for_a_non_recording_span(self, tracing_with):
        hooks = dict.fromkeys(("produce_hook", "consume_hook"), lambda *_: 1 / 0)
        tracing = tracing_with({**hooks, "tracer_provider": TracerProvider(sampler=ALWAYS_OFF)}, receive_spans=True)
        consume, send = ConsumeHook(tracing=tracing), SendHook(tracing=tracing)
        consume.received([_message(TRACEPARENT)], start_ns=0)
        consume.after(consume.before([_message(TRACEPARENT)])[0])
        send.after(send.before("orders"), partition=0, offset=1)


def test_suppressed_message_is_not_processed(tracing_with):
    with suppress_instrumentation():
        assert ConsumeHook(tracing=tracing_with()).before([_message(TRACEPARENT)]) == []


def test_unrecorded_message_is_still_propagated(tracing_with):
    hook = ConsumeHook(tracing=tracing_with())
    (call,) = hook.before([_message(UNSAMPLED, ("baggage", b"order=42"))])
    span_ctx = trace.get_current_span(call.otel_ctx).get_span_context()
    assert span_ctx.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert not span_ctx.trace_flags.sampled
    assert baggage.get_baggage("order", call.otel_ctx) == "42"
    hook.after(call)


def test_explicit_setting_expects_blocks_for_ever_and_automatic_mode_none():
    blocks = ExplicitMode("explicit")
    assert [blocks.expect_blocks(5_000) for _ in range(3)] == [True] * 3
    assert not ExplicitMode("auto").expect_blocks(1)


def test_late_blocks_are_expected_for_a_thousand_messages():
    blocks = ExplicitMode("auto")
    blocks.record_late_block("billing")
    for _ in range(5_000):
        assert blocks.expect_blocks(1)
        blocks.record_block()
    assert all(blocks.expect_blocks(1) for _ in range(1_000))
    assert not blocks.expect_blocks(1)


def test_blocks_for_one_message_of_ten_end_the_explicit_mode():
    blocks = ExplicitMode("auto")
    blocks.record_shared_batch()
    assert blocks.expect_blocks(10)
    blocks.record_block()
    assert not blocks.expect_blocks(10)


@pytest.mark.parametrize("seen", [1, 3])
def test_late_block_warning_is_logged_once(seen, caplog):
    blocks = ExplicitMode("auto")
    for _ in range(seen):
        blocks.record_late_block("billing")
        blocks.expect_blocks(1_000)
        assert not blocks.expect_blocks(1)
    assert caplog.text.count("group billing") == 1


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


def test_taking_a_span_keeps_what_another_thread_adds_meanwhile(tracing):
    hook = ConsumeHook(tracing=tracing)

    def handling():
        return ProcessSpan(hook, trace.INVALID_SPAN, 0, {})

    class Shared(list):
        def remove(self, call):
            self.append(added)  # another thread, in the middle of it
            super().remove(call)

    taken, added, delivery = handling(), handling(), Delivery()
    delivery.calls = Shared()
    delivery.hold([taken], None)
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
    delivery.hold([first], None)
    delivery.finish()
    assert [first.is_open, late.is_open] == [False, False]
    exporter.take_all("process letters")
