"""What the asyncio consumers record: each task holds what it was handed, and nothing stays behind in the pool."""

from __future__ import annotations

import asyncio
import gc

import pytest
from confluent_kafka.aio import AIOConsumer, AsyncDeserializingConsumer
from confluent_kafka.error import ValueDeserializationError
from opentelemetry import baggage
from opentelemetry.trace import StatusCode

from otel_mqtrace import process
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.model import ContextCode
from tests.support.consuming import aio_consumer, aio_poll, code_of, current_span_id

PARENT = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


async def _in_pool(consumer, ask):
    loop = asyncio.get_running_loop()
    return [await loop.run_in_executor(consumer.executor, ask) for _ in range(4)]


def test_a_message_is_in_process_in_the_coroutine_until_its_next_poll(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x", "headers": [PARENT, ("baggage", "tenant=t1")]})
    instrument()

    async def run():
        consumer = await aio_consumer(kafka, topic)
        await aio_poll(consumer)
        inside = current_span_id(), baggage.get_baggage("tenant")
        in_pool = await _in_pool(consumer, current_span_id)
        assert await consumer.poll(0) is None
        outside = current_span_id()
        await consumer.close()
        return *inside, in_pool, outside

    current, tenant, in_pool, outside = asyncio.run(run())
    span = spans.take(f"process {topic}")
    assert (current, tenant, in_pool, outside) == (span.context.span_id, "t1", [0] * 4, 0)
    assert span.parent.span_id == 0xB7AD6B7169203331
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert code_of(span) is ContextCode.SUCCESS


def test_a_batch_is_one_span_with_a_link_per_message(instrument, kafka, spans, fill, topic):
    fill(topic, *({"value": b"x", "headers": [PARENT]} for _ in range(3)))
    instrument()

    async def run():
        async with await aio_consumer(kafka, topic) as consumer:
            assert len(await consumer.consume(3, 10)) == 3
            return current_span_id()

    current = asyncio.run(run())
    span = spans.take(f"process {topic}")
    assert (span.context.span_id, len(span.links)) == (current, 3)
    assert span.attributes["messaging.batch.message_count"] == 3


def test_a_block_takes_the_span_over(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"1"}, {"value": b"2"})
    instrument()

    async def handle(message):
        with process(message) as handling:
            handling.failed()
            return current_span_id()

    async def run():
        consumer = await aio_consumer(kafka, topic)
        message, automatic = await aio_poll(consumer), current_span_id()
        inside = [await handle(message) == automatic]
        message, automatic = await aio_poll(consumer), current_span_id()
        inside.append(await asyncio.create_task(handle(message)) == automatic)
        await consumer.close()
        return inside

    assert asyncio.run(run()) == [True, True]
    assert [code_of(span) for span in spans.take_all()] == [ContextCode.FAILED] * 2


def test_an_asynchronous_generator_keeps_the_span_in_its_loop(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"1"}, {"value": b"2"})
    instrument()

    async def stream(consumer):
        while (message := await consumer.poll(0.2)) is not None:
            yield message

    async def run():
        async with await aio_consumer(kafka, topic) as consumer:
            await aio_poll(consumer)
            seen = [current_span_id() async for _ in stream(consumer)]
        return seen, current_span_id()

    seen, outside = asyncio.run(run())
    assert outside == 0
    assert [span.context.span_id for span in spans.take_all()][1:] == seen


