"""The process span: its parent and links, where it is current, and every form of ``process``, plain and asynchronous."""

import asyncio
import gc
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, closing, nullcontext
from contextvars import copy_context
from unittest.mock import MagicMock

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_mqtrace import ConsumeHook, SendHook, process
from otel_mqtrace.hooks.in_flight import Delivery, ExplicitMode
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.hooks.process import end_blocks
from otel_mqtrace.model import ContextCode
from tests.support.consuming import current_span_id, in_thread, let_others_run
from tests.support.mailbox import SENDER, TRACEPARENT, Letter, Mailbox, incoming

pytestmark = pytest.mark.usefixtures("mailbox")
UNSAMPLED = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
HERE = 0xA


def _hangs(span):
    return span.parent and span.parent.span_id, [link.context.span_id for link in span.links]


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
def test_parent_and_links_follow_the_option(tracing_with, spans, process_context, alone, beside_a_span, as_record):
    hook = ConsumeHook(tracing=tracing_with(process_context=process_context))
    for ambient, expected in ((nullcontext(), alone), (trace.use_span(AMBIENT), beside_a_span)):
        with ambient:
            recorded = hook.record("orders", (0, 7, None, 1, None), [TRACEPARENT], None) if as_record else None
            hook.after(recorded or hook.before([incoming(TRACEPARENT)])[0])
        assert _hangs(spans.take("process orders")) == expected


@pytest.mark.parametrize("process_context", ["auto", "link", "parent", "both"])
def test_several_senders_are_linked_and_an_untraced_message_has_the_current_span_as_parent(processed, process_context):
    messages = [incoming(TRACEPARENT, offset=n) for n in range(2)]
    assert _hangs(processed(*messages, batch=True, process_context=process_context)) == (None, [SENDER, SENDER])
    with trace.use_span(AMBIENT):
        assert _hangs(processed(incoming(), process_context=process_context)) == (HERE, [])


def test_baggage_without_a_span_is_no_parent(processed):
    context.attach(baggage.set_baggage("mine", "1"))
    assert _hangs(processed(incoming(TRACEPARENT))) == (SENDER, [SENDER])


class TestConsumeHook:
    def test_hook_gets_the_span_and_its_messages(self, tracing_with, processed, spans):
        calls = []

        def hook(span, messages):
            span.set_attribute("tenant", "t1")
            calls.append((span.name, [message.offset for message in messages]))

        messages = [incoming(TRACEPARENT, offset=n) for n in range(2)]
        tracing = tracing_with({"consume_hook": hook}, receive_spans=True)
        ConsumeHook(tracing=tracing).received(messages, start_ns=0, batch=True)
        assert spans.take("poll orders").attributes["tenant"] == "t1"
        assert processed(*messages, batch=True, collaborators={"consume_hook": hook}).attributes["tenant"] == "t1"
        assert calls == [("poll orders", [0, 1]), ("process orders", [0, 1])]

    def test_hooks_are_not_called_for_a_non_recording_span(self, tracing_with):
        hooks = dict.fromkeys(("produce_hook", "consume_hook"), lambda *_: 1 / 0)
        tracing = tracing_with({**hooks, "tracer_provider": TracerProvider(sampler=ALWAYS_OFF)}, receive_spans=True)
        consume, send = ConsumeHook(tracing=tracing), SendHook(tracing=tracing)
        consume.received([incoming(TRACEPARENT)], start_ns=0)
        consume.after(consume.before([incoming(TRACEPARENT)])[0])
        send.after(send.before("orders"), partition=0, offset=1)


def test_unrecorded_message_is_still_propagated(tracing_with):
    hook = ConsumeHook(tracing=tracing_with())
    (call,) = hook.before([incoming(UNSAMPLED, ("baggage", b"order=42"))])
    span_ctx = trace.get_current_span(call.otel_ctx).get_span_context()
    assert span_ctx.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert not span_ctx.trace_flags.sampled
    assert baggage.get_baggage("order", call.otel_ctx) == "42"
    hook.after(call)


