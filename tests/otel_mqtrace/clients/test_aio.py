"""confluent-kafka's asyncio clients: the coroutine's send, ended by the broker's answer; the task that holds a message."""

import asyncio
import gc
import threading
from contextlib import asynccontextmanager, nullcontext

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.aio import AIOConsumer, AIOProducer, AsyncDeserializingConsumer, AsyncSerializingProducer
from confluent_kafka.error import ValueDeserializationError
from opentelemetry import baggage, context
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.model import ContextCode
from tests.support.consuming import aio_consumer, aio_poll, code_of, current_span_id, let_others_run
from tests.support.mailbox import SENDER, TRACEPARENT


class _Tenant(AIOProducer):
    async def produce(self, topic, value=None, key=None, *args, **kwargs):
        return await super().produce(f"{topic}", value, key, *args, **kwargs)


@pytest.fixture
def producing(instrument, kafka):
    """Give a traced producer that flushes only when told to, closed at the end of the block."""

    @asynccontextmanager
    async def make(policy="correlate", make_producer=AIOProducer, conf=None, **options):
        instrument(headerless_sends=policy)
        configuration = {"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop", **(conf or {})}
        producer = make_producer(configuration, **{"buffer_timeout": 0, "max_workers": 1, **options})
        if asyncio.iscoroutine(producer):
            producer = await producer
        try:
            yield producer
        finally:
            await producer.close()

    return make


@pytest.mark.parametrize(
    ("make_producer", "conf", "value"),
    [
        (AIOProducer, {}, b"12345"),
        (_Tenant, {}, b"12345"),
        (AsyncSerializingProducer, {"value.serializer": lambda value, _: str(value).encode()}, 12345),
    ],
)
async def test_send_span_is_a_child_of_the_span_of_the_coroutine(
    producing, spans, tracer, topic, make_producer, conf, value
):
    async with producing(make_producer=make_producer, conf=conf) as producer:
        with tracer.start_as_current_span("checkout") as checkout:
            sent = await producer.produce(topic, value=value, key="k")
        spans.take("checkout")
        spans.assert_empty()
        await producer.flush()
        message = await sent
    assert message.value() == b"12345"
    send = spans.take(f"send {topic}")
    assert (send.parent.span_id, send.kind) == (checkout.get_span_context().span_id, SpanKind.CLIENT)
    assert send.attributes["messaging.message.id"] == f"{topic}-0@{message.offset()}"
    assert send.attributes["messaging.message.body.size"] == 5
    assert send.attributes["messaging.kafka.message.key"] == "k"
    assert send.attributes["messaging.client.id"] == "shop"


@pytest.mark.parametrize(("policy", "around"), [("leave", nullcontext), ("correlate", suppress_instrumentation)])
async def test_send_under_leave_or_suppressed_has_no_span(producing, spans, topic, policy, around):
    async with producing(policy) as producer:
        with around():
            await producer.produce(topic, b"x")
        await producer.flush()
    spans.assert_empty()


async def test_full_buffer_is_sent_inside_the_call_and_leaves_no_context_in_the_pool(producing, spans, tracer, topic):
    async with producing(batch_size=1) as producer:
        with tracer.start_as_current_span("checkout"):
            futures = [await producer.produce(topic, b"x") for _ in range(2)]
            await producer.flush()
        assert [(await future).error() for future in futures] == [None, None]
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(producer.executor, lambda: dict(context.get_current())) == {}
    spans.take("checkout")
    sends = spans.take_all(f"send {topic}")
    assert [send.attributes["mqtrace.success"] for send in sends] == [True, True]


class TestEnds:
    async def test_cancelled_future_does_not_end_the_send(self, producing, spans, topic):
        async with producing() as producer:
            (await producer.produce(topic, b"x")).cancel()
            spans.assert_empty()
            await producer.flush()
        assert spans.take(f"send {topic}").attributes["messaging.kafka.offset"] == 0

    async def test_purged_message_ends_as_purged(self, producing, spans, topic):
        async with producing() as producer:
            sent = await producer.produce(topic, b"x")
            await producer.purge()
            assert sent.cancelled()
        assert spans.take(f"send {topic}").attributes["error.type"] == "_PURGE_QUEUE"

    async def test_call_cancelled_while_a_full_buffer_is_sent_has_one_span(self, producing, spans, topic):
        async with producing(batch_size=1) as producer:
            held = threading.Event()
            busy = producer.executor.submit(held.wait, 10)
            sending = asyncio.ensure_future(producer.produce(topic, b"x"))
            await let_others_run()
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            held.set()
            busy.result()
            await producer.flush()
        del sending
        gc.collect()
        drain_deferred_ends()
        assert spans.take(f"send {topic}").attributes["mqtrace.send_outcome"] == "abandoned"

    async def test_message_in_the_buffer_at_uninstrument_ends_there(self, producing, instrument, spans, topic):
        async with producing() as producer:
            sent = await producer.produce(topic, b"x")
            MqTraceInstrumentor().uninstrument()
            assert spans.take(f"send {topic}").attributes["mqtrace.send_outcome"] == "not_awaited"
            instrument()
            await producer.flush()
            assert (await sent).offset() == 0
        spans.assert_empty()

    async def test_headers_are_refused_as_without_tracing(self, producing, spans, topic):
        async with producing() as producer:
            with pytest.raises(NotImplementedError, match="Headers are not supported"):
                await producer.produce(topic, b"x", headers={"a": b"1"})
        assert spans.take(f"send {topic}").attributes["error.type"] == "NotImplementedError"

    async def test_batch_the_client_refuses_has_a_span_for_each_attempt(self, producing, spans, tracer, topic):
        async with producing() as producer:
            with tracer.start_as_current_span("checkout"):
                sent = await producer.produce(topic, b"x", timestamp=5)
            for _ in range(2):
                with pytest.raises(NotImplementedError):
                    await producer.flush()
            assert isinstance(sent.exception(), NotImplementedError)
            await producer.purge()
        parent = spans.take("checkout").context.span_id
        attempts = [(send.attributes["error.type"], send.parent.span_id) for send in spans.take_all(f"send {topic}")]
        assert attempts == [("NotImplementedError", parent)] * 2

    async def test_message_of_a_transaction_has_its_end(self, producing, spans, topic):
        async with producing(conf={"transactional.id": f"aio-{topic}"}) as producer:
            await producer.init_transactions(10)
            await producer.begin_transaction()
            await producer.produce(topic, b"x")
            await producer.commit_transaction(10)
        send, end = spans.take(f"send {topic}"), spans.take(f"end_transaction {topic}")
        assert send.attributes["mqtrace.msg_type"] == "Trans_Msg_Half"
        assert end.attributes["mqtrace.transaction_id"] == send.attributes["mqtrace.transaction_id"]
        assert end.attributes["messaging.message.id"] == send.attributes["messaging.message.id"]


