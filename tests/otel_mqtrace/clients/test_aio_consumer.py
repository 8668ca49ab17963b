"""confluent-kafka's asyncio consumer: the coroutine and the task that hold a message."""

import asyncio
import gc

import pytest
from confluent_kafka.aio import AIOConsumer, AsyncDeserializingConsumer
from confluent_kafka.error import ValueDeserializationError
from opentelemetry import baggage
from opentelemetry.trace import StatusCode

from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.model import ContextCode
from tests.support.consuming import aio_consumer, aio_poll, code_of, current_span_id, let_others_run

PARENT = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


@pytest.fixture
def consuming(instrument, kafka, fill, topic):
    """Put messages on the topic, switch tracing on with options, and return the coroutine that makes a consumer."""

    def start(*messages, make=AIOConsumer, **options):
        fill(topic, *(each if isinstance(each, dict) else {"value": each} for each in messages or [b"x"]))
        instrument(**options)
        return aio_consumer(kafka, topic, make)

    return start


async def test_message_is_current_in_the_coroutine_until_its_next_poll(consuming, spans, topic):
    consumer = await consuming({"value": b"x", "headers": [PARENT, ("baggage", "tenant=t1")]})
    await aio_poll(consumer)
    current, tenant = current_span_id(), baggage.get_baggage("tenant")
    loop = asyncio.get_running_loop()
    in_pool = [await loop.run_in_executor(consumer.executor, current_span_id) for _ in range(4)]
    assert await consumer.poll(0) is None
    outside = current_span_id()
    await consumer.close()
    span = spans.take(f"process {topic}")
    assert (current, tenant, in_pool, outside) == (span.context.span_id, "t1", [0] * 4, 0)
    assert span.parent.span_id == 0xB7AD6B7169203331
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert code_of(span) is ContextCode.SUCCESS


async def test_batch_is_one_span_with_a_link_for_each_message(consuming, spans, topic):
    async with await consuming(*({"value": b"x", "headers": [PARENT]} for _ in range(3))) as consumer:
        assert len(await consumer.consume(3, 10)) == 3
        current = current_span_id()
    span = spans.take(f"process {topic}")
    assert (span.context.span_id, len(span.links)) == (current, 3)
    assert span.attributes["messaging.batch.message_count"] == 3


class TestHowItEnds:
    @pytest.mark.parametrize("with_block", [True, False])
    def test_exception_that_closes_the_consumer_fails_the_message(self, consuming, spans, with_block):
        async def block():
            async with await consuming() as consumer:
                await aio_poll(consumer)
                raise RuntimeError("handler")

        async def final():
            consumer = await consuming()
            try:
                await aio_poll(consumer)
                raise RuntimeError("handler")
            finally:
                await consumer.close()

        with pytest.raises(RuntimeError):
            asyncio.run(block() if with_block else final())
        span = spans.take()
        assert (code_of(span), span.status.status_code) == (ContextCode.EXCEPTION, StatusCode.ERROR)

    async def test_close_by_another_task_leaves_the_message_to_its_task(self, consuming, spans):
        async def waits(consumer, polled):
            await aio_poll(consumer)
            polled.set()
            await asyncio.Event().wait()

        consumer, polled = await consuming(), asyncio.Event()
        task = asyncio.create_task(waits(consumer, polled))
        await polled.wait()
        await consumer.close()
        spans.assert_empty()
        task.cancel()
        await asyncio.wait([task])
        assert [code_of(span) for span in spans.take_all()] == [ContextCode.EXCEPTION]

    async def test_message_its_deserializer_refuses_has_failed(self, consuming, spans):
        async def refuse(value, ctx):
            if value == b"1":
                raise ValueError("not mine")
            return value.decode()

        def make(conf, **more):
            return AsyncDeserializingConsumer({**conf, "value.deserializer": refuse}, **more)

        consumer = await consuming(b"1", b"2", make=make)
        with pytest.raises(ValueDeserializationError):
            await aio_poll(consumer)
        refused = spans.take()
        message, current = await aio_poll(consumer), current_span_id()
        await consumer.close()
        assert (code_of(refused), message.value()) == (ContextCode.EXCEPTION, "2")
        assert spans.take().context.span_id == current

    async def test_uninstrument_ends_the_current_message_of_a_task(self, consuming, spans):
        consumer = await consuming(b"1", b"2")
        await aio_poll(consumer)
        MqTraceInstrumentor().uninstrument()
        ended = spans.take_all()
        assert current_span_id() == 0
        assert (await aio_poll(consumer)).value() == b"2"
        await consumer.close()
        assert [code_of(span) for span in ended] == [ContextCode.RETURNNULL]


async def test_consumer_made_before_is_traced(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x"})
    consumer = await aio_consumer(kafka, topic)
    instrument()
    await aio_poll(consumer)
    await consumer.close()
    assert "messaging.consumer.group.name" not in spans.take().attributes


async def test_rebalance_callback_of_a_poll_has_no_current_message(instrument, kafka, spans, fill, topic):
    fill(topic, {"value": b"x"})
    instrument(receive_spans=True)
    seen = []

    async def assigned(consumer, partitions):
        seen.append(current_span_id())

    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = AIOConsumer(settings, max_workers=2)
    await consumer.subscribe([topic], on_assign=assigned)
    await aio_poll(consumer)
    await consumer.close()
    assert seen == [0]
    assert len(spans.take_all()) == 2


async def test_commit_is_a_child_of_the_process_span(consuming, spans, topic):
    consumer = await consuming({"value": b"x", "headers": [PARENT]}, settle_spans=True)
    message = await aio_poll(consumer)
    (settled,) = await consumer.commit(message=message, asynchronous=False)
    await consumer.close()
    assert (settled.offset, current_span_id()) == (1, 0)
    commit = spans.take(f"commit {topic}")
    assert commit.parent.span_id == spans.take(f"process {topic}").context.span_id
    assert [link.context.span_id for link in commit.links] == [0xB7AD6B7169203331]


async def test_message_of_a_collected_consumer_ends(consuming, spans):
    consumer = await consuming()
    await aio_poll(consumer)
    consumer.executor.shutdown()
    del consumer
    gc.collect()
    drain_deferred_ends()
    ended = spans.take_all()
    assert [code_of(span) for span in ended] == [ContextCode.RETURNNULL]


def test_unretrieved_exception_is_still_logged(consuming, spans):
    """asyncio reports a task whose exception was never retrieved; that we looked at it must not silence that."""
    complaints = []

    async def raises(consumer):
        await aio_poll(consumer)
        raise KeyError("mine")

    async def run():
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
        consumer = await consuming()
        task = asyncio.create_task(raises(consumer))
        await asyncio.wait([task])
        del task
        gc.collect()
        await consumer.close()

    asyncio.run(run())
    assert code_of(spans.take()) is ContextCode.EXCEPTION
    assert complaints == ["Task exception was never retrieved"]


async def test_cancelled_poll_has_no_message(consuming, spans):
    consumer = await consuming()
    await aio_poll(consumer)
    task = asyncio.create_task(consumer.poll(1))
    await let_others_run()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await consumer.poll(0) is None
    ended = len(spans.take_all())
    await consumer.close()
    assert ended == 1