def test_explicit_mode_lasts_while_blocks_come(caplog):
    blocks = ExplicitMode("auto")

    def hand_over(messages=1):
        is_left = blocks.expect_blocks()
        blocks.record_awaited(messages if is_left else 0)
        return is_left

    for _ in range(2):
        blocks.record_late_block("billing")
        for _ in range(5_000):
            assert hand_over()
            blocks.record_block()
        assert all(hand_over() for _ in range(1_000))
        assert not hand_over()
    assert caplog.text.count("group billing") == 1
    blocks.record_shared_batch()
    assert hand_over(10)
    blocks.record_block()
    assert not hand_over(10)


@pytest.fixture
def letterbox(mailbox, spans):
    """A mailbox of whose spans those that were not taken are of no interest."""
    yield mailbox
    gc.collect()
    spans.take_all("process letters")


def _nothing_here():
    assert trace.get_current_span() is trace.INVALID_SPAN


class TestAutomatic:
    def test_next_poll_in_another_thread_ends_the_message_where_it_was_polled(self, letterbox):
        letterbox.take(Letter(1))
        assert current_span_id()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(letterbox.take, Letter(2)).result(timeout=10)
            _nothing_here()
            letterbox.done()
            assert pool.submit(current_span_id).result(timeout=10) == 0

    async def test_task_keeps_the_message_of_its_copied_context(self, letterbox):
        letterbox.take(Letter(1))
        first = current_span_id()
        go_on = asyncio.Event()

        async def background():
            await go_on.wait()
            return current_span_id()

        task = asyncio.create_task(background())
        letterbox.take(Letter(2))
        assert current_span_id() not in {0, first}
        go_on.set()
        assert await task == first
        letterbox.done()
        _nothing_here()

    def test_next_poll_in_a_copied_context_ends_the_message_in_both(self, letterbox):
        letterbox.take(Letter(1))

        def poll():
            letterbox.take(Letter(2))
            assert current_span_id()
            letterbox.done()
            _nothing_here()

        copy_context().run(poll)
        _nothing_here()

    def test_span_of_the_application_stays_current_when_the_message_ends(self, letterbox, tracing, spans):
        letterbox.take(Letter(1))
        with tracing.tracer.start_as_current_span("mine") as mine:
            letterbox.done()
            assert trace.get_current_span() is mine
        _nothing_here()
        spans.take("mine")

    def test_baggage_of_the_handler_stays_when_the_message_ends(self, letterbox):
        letterbox.take(Letter(1, headers=(("baggage", b"from=sender"),)))
        context.attach(baggage.set_baggage("mine", "1"))
        letterbox.done()
        _nothing_here()
        assert baggage.get_baggage("mine") == "1"

    def test_consumers_polled_inside_each_other_s_messages_do_not_nest(self, letterbox, tracing, spans):
        other = Mailbox.of(tracing)
        with tracing.tracer.start_as_current_span("loop") as loop:
            letterbox.take(Letter(1))
            other.take(Letter(2))
            inner = trace.get_current_span()
            letterbox.done()
            assert trace.get_current_span() is inner
            other.done()
            assert trace.get_current_span() is loop
        assert inner.parent.span_id == spans.take("loop").context.span_id


class TestBlocks:
    def test_blocks_that_end_in_the_wrong_order_leave_no_current_span(self, letterbox):
        outer, inner = process(Letter(1)), process(Letter(2))
        outer.__enter__()
        with ExitStack() as stack:
            stack.enter_context(inner)
            second = current_span_id()
            outer.__exit__(None, None, None)
            assert current_span_id() == second
        _nothing_here()

    def test_block_ends_once(self, letterbox, spans):
        block = process(Letter(1))
        with block:
            pass
        block.__exit__(None, None, None)
        _nothing_here()
        spans.take("process letters")

    def test_block_that_is_never_left_ends_its_message(self, letterbox, spans):
        in_thread(process(Letter(1)).__enter__)  # dropped
        block = process(Letter(2))
        block.__enter__()
        block.__enter__()
        end_blocks(object())
        drain_deferred_ends()
        assert len(spans.take_all("process letters")) == 2
        end_blocks(letterbox)
        drain_deferred_ends()
        assert spans.take("process letters").attributes["mqtrace.context_code"] == "RETURNNULL"
        block.__exit__(None, None, None)
        spans.assert_empty()

    async def test_concurrent_tasks_have_their_own_message(self, letterbox, spans):
        async def handle(number, barrier):
            async with process(Letter(number)) as handling:
                for _ in range(3):
                    await barrier()
                    assert trace.get_current_span() is handling.span
                    assert process.current() is handling

        await asyncio.gather(*(handle(n, let_others_run) for n in range(5)))
        _nothing_here()
        assert len({span.context.span_id for span in spans.take_all("process letters")}) == 5

    async def test_cancelled_handler_ends_with_the_error_and_leaves_no_current_span(self, letterbox, spans):
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
        assert spans.take("process letters").attributes["error.type"] == "CancelledError"


