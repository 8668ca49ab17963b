"""process: a block, a decorator for every kind of function, a loop; plain and asynchronous, one behaviour."""

import asyncio
import functools
import gc
import inspect
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import baggage, context, trace

from otel_mqtrace import process
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.model import ContextCode
from tests.support.consuming import let_others_run
from tests.support.mailbox import TRACEPARENT, Letter

pytestmark = pytest.mark.usefixtures("mailbox")


def _offset():
    return trace.get_current_span().attributes["messaging.kafka.offset"]


def _codes(exporter):
    return [span.attributes["mqtrace.context_code"] for span in exporter.take_all("process letters")]


async def _arriving(count):
    for number in range(count):
        await let_others_run()
        yield Letter(number)


class TestLoops:
    def test_each_message_is_current_in_the_body_and_nothing_after(self, exporter):
        for letter in process.each(Letter(n) for n in range(3)):
            assert _offset() == letter.number
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert _codes(exporter) == ["SUCCESS"] * 3

    async def test_an_asynchronous_loop_is_the_same(self, exporter):
        async for letter in process.each(_arriving(3)):
            await let_others_run()
            assert _offset() == letter.number
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert _codes(exporter) == ["SUCCESS"] * 3

    async def test_a_message_is_not_current_while_the_next_is_awaited(self, exporter):
        seen = []

        async def watched():
            async for letter in _arriving(2):
                seen.append(trace.get_current_span())
                yield letter

        async for _ in process.each(watched()):
            pass
        assert seen == [trace.INVALID_SPAN] * 2
        _codes(exporter)

    @pytest.mark.parametrize("leave", ["break", "raise"])
    def test_a_loop_that_is_left_ends_its_message_there_and_then(self, exporter, leave):
        def consume():
            for letter in process.each([Letter(1), Letter(2)]):
                if leave == "raise":
                    raise LookupError(letter)
                break
            assert trace.get_current_span() is trace.INVALID_SPAN

        if leave == "raise":
            with pytest.raises(LookupError):
                consume()
        else:
            consume()
        assert trace.get_current_span() is trace.INVALID_SPAN
        drain_deferred_ends()
        assert _codes(exporter) == ["RETURNNULL"]

    async def test_an_asynchronous_loop_that_is_left_does_so_too(self, exporter):
        async for _ in process.each(_arriving(2)):
            break
        assert trace.get_current_span() is trace.INVALID_SPAN
        drain_deferred_ends()
        assert _codes(exporter) == ["RETURNNULL"]

    def test_a_loop_that_is_kept_is_left_by_closing_it(self, exporter):
        loop = process.each([Letter(1), Letter(2)])
        next(loop)
        loop.close()
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert _codes(exporter) == ["RETURNNULL"]

    def test_a_loop_that_another_thread_collects_leaves_nothing_here(self, exporter):
        kept = [process.each([Letter(1), Letter(2)])]
        next(kept[0])
        with ThreadPoolExecutor(1) as pool:
            pool.submit(kept.clear).result(timeout=10)
            assert pool.submit(trace.get_current_span).result(timeout=10) is trace.INVALID_SPAN
        assert trace.get_current_span() is trace.INVALID_SPAN
        drain_deferred_ends()
        assert _codes(exporter) == ["RETURNNULL"]

    def test_a_source_that_fails_is_not_the_message_s_failure(self, exporter):
        def failing():
            yield Letter(1)
            raise ConnectionError

        with pytest.raises(ConnectionError):
            list(process.each(failing()))
        assert _codes(exporter) == ["SUCCESS"]

    def test_body_sets_its_outcome(self, exporter):
        for letter in process.each([Letter(1), Letter(2)]):
            if letter.number == 1:
                process.failed()
        assert _codes(exporter) == ["FAILED", "SUCCESS"]

    def test_object_that_cannot_be_iterated_raises_its_own_error(self):
        with pytest.raises(TypeError):
            process.each(5)


