"""Put messages on a topic as an application without tracing does."""

from typing import Any

from confluent_kafka.cimpl import Producer


def put_messages(bootstrap_servers: str, topic: str, *messages: Any, partitions: int | None = None) -> None:
    """Put values, or mappings of the arguments of ``produce``, on a topic: on its ``partitions`` in turn if given."""
    # One batch for all: the embedded broker hands a consumer one at a time. Nothing lingers through a flush.
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 10_000, "log_level": 0})
    producer.list_topics(topic, 10)  # or the first messages find their partition during the flush, one by one
    for number, message in enumerate(messages):
        fields = message if isinstance(message, dict) else {"value": message}
        producer.produce(topic, **({"partition": number % partitions} if partitions else {}), **fields)
    assert producer.flush(30) == 0
