"""How the tests of a traced consumer ask a real one for messages."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import TopicPartition
from confluent_kafka.aio import AIOConsumer
from opentelemetry import trace

from otel_mqtrace.spans.mapping import trace_context_of

PATIENCE_SECONDS = 60  # a busy machine is no failure


def poll(consumer, *, timeouts=PATIENCE_SECONDS):
    """Return the first thing that a poll gives, a message or an error; fail when nothing comes for that many seconds."""
    for _ in range(timeouts):
        message = consumer.poll(1)
        if message is not None:
            return message
    raise AssertionError("no message came")


def consume(consumer, count):
    messages = consumer.consume(count, PATIENCE_SECONDS)
    assert len(messages) == count
    return messages


def current_span_id():
    """Return the id of the span that is current here; 0 when there is none."""
    return trace.get_current_span().get_span_context().span_id


def code_of(span):
    return trace_context_of(span).context_code


async def aio_consumer(kafka, topic, make=AIOConsumer, **conf):
    """Return an asyncio consumer that reads ``topic`` from its beginning; ``conf`` uses underscores for dots."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "enable.auto.commit": False}
    consumer = make({**settings, **{name.replace("_", "."): value for name, value in conf.items()}}, max_workers=2)
    if asyncio.iscoroutine(consumer):
        consumer = await consumer
    await consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


async def aio_poll(consumer, *, timeouts=PATIENCE_SECONDS):
    for _ in range(timeouts):
        message = await consumer.poll(1)
        if message is not None:
            return message
    raise AssertionError("no message came")


async def let_others_run():
    passed = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(passed.set_result, None)
    await passed


def in_thread(act, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act, *args).result(timeout=PATIENCE_SECONDS)
