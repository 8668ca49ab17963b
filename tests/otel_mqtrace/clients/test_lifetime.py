"""A traced client goes when its last reference goes, as a plain one does: nothing of ours waits for the collector."""

import gc
import weakref

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, SerializingProducer

from otel_mqtrace.hooks.outcome import drain_deferred_ends

TOO_LARGE = b"x" * 2_000_000


@pytest.fixture(autouse=True)
def no_collector():
    gc.disable()
    yield
    gc.enable()


def _sent(producer, topic):
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0


def _answered(producer, topic):
    producer.produce(topic, b"x", on_delivery=lambda _error, _message: producer)
    assert producer.flush(10) == 0


def _refused(producer, topic):
    with pytest.raises(KafkaException):
        producer.produce(topic, TOO_LARGE)


def _left_behind(producer, topic):
    producer.produce(topic, b"x")


@pytest.mark.parametrize("use", [lambda *_: None, _sent, _answered, _refused, _left_behind])
def test_a_producer_is_freed_with_its_last_reference(instrument, kafka, spans, topic, use):
    instrument()
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    use(producer, topic)
    alive = weakref.ref(producer)
    del producer
    assert alive() is None
    drain_deferred_ends()
    spans.take_all()


def test_a_serializing_producer_is_freed_with_its_last_reference(instrument, kafka, spans, topic):
    instrument()
    producer = SerializingProducer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, value=b"x")
    assert producer.flush(10) == 0
    alive = weakref.ref(producer)
    del producer
    assert alive() is None
    spans.take(f"send {topic}")


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_a_transactional_producer_is_freed_with_its_last_reference(instrument, kafka, spans, topic, end):
    instrument()
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    getattr(producer, end)(10)
    alive = weakref.ref(producer)
    del producer
    assert alive() is None
    drain_deferred_ends()
    spans.take_all()


@pytest.mark.parametrize("closed", [True, False])
def test_a_consumer_is_freed_with_its_last_reference(instrument, kafka, spans, topic, fill, closed):
    fill(topic, {"value": b"x"})
    instrument()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "short"})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = consumer.poll(10)
    if closed:
        consumer.close()
    alive = weakref.ref(consumer)
    del consumer
    assert alive() is None
    assert message.value() == b"x"
    drain_deferred_ends()
    assert len(spans.take_all()) == 1
