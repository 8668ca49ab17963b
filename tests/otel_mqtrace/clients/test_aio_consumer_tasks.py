"""Which task of an asyncio application holds a message, and how it ends when the task does."""

from __future__ import annotations

import asyncio
import gc

import pytest

from otel_mqtrace.model import ContextCode
from tests.support.consuming import aio_consumer, aio_poll, code_of, current_span_id, turn_of_the_loop


def test_tasks_that_share_a_consumer_hold_their_own_messages(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"1"}, {"value": b"2"})
    instrument()

    async def worker(consumer, polled, go_on):
        message = await aio_poll(consumer)
        polled.set()
        await go_on.wait()
        return message.offset(), current_span_id()

    async def run():
        consumer = await aio_consumer(kafka, topic)
        events = [asyncio.Event() for _ in range(4)]
        first = asyncio.create_task(worker(consumer, events[0], events[1]))
        await events[0].wait()
        second = asyncio.create_task(worker(consumer, events[2], events[3]))
        await events[2].wait()
        assert await consumer.poll(0) is None
        spans.assert_empty()
        events[3].set()
        seen = [await second]
        assert len(spans.take_all()) == 1
        events[1].set()
        seen.append(await first)
        last = spans.take()
        await consumer.close()
        return seen, last

    seen, last = asyncio.run(run())
    assert {offset for offset, _ in seen} == {0, 1}
    assert len({span_id for _, span_id in seen}) == 2
    assert dict(seen)[0] == last.context.span_id


def test_a_task_that_ends_says_how(instrument, kafka, spans, fill, topic):
    fill(topic, *({"value": b"x"} for _ in range(3)))
    instrument()

    async def returns(consumer):
        await aio_poll(consumer)

    async def raises(consumer):
        await aio_poll(consumer)
        raise KeyError("mine")

    async def waits(consumer, polled):
        await aio_poll(consumer)
        polled.set()
        await asyncio.Event().wait()

    async def run():
        consumer = await aio_consumer(kafka, topic)
        await asyncio.create_task(returns(consumer))
        with pytest.raises(KeyError):
            await asyncio.create_task(raises(consumer))
        polled = asyncio.Event()
        task = asyncio.create_task(waits(consumer, polled))
        await polled.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ended = spans.take_all()
        await consumer.close()
        return ended

    ended = asyncio.run(run())
    assert [code_of(span) for span in ended] == [ContextCode.SUCCESS, ContextCode.EXCEPTION, ContextCode.EXCEPTION]
    assert [span.attributes.get("error.type") for span in ended] == [None, "KeyError", "CancelledError"]


def test_an_exception_nobody_asks_for_is_still_complained_of(instrument, kafka, spans, fill, topic):
    """asyncio reports a task whose exception was never retrieved; that we looked at it must not silence that."""
    fill(topic, {"value": b"x"})
    instrument()
    complaints = []

    async def raises(consumer):
        await aio_poll(consumer)
        raise KeyError("mine")

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, said: complaints.append(said["message"]))
        consumer = await aio_consumer(kafka, topic)
        task = asyncio.create_task(raises(consumer))
        await asyncio.wait([task])
        del task
        gc.collect()
        await consumer.close()

    asyncio.run(run())
    assert code_of(spans.take()) is ContextCode.EXCEPTION
    assert complaints == ["Task exception was never retrieved"]


def test_a_poll_in_a_task_of_its_own_lasts_until_the_next_poll(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x"})
    instrument()

    async def run():
        consumer = await aio_consumer(kafka, topic)
        message = None
        while message is None:
            message = await asyncio.create_task(consumer.poll(1))
        await turn_of_the_loop()
        spans.assert_empty()
        await asyncio.create_task(consumer.poll(0))
        ended = spans.take_all()
        await consumer.close()
        return ended

    assert [code_of(span) for span in asyncio.run(run())] == [ContextCode.SUCCESS]


def test_a_cancelled_poll_hands_nothing_over(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x"})
    instrument()

    async def run():
        consumer = await aio_consumer(kafka, topic)
        await aio_poll(consumer)
        task = asyncio.create_task(consumer.poll(1))
        await turn_of_the_loop()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await consumer.poll(0) is None
        ended = len(spans.take_all())
        await consumer.close()
        return ended

    assert asyncio.run(run()) == 1
