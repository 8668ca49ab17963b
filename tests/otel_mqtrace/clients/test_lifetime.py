"""A traced client is freed with its last reference; spans of a collected one end later, outside of the finaliser."""

import asyncio
import gc
import weakref

import confluent_kafka
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.aio import AIOProducer

from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.model import ContextCode
from tests.support.consuming import code_of, current_span_id


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


def _answered(producer, topic):
    producer.produce(topic, b"x", on_delivery=lambda _error, _message: producer)
    assert producer.flush(10) == 0


def _refused(producer, topic):
    with pytest.raises(KafkaException):
        producer.produce(topic, b"x" * 2_000_000)


def _committed(producer, topic):
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"x")
    producer.commit_transaction(10)


@pytest.mark.parametrize(
    ("make", "conf", "use"),
    [
        *(("Producer", {}, use) for use in (_answered, _refused)),
        ("Producer", {}, lambda producer, topic: producer.produce(topic, b"x")),
        ("Producer", {"transactional.id": "freed"}, _committed),
        ("SerializingProducer", {}, lambda producer, topic: producer.produce(topic, value=b"x")),
    ],
    ids=["answered", "refused", "left behind", "committed", "serializing"],
)
def test_producer_is_freed_with_its_last_reference(no_collector, instrument, kafka, spans, topic, make, conf, use):
    instrument()
    own = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    producer = getattr(confluent_kafka, make)({**own, **conf})
    use(producer, topic)
    alive = weakref.ref(producer)
    del producer
    assert alive() is None
    drain_deferred_ends()
    spans.take_all()


class Early(confluent_kafka.Consumer):
    """An application's class, made before anybody instruments."""


@pytest.mark.parametrize(("make", "closed"), [("Consumer", True), ("Consumer", False), (Early, False)])
def test_consumer_is_freed_with_its_last_reference(no_collector, instrument, kafka, spans, topic, fill, make, closed):
    fill(topic, {"value": b"x"})
    conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "short"}
    consumer = make(conf) if make is Early else None
    instrument()
    consumer = consumer or getattr(confluent_kafka, make)(conf)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    message = consumer.poll(10)
    if closed:
        consumer.close()
    alive = weakref.ref(consumer)
    del consumer
    assert (alive(), current_span_id(), message.value()) == (None, 0, b"x")
    drain_deferred_ends()
    assert code_of(spans.take()) is (ContextCode.SUCCESS if closed else ContextCode.RETURNNULL)


NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def _leave_producer(topic):
    producer = confluent_kafka.Producer(NOBODY)
    producer.produce(topic, b"x", partition=0)
    producer.itself = producer


def _leave_buffer(topic):
    async def forget():
        producer = AIOProducer(NOBODY, buffer_timeout=0)
        await producer.produce(topic, b"x", partition=0)
        producer.executor.shutdown()

    asyncio.run(forget())


@pytest.mark.parametrize("leave", [_leave_producer, _leave_buffer])
def test_finaliser_of_a_producer_ends_no_span_itself(instrument, spans, topic, leave):
    """Its thread may hold a lock that a span processor of the application waits for."""
    instrument()
    leave(topic)
    gc.collect()
    assert spans.take_all() == []
    drain_deferred_ends()
    attributes = spans.take(f"send {topic}").attributes
    assert attributes["mqtrace.send_outcome"] == attributes["error.type"] == "abandoned"
    assert attributes["messaging.destination.partition.id"] == "0"


def test_finaliser_of_a_callback_ends_no_span_itself(producer_of, spans, topic):
    producer = producer_of(delivery_report_only_error=True)
    producer.produce(topic, b"x")
    while len(producer):
        producer.poll(0.05)
    gc.collect()
    assert spans.take_all() == []
    producer.flush(10)
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


@pytest.mark.parametrize("sampler", ["ALWAYS_ON", "ALWAYS_OFF"])
def test_clients_work_in_a_finaliser_at_exit_when_our_modules_are_emptied(run_code, sampler):
    code = """
from confluent_kafka import Consumer, Producer
from functools import partial
from opentelemetry import context
from opentelemetry.sdk.trace import TracerProvider, sampling
from otel_mqtrace import MqTraceInstrumentor

class Early(Producer):
    def produce(self, topic, value, headers=None, callback=None):
        super().produce(topic, value, headers=headers, callback=callback)

MqTraceInstrumentor().instrument(tracer_provider=TracerProvider(sampler=sampling.SAMPLER), exporters=())
CONF = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}

class Shop:
    def __init__(self):
        self.consumer = Consumer(CONF)
        self.producers = [Producer(CONF), Early(CONF)]
        self.report = partial(print, "reported")
        self.send()
        context.attach(context.Context({"shop": "1"}))  # the callback is called in the context that was sent from
        self.send()

    def send(self):
        for each in self.producers:
            each.produce("orders", b"1", callback=self.report)

    def __del__(self):
        self.send()
        for each in self.producers:
            each.purge()
            each.flush(5)
        self.consumer.close()
        print("closed")

shop = Shop()
"""
    printed = run_code(code.replace("SAMPLER", sampler))
    assert [line.split()[0] for line in printed.splitlines()] == ["reported"] * 6 + ["closed"]