@pytest.mark.parametrize("is_taken", [True, False], ids=["taken", "ended"])
def test_span_that_another_thread_adds_while_one_is_taken_or_ended_is_ended_too(tracing, spans, is_taken):
    hook = ConsumeHook(tracing=tracing)
    first, late = (hook.before([incoming(topic="letters", offset=offset)])[0] for offset in range(2))

    class Shared(list):
        def remove(self, call):
            self.append(late)  # another thread, in the middle of it
            super().remove(call)

        def pop(self, at):
            if late.is_open and late not in self:
                self.append(late)
            return super().pop(at)

    delivery = Delivery()
    delivery.calls = Shared()
    delivery.hold([first], None)
    if is_taken:
        assert [delivery.take(first), delivery.take(first)] == [first, None]
        hook.after(first)
    delivery.finish()
    assert [first.is_open, late.is_open] == [False, False]
    spans.take_all("process letters")


def _offset():
    return trace.get_current_span().attributes["messaging.kafka.offset"]


def _codes(spans):
    return [span.attributes["mqtrace.context_code"] for span in spans.take_all("process letters")]


async def _arriving(count):
    for number in range(count):
        await let_others_run()
        yield Letter(number)


class TestLoops:
    def test_each_message_is_current_in_the_body_of_the_loop_only(self, spans):
        for letter in process.each(Letter(n) for n in range(3)):
            assert _offset() == letter.number
        _nothing_here()
        assert _codes(spans) == ["SUCCESS"] * 3

    async def test_each_message_is_current_in_the_body_of_an_asynchronous_loop_only(self, spans):
        while_awaited = []

        async def watched():
            async for letter in _arriving(3):
                while_awaited.append(trace.get_current_span())
                yield letter

        async for letter in process.each(watched()):
            await let_others_run()
            assert _offset() == letter.number
        _nothing_here()
        assert while_awaited == [trace.INVALID_SPAN] * 3
        assert _codes(spans) == ["SUCCESS"] * 3

    @pytest.mark.parametrize("error", [None, LookupError])
    def test_left_loop_ends_its_message_at_once(self, spans, error):
        def consume():
            for _ in process.each([Letter(1), Letter(2)]):
                if error:
                    raise error
                break
            _nothing_here()

        with pytest.raises(error) if error else nullcontext():
            consume()
        _nothing_here()
        drain_deferred_ends()
        assert _codes(spans) == ["RETURNNULL"]

    async def test_left_asynchronous_loop_ends_its_message_at_once(self, spans):
        async for _ in process.each(_arriving(2)):
            break
        _nothing_here()
        drain_deferred_ends()
        assert _codes(spans) == ["RETURNNULL"]

    def test_loop_collected_by_another_thread_leaves_no_current_span(self, spans):
        kept = [process.each([Letter(1), Letter(2)])]
        next(kept[0])
        with ThreadPoolExecutor(1) as pool:
            pool.submit(kept.clear).result(timeout=10)
            assert pool.submit(trace.get_current_span).result(timeout=10) is trace.INVALID_SPAN
        _nothing_here()
        drain_deferred_ends()
        assert _codes(spans) == ["RETURNNULL"]

    def test_exception_of_the_source_is_not_an_outcome(self, spans):
        def failing():
            yield Letter(1)
            raise ConnectionError

        with pytest.raises(ConnectionError):
            list(process.each(failing()))
        assert _codes(spans) == ["SUCCESS"]


