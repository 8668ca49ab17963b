"""process: a block, a decorator for every kind of function, a loop; plain and asynchronous, one behaviour."""

import asyncio
import functools
import gc
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

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
    def test_each_message_is_current_in_the_body_of_the_loop_only(self, exporter):
        for letter in process.each(Letter(n) for n in range(3)):
            assert _offset() == letter.number
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert _codes(exporter) == ["SUCCESS"] * 3

    async def test_each_message_is_current_in_the_body_of_an_asynchronous_loop_only(self, exporter):
        while_awaited = []

        async def watched():
            async for letter in _arriving(3):
                while_awaited.append(trace.get_current_span())
                yield letter

        async for letter in process.each(watched()):
            await let_others_run()
            assert _offset() == letter.number
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert while_awaited == [trace.INVALID_SPAN] * 3
        assert _codes(exporter) == ["SUCCESS"] * 3

    @pytest.mark.parametrize("error", [None, LookupError])
    def test_left_loop_ends_its_message_at_once(self, exporter, error):
        def consume():
            for _ in process.each([Letter(1), Letter(2)]):
                if error:
                    raise error
                break
            assert trace.get_current_span() is trace.INVALID_SPAN

        with pytest.raises(error) if error else nullcontext():
            consume()
        assert trace.get_current_span() is trace.INVALID_SPAN
        drain_deferred_ends()
        assert _codes(exporter) == ["RETURNNULL"]

    async def test_left_asynchronous_loop_ends_its_message_at_once(self, exporter):
        async for _ in process.each(_arriving(2)):
            break
        assert trace.get_current_span() is trace.INVALID_SPAN
        drain_deferred_ends()
        assert _codes(exporter) == ["RETURNNULL"]

    def test_closed_loop_ends_its_message(self, exporter):
        loop = process.each([Letter(1), Letter(2)])
        next(loop)
        loop.close()
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert _codes(exporter) == ["RETURNNULL"]

    def test_loop_collected_by_another_thread_leaves_no_current_span(self, exporter):
        kept = [process.each([Letter(1), Letter(2)])]
        next(kept[0])
        with ThreadPoolExecutor(1) as pool:
            pool.submit(kept.clear).result(timeout=10)
            assert pool.submit(trace.get_current_span).result(timeout=10) is trace.INVALID_SPAN
        assert trace.get_current_span() is trace.INVALID_SPAN
        drain_deferred_ends()
        assert _codes(exporter) == ["RETURNNULL"]

    def test_exception_of_the_source_is_not_an_outcome(self, exporter):
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
    def test_message_is_found_among_all_arguments(self, exporter):
        class Biller:
            @process
            def handle(self, first, *, letter):
                return _offset()

        assert Biller().handle("not a message", letter=Letter(7)) == 7
        assert _codes(exporter) == ["SUCCESS"]

    def test_function_without_a_message_runs_without_a_span(self):
        @process
        def handle(text):
            return text

        assert handle("t") == "t"

    def test_decorated_coroutine_function_stays_one(self, exporter):
        @process
        async def handle(letter):
            await let_others_run()
            return ContextCode.FAILED if _offset() == 7 else None

        assert inspect.iscoroutinefunction(handle)
        asyncio.run(handle(Letter(7)))
        assert _codes(exporter) == ["FAILED"]

    def test_decorated_callable_object_is_a_coroutine_as_its_call_is(self, exporter):
        class Handler:
            async def __call__(self, letter):
                await let_others_run()
                return _offset()

        assert asyncio.run(process(Handler())(Letter(3))) == 3
        assert asyncio.run(process(functools.partial(Handler().__call__))(Letter(4))) == 4
        assert _codes(exporter) == ["SUCCESS"] * 2

    def test_generator_has_its_message_current_in_its_body_only(self, exporter, tracing_with):
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
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert body.send("heard") == "heard"
        assert trace.get_current_span() is trace.INVALID_SPAN
        assert body.throw(LookupError()) == 7
        assert list(body) == []
        assert exporter.take("part").parent.span_id == parent
        assert _codes(exporter) == ["FAILED"]

    def test_generator_that_raises_is_an_exception(self, exporter):
        @process
        def parts(letter):
            yield 1
            raise LookupError

        with pytest.raises(LookupError):
            list(parts(Letter(7)))
        parts(Letter(8)).close()  # never started: no span
        assert _codes(exporter) == ["EXCEPTION"]

    def test_collected_generator_is_returnnull_and_cleans_up(self, exporter):
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

    async def test_asynchronous_generator_has_its_message_current_in_its_body_only(self, exporter):
        @process
        async def parts(letter):
            received = yield _offset()
            try:
                yield received
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

    @pytest.mark.parametrize("options", [{}, {"consumer": object()}])
    def test_decorator_may_be_called_with_options(self, exporter, options):
        @process(**options)
        def handle(letter):
            return _offset()

        assert handle(Letter(7)) == 7
        assert _codes(exporter) == ["SUCCESS"]


@pytest.mark.parametrize("consumer", [None, object()])
def test_poll_that_returned_nothing_is_a_block_without_a_span(exporter, consumer):
    with process(None, consumer=consumer) as handling:
        handling.failed()
    exporter.assert_empty()


def test_baggage_is_restored_inside_only(exporter):
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
