"""What is collected in the middle of anything: its spans end, but not in the finaliser, which may wait for no lock."""

import asyncio
import gc
import os
import threading
from contextlib import contextmanager

import confluent_kafka
import pytest
from confluent_kafka.aio import AIOProducer
from opentelemetry.sdk.trace import SpanProcessor

from otel_mqtrace.hooks.outcome import drain_deferred_ends

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


class PlainLock(SpanProcessor):
    """An application's span processor with an ordinary lock; ``stuck`` are the spans that would wait for it for ever."""

    def __init__(self):
        self._lock = threading.Lock()
        self.stuck = []

    @contextmanager
    def held(self):
        with self._lock:
            yield
            gc.collect()

    def on_end(self, span):
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self.stuck.append(span.name)


@pytest.fixture
def lock(instrument):
    processor = PlainLock()
    instrument().add_span_processor(processor)
    return processor


def test_a_producer_that_is_collected_waits_for_no_lock(lock, spans, topic):
    producer = confluent_kafka.Producer(NOBODY)
    producer.produce(topic, b"x")
    producer.itself = producer
    with lock.held():
        del producer
    assert spans.take_all() == lock.stuck == []

    drain_deferred_ends()
    attributes = spans.take(f"send {topic}").attributes
    assert attributes["mqtrace.send_outcome"] == attributes["error.type"] == "abandoned"


def test_released_callback_waits_for_no_lock(lock, spans, kafka, topic):
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "delivery.report.only.error": True}
    )
    producer.produce(topic, b"x")
    with lock.held():
        while len(producer):
            producer.poll(0.05)
    assert spans.take_all() == lock.stuck == []

    producer.flush(10)
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True


def test_a_buffer_that_is_collected_waits_for_no_lock(lock, spans, topic):
    async def forget():
        producer = AIOProducer(NOBODY, buffer_timeout=0)
        await producer.produce(topic, b"x")
        producer.executor.shutdown()

    with lock.held():
        asyncio.run(forget())
    assert spans.take_all() == lock.stuck == []

    drain_deferred_ends()
    assert spans.take(f"send {topic}").attributes["mqtrace.send_outcome"] == "abandoned"


def test_the_next_send_ends_what_a_collected_producer_left(lock, spans, kafka, topic):
    producer = confluent_kafka.Producer(NOBODY)
    producer.produce(topic, b"x")
    del producer
    with confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers}) as other:
        other.produce(topic, b"y")
        assert spans.take(f"send {topic}").attributes["mqtrace.send_outcome"] == "abandoned"
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True
    assert lock.stuck == []


def test_a_child_abandons_no_message_of_its_parents(lock, spans, kafka, topic):
    with confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5_000}) as producer:
        producer.produce(topic, b"x")
        gone = confluent_kafka.Producer(NOBODY)
        gone.produce(topic, b"y")
        del gone
        child = os.fork()
        if child == 0:
            producer._mqtrace_state.abandon()
            drain_deferred_ends()
            os._exit(len(spans.take_all()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    outcomes = [span.attributes.get("mqtrace.send_outcome") for span in spans.take_all(f"send {topic}")]
    assert sorted(outcomes, key=str) == [None, "abandoned"]
    assert lock.stuck == []
