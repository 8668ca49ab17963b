"""Real aiokafka clients on a real broker."""

from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition


@asynccontextmanager
async def producing(kafka, *, make=AIOKafkaProducer, **conf):
    producer = make(bootstrap_servers=kafka.bootstrap_servers, **{"client_id": "shop", **conf})
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def consumer_of(kafka, *topics, make=AIOKafkaConsumer, **conf):
    settings = {"group_id": "billing", "auto_offset_reset": "earliest", "enable_auto_commit": False, **conf}
    consumer = make(bootstrap_servers=kafka.bootstrap_servers, **settings)
    await consumer.start()
    consumer.assign([TopicPartition(topic, 0) for topic in topics])
    return consumer


@asynccontextmanager
async def consuming(kafka, *topics, **conf):
    """Give :func:`consumer_of`, stopped at the end without an exception of its own."""
    consumer = await consumer_of(kafka, *topics, **conf)
    try:
        yield consumer
    finally:
        await consumer.stop()