class TestHowItEnds:
    @pytest.mark.parametrize("with_block", [True, False])
    def test_an_exception_that_closes_the_consumer_says_so(self, instrument, kafka, spans, fill, topic, with_block):
        fill(topic, {"value": b"x"})
        instrument()

        async def block():
            async with await aio_consumer(kafka, topic) as consumer:
                await aio_poll(consumer)
                raise RuntimeError("handler")

        async def final():
            consumer = await aio_consumer(kafka, topic)
            try:
                await aio_poll(consumer)
                raise RuntimeError("handler")
            finally:
                await consumer.close()

        with pytest.raises(RuntimeError):
            asyncio.run(block() if with_block else final())
        span = spans.take()
        assert (code_of(span), span.status.status_code) == (ContextCode.EXCEPTION, StatusCode.ERROR)

    def test_closing_under_the_hands_of_another_task_is_not_its_end(self, instrument, kafka, spans, fill, topic):
        fill(topic, {"value": b"x"})
        instrument()

        async def waits(consumer, polled):
            await aio_poll(consumer)
            polled.set()
            await asyncio.Event().wait()

        async def run():
            consumer, polled = await aio_consumer(kafka, topic), asyncio.Event()
            task = asyncio.create_task(waits(consumer, polled))
            await polled.wait()
            await consumer.close()
            spans.assert_empty()
            task.cancel()
            await asyncio.wait([task])
            return spans.take_all()

        assert [code_of(span) for span in asyncio.run(run())] == [ContextCode.EXCEPTION]

    def test_a_message_its_deserialiser_refuses_failed(self, instrument, kafka, spans, fill, topic):
        fill(topic, {"value": b"1"}, {"value": b"2"})
        instrument()

        async def refuse(value, ctx):
            if value == b"1":
                raise ValueError("not mine")
            return value.decode()

        def make(conf, **more):
            return AsyncDeserializingConsumer({**conf, "value.deserializer": refuse}, **more)

        async def run():
            consumer = await aio_consumer(kafka, topic, make)
            with pytest.raises(ValueDeserializationError):
                await aio_poll(consumer)
            refused = spans.take()
            message, current = await aio_poll(consumer), current_span_id()
            await consumer.close()
            return refused, message.value(), current

        refused, value, current = asyncio.run(run())
        assert (code_of(refused), value) == (ContextCode.EXCEPTION, "2")
        assert spans.take().context.span_id == current

    def test_switching_off_ends_what_is_being_handled(self, instrument, kafka, spans, fill, topic):
        fill(topic, {"value": b"1"}, {"value": b"2"})
        instrument()

        async def run():
            consumer = await aio_consumer(kafka, topic)
            await aio_poll(consumer)
            MqTraceInstrumentor().uninstrument()
            ended = spans.take_all()
            assert current_span_id() == 0
            assert (await aio_poll(consumer)).value() == b"2"
            await consumer.close()
            return ended

        assert [code_of(span) for span in asyncio.run(run())] == [ContextCode.RETURNNULL]


def test_a_consumer_made_before_is_traced_too(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x"})

    async def run():
        consumer = await aio_consumer(kafka, topic)
        instrument()
        await aio_poll(consumer)
        await consumer.close()

    asyncio.run(run())
    assert "messaging.consumer.group.name" not in spans.take().attributes


def test_callbacks_inside_a_poll_see_no_message(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x"})
    instrument(receive_spans=True)
    seen = []

    async def assigned(consumer, partitions):
        seen.append(current_span_id())

    async def run():
        settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
        consumer = AIOConsumer(settings, max_workers=2)
        await consumer.subscribe([topic], on_assign=assigned)
        await aio_poll(consumer)
        await consumer.close()

    asyncio.run(run())
    assert seen == [0]
    assert len(spans.take_all()) == 2


def test_a_commit_settles_inside_the_process_span(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x", "headers": [PARENT]})
    instrument(settle_spans=True)

    async def run():
        consumer = await aio_consumer(kafka, topic)
        message = await aio_poll(consumer)
        (settled,) = await consumer.commit(message=message, asynchronous=False)
        await consumer.close()
        return settled.offset, current_span_id()

    assert asyncio.run(run()) == (1, 0)
    commit = spans.take(f"commit {topic}")
    assert commit.parent.span_id == spans.take(f"process {topic}").context.span_id
    assert [link.context.span_id for link in commit.links] == [0xB7AD6B7169203331]


def test_a_forgotten_consumer_is_freed_and_its_span_ends(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x"})
    instrument()

    async def run():
        consumer = await aio_consumer(kafka, topic)
        await aio_poll(consumer)
        consumer.executor.shutdown()
        del consumer
        gc.collect()
        drain_deferred_ends()
        return spans.take_all()

    assert [code_of(span) for span in asyncio.run(run())] == [ContextCode.RETURNNULL]
