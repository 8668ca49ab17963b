"""aiokafka under tracing against a real Kafka: groups, transactions that readers respect, the cluster's own id."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer

from otel_mqtrace.instrumentor import AioKafkaInstrumentor
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import trace_context_of
from tests.peers.traced import recording
from tests.support.asyncio_kafka import producing

pytestmark = pytest.mark.peers


@pytest.fixture
def spans():
    """aiokafka traced, settlements too; every span is to be taken, and nothing of ours to fail."""
    with recording(AioKafkaInstrumentor(), settle_spans=True, process_context="parent") as exporter:
        yield exporter
    exporter.assert_empty()


def test_messages_of_a_group_are_handled_once(kafka, spans):
    topic = kafka.create_topic("aiokafka-group", partitions=2)

    async def story():
        async with producing(kafka, acks="all") as producer:
            for n in range(6):
                await producer.send_and_wait(topic, b"%d" % n, partition=n % 2)
        seen = []
        for _ in range(2):
            async with AIOKafkaConsumer(
                topic,
                bootstrap_servers=kafka.bootstrap_servers,
                group_id="aiokafka-billing",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            ) as consumer:
                async for record in consumer:
                    seen.append(record.value)
                    if len(seen) % 3 == 0:
                        break
                await consumer.commit()
        return seen

    seen = asyncio.run(asyncio.wait_for(story(), 90))
    assert sorted(seen) == [b"%d" % n for n in range(6)]
    sent = spans.take_all(f"send {topic}")
    handled = spans.take_all(f"process {topic}")
    assert {span.attributes["messaging.kafka.cluster.id"] for span in sent} == {"otelmqtracepeersAAAAAA"}
    assert {span.parent.span_id for span in handled} == {span.context.span_id for span in sent}
    assert {trace_context_of(span).context_code for span in handled} == {ContextCode.SUCCESS}
    assert {trace_context_of(span).beans[0].store_host for span in handled} == {kafka.bootstrap_servers}
    assert len(spans.take_all(f"commit {topic}")) == 2