class TestDecorated:
    @pytest.mark.parametrize("decorate", [process, process(), process(consumer=object())])
    def test_message_is_found_among_all_arguments(self, spans, decorate):
        class Biller:
            @decorate
            def handle(self, first, *, letter):
                return _offset()

        assert Biller().handle("not a message", letter=Letter(7)) == 7
        assert _codes(spans) == ["SUCCESS"]

    def test_function_without_a_message_runs_without_a_span(self):
        assert process(lambda text: text)("t") == "t"

    @pytest.mark.parametrize("form", ["function", "object"])
    async def test_decorated_coroutine_function_stays_one(self, spans, form):
        class Handler:
            async def __call__(self, letter):
                await let_others_run()
                return ContextCode.FAILED if _offset() == 7 else None

        handle = process(Handler() if form == "object" else Handler().__call__)
        assert inspect.iscoroutinefunction(handle)
        assert await handle(Letter(7)) is ContextCode.FAILED
        assert _codes(spans) == ["FAILED"]

    def test_generator_has_its_message_current_in_its_body_only(self, spans, tracing_with):
        tracer = tracing_with().tracer

        @process
        def parts(letter):
            with tracer.start_as_current_span("part") as part:
                received = yield part.parent.span_id
                assert trace.get_current_span() is part
            try:
                yield received
            except LookupError:
                yield _offset()
            return ContextCode.FAILED

        body = parts(Letter(7))
        assert inspect.isgeneratorfunction(parts)
        parent = next(body)
        _nothing_here()
        assert body.send("heard") == "heard"
        _nothing_here()
        assert body.throw(LookupError()) == 7
        assert list(body) == []
        assert spans.take("part").parent.span_id == parent
        assert _codes(spans) == ["FAILED"]

    def test_generator_that_raises_is_an_exception(self, spans):
        @process
        def parts(letter):
            yield 1
            raise LookupError

        with pytest.raises(LookupError):
            list(parts(Letter(7)))
        parts(Letter(8)).close()  # never started: no span
        assert _codes(spans) == ["EXCEPTION"]

    def test_collected_generator_is_returnnull_and_cleans_up(self, spans):
        cleaned = []

        @process
        def parts(letter):
            try:
                yield 1
            finally:
                cleaned.append(_offset())

        next(parts(Letter(7)))
        gc.collect()
        assert cleaned == [7]
        assert _codes(spans) == ["RETURNNULL"]

    async def test_asynchronous_generator_has_its_message_current_in_its_body_only(self, spans):
        @process
        async def parts(letter):
            received = yield _offset()
            try:
                yield received
            except LookupError:
                yield _offset()

        body = parts(Letter(7))
        assert await anext(body) == 7
        _nothing_here()
        assert await body.asend("heard") == "heard"
        assert await body.athrow(LookupError()) == 7
        assert [each async for each in body] == []
        dropped = parts(Letter(8))
        await anext(dropped)
        await dropped.aclose()
        _nothing_here()
        assert _codes(spans) == ["SUCCESS", "RETURNNULL"]


@pytest.mark.parametrize("consumer", [None, object()])
def test_poll_that_returned_nothing_is_a_block_without_a_span(spans, consumer):
    with process(None, consumer=consumer) as handling:
        handling.failed()
    spans.assert_empty()


def test_baggage_is_restored_inside_only(spans):
    letter = Letter(1, headers=(TRACEPARENT, ("baggage", b"order=42")))
    context.attach(baggage.set_baggage("mine", "1"))
    handle = process(lambda _letter: baggage.get_all())

    async def consume():
        async with process(letter):
            return baggage.get_all()

    seen = [handle(letter), asyncio.run(consume()), *(baggage.get_all() for _ in process.each([letter]))]
    assert [dict(each) for each in seen] == [{"mine": "1", "order": "42"}] * 3
    assert dict(baggage.get_all()) == {"mine": "1"}
    assert _codes(spans) == ["SUCCESS"] * 3


async def test_closed_loop_closes_its_generator():
    closed = []

    def coming(name):
        try:
            yield 1
        finally:
            closed.append(name)

    async def arriving():
        for each in coming("asynchronous"):
            yield each

    async with aclosing(process.each(arriving())) as loop:
        await anext(loop)
    assert closed == ["asynchronous"]
    with closing(process.each(coming("plain"))) as loop:
        next(loop)
    assert closed == ["asynchronous", "plain"]


def test_closed_loop_leaves_another_iterator_open():
    """An iterator with a close() of its own may be the consumer itself."""
    stream = MagicMock(spec=["__iter__", "__next__", "close"])
    stream.__iter__, stream.__next__ = lambda itself: itself, lambda _: 1
    with closing(process.each(stream)) as loop:
        assert next(loop) == 1
    stream.close.assert_not_called()