class TestDecorated:
    def test_the_message_is_found_wherever_it_stands(self, exporter):
        @process
        def handle(first, *, letter):
            return _offset()

        assert handle("not a message", letter=Letter(7)) == 7
        assert _codes(exporter) == ["SUCCESS"]

    def test_a_function_without_a_message_just_runs(self):
        @process
        def handle(text):
            return text

        assert handle("t") == "t"

    def test_a_coroutine_function_stays_one(self, exporter):
        @process
        async def handle(letter):
            await let_others_run()
            return ContextCode.FAILED if _offset() == 7 else None

        assert inspect.iscoroutinefunction(handle)
        asyncio.run(handle(Letter(7)))
        assert _codes(exporter) == ["FAILED"]

    def test_an_object_that_is_called_is_of_the_kind_of_its_call(self, exporter):
        class Handler:
            async def __call__(self, letter):
                await let_others_run()
                return _offset()

        assert asyncio.run(process(Handler())(Letter(3))) == 3
        assert asyncio.run(process(functools.partial(Handler().__call__))(Letter(4))) == 4
        assert _codes(exporter) == ["SUCCESS"] * 2

    def test_a_generator_has_its_message_in_its_body_only(self, exporter, tracing_with):
        tracer = tracing_with().tracer

        @process
        def parts(letter):
            with tracer.start_as_current_span("part") as part:
                heard = yield _parent_of(part)
                assert trace.get_current_span() is part
                yield heard
            yield _offset()
            return ContextCode.FAILED

        body = parts(Letter(7))
        assert inspect.isgeneratorfunction(parts)
        parent = next(body)
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert body.send("heard") == "heard"
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert list(body) == [7]
        assert exporter.take("part").parent.span_id == parent
        assert _codes(exporter) == ["FAILED"]

    def test_generator_receives_a_thrown_exception(self, exporter):
        @process
        def parts(letter):
            try:
                yield 1
            except LookupError:
                assert _offset() == 7
                yield 2

        body = parts(Letter(7))
        next(body)
        assert body.throw(LookupError()) == 2
        assert list(body) == []
        assert _codes(exporter) == ["SUCCESS"]

    def test_a_generator_that_raises_is_an_exception(self, exporter):
        @process
        def parts(letter):
            yield 1
            raise LookupError

        with pytest.raises(LookupError):
            list(parts(Letter(7)))
        assert _codes(exporter) == ["EXCEPTION"]

    def test_a_generator_that_is_dropped_is_returnnull_and_cleans_up(self, exporter):
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
        assert _codes(exporter) == ["RETURNNULL"]

    def test_generator_that_is_never_started_opens_no_span(self):
        @process
        def parts(letter):
            yield 1

        parts(Letter(7)).close()

    async def test_an_asynchronous_generator_is_the_same(self, exporter):
        @process
        async def parts(letter):
            heard = yield _offset()
            try:
                yield heard
            except LookupError:
                yield _offset()

        body = parts(Letter(7))
        assert await anext(body) == 7
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert await body.asend("heard") == "heard"
        assert await body.athrow(LookupError()) == 7
        assert [each async for each in body] == []
        dropped = parts(Letter(8))
        await anext(dropped)
        await dropped.aclose()
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert _codes(exporter) == ["SUCCESS", "RETURNNULL"]

    def test_a_consumer_may_be_named(self, exporter):
        @process(consumer=object())
        def handle(letter):
            return _offset()

        assert handle(Letter(7)) == 7
        assert _codes(exporter) == ["SUCCESS"]


def _parent_of(span):
    return span.parent.span_id


def test_baggage_is_restored_inside_and_gone_outside(exporter):
    letter = Letter(1, headers=(TRACEPARENT, ("baggage", b"order=42")))
    token = context.attach(baggage.set_baggage("mine", "1"))

    @process
    def handle(letter):
        return baggage.get_all()

    async def consume():
        async with process(letter):
            return baggage.get_all()

    try:
        seen = [handle(letter), asyncio.run(consume()), *(baggage.get_all() for _ in process.each([letter]))]
        assert [dict(each) for each in seen] == [{"mine": "1", "order": "42"}] * 3
        assert dict(baggage.get_all()) == {"mine": "1"}
    finally:
        context.detach(token)
    assert _codes(exporter) == ["SUCCESS"] * 3