async def test_sends_of_a_producer_made_before_end_with_their_futures(instrument, kafka, spans, topic):
    producer = AIOProducer({"bootstrap.servers": kafka.bootstrap_servers}, buffer_timeout=0)
    instrument()
    futures = [await producer.produce(topic, body) for body in (b"1", b"x" * 2_000_000, b"22")]
    futures[2].cancel()
    await producer.flush()
    assert (await futures[0]).offset() == 0
    with pytest.raises(KafkaException):
        await futures[1]
    await producer.close()
    sends = {send.attributes["messaging.message.body.size"]: send.attributes for send in spans.take_all()}
    assert sends[1]["messaging.message.id"] == f"{topic}-0@0"
    assert sends[2_000_000]["error.type"] == "MSG_SIZE_TOO_LARGE"
    assert sends[2]["mqtrace.send_outcome"] == "not_awaited"


@pytest.fixture
def consuming(instrument, kafka, fill, topic):
    """Put messages on the topic, switch tracing on with options, and return the coroutine that makes a consumer."""

    def start(*messages, make=AIOConsumer, **options):
        fill(topic, *messages or [b"x"])
        instrument(**options)
        return aio_consumer(kafka, topic, make)

    return start


async def test_message_is_current_in_the_coroutine_until_its_next_poll(consuming, spans, topic):
    consumer = await consuming({"value": b"x", "headers": [TRACEPARENT, ("baggage", "tenant=t1")]})
    await aio_poll(consumer)
    current, tenant = current_span_id(), baggage.get_baggage("tenant")
    loop = asyncio.get_running_loop()
    in_pool = [await loop.run_in_executor(consumer.executor, current_span_id) for _ in range(4)]
    assert await consumer.poll(0) is None
    outside = current_span_id()
    await consumer.close()
    span = spans.take(f"process {topic}")
    assert (current, tenant, in_pool, outside) == (span.context.span_id, "t1", [0] * 4, 0)
    assert span.parent.span_id == SENDER
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert code_of(span) is ContextCode.SUCCESS


async def test_poll_that_waits_while_tracing_is_switched_off_opens_no_span(consuming, fill, spans, topic):
    consumer = await consuming()
    await aio_poll(consumer)
    waiting = asyncio.ensure_future(aio_poll(consumer))
    await let_others_run()
    MqTraceInstrumentor().uninstrument()
    spans.take(f"process {topic}")
    fill(topic, {"value": b"2"})
    await waiting
    await consumer.close()
    spans.assert_empty()


class TestHowItEnds:
    async def test_exception_that_closes_the_consumer_fails_the_message(self, consuming, spans):
        with pytest.raises(RuntimeError):  # noqa: PT012 - a handler
            async with await consuming() as consumer:
                await aio_poll(consumer)
                raise RuntimeError("handler")
        span = spans.take()
        assert (code_of(span), span.status.status_code) == (ContextCode.EXCEPTION, StatusCode.ERROR)

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
        assert (code_of(refused), refused.attributes["error.type"]) == (ContextCode.EXCEPTION, "_VALUE_DESERIALIZATION")
        assert message.value() == "2"
        assert spans.take().context.span_id == current


async def test_consumer_made_before_is_traced(instrument, kafka, spans, fill, topic):
    fill(topic, *[{"value": b"x"}] * 2)
    consumer = await aio_consumer(kafka, topic)
    instrument()
    assert len(await consumer.consume(2, 10)) == 2
    current = current_span_id()
    await consumer.close()
    span = spans.take()
    assert (span.context.span_id, span.attributes["messaging.batch.message_count"]) == (current, 2)
    assert "messaging.consumer.group.name" not in span.attributes


async def test_commit_is_a_child_of_the_process_span(consuming, spans, topic):
    consumer = await consuming({"value": b"x", "headers": [TRACEPARENT]}, settle_spans=True)
    (settled,) = await consumer.commit(message=await aio_poll(consumer), asynchronous=False)
    await consumer.close()
    assert (settled.offset, current_span_id()) == (1, 0)
    commit = spans.take(f"commit {topic}")
    assert commit.parent.span_id == spans.take(f"process {topic}").context.span_id
    assert [link.context.span_id for link in commit.links] == [SENDER]
