"""An application's own produce, whatever its signature and however it reaches the client's: one span per message."""

from __future__ import annotations

import ctypes
import json

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition, cimpl
from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_mqtrace.instrumentor import MqTraceInstrumentor


class ByName(cimpl.Producer):
    """Everything but the topic by name only."""

    def produce(self, topic, *, value=None, headers=None, on_delivery=None):
        super().produce(topic, value, headers=headers, on_delivery=on_delivery)


class ByPosition(cimpl.Producer):
    """Names nothing."""

    def produce(self, topic, value, /):
        super().produce(topic, value)


class AnyName(cimpl.Producer):
    """Takes names only, its own among them, as AvroProducer does."""

    def produce(self, **kwargs):
        kwargs.pop("schema", None)
        super().produce(kwargs.pop("topic"), kwargs.pop("value"), **kwargs)


class AsFields(cimpl.Producer):
    """What it takes by name is the message: anything of ours among it would be sent."""

    def produce(self, topic, **fields):
        super().produce(topic, json.dumps(fields))


class ThroughTheName(cimpl.Producer):
    """Calls the client's class by the name of a module, which is ours while tracing."""

    def produce(self, topic, value=None, headers=None, callback=None):
        told = None if callback is None else lambda *report: callback(*report) or report
        confluent_kafka.Producer.produce(self, topic, value, headers=headers, callback=told)


class WithACopy(ThroughTheName):
    """Sends a copy to another topic first."""

    def produce(self, topic, value=None, headers=None, callback=None):
        confluent_kafka.Producer.produce(self, f"{topic}-copy", value)
        super().produce(topic, value, headers, callback)


class InBatches(cimpl.Producer):
    """A produce_batch of its own, with an argument of its own."""

    def produce_batch(self, topic, messages, tenant=None):
        return super().produce_batch(topic, [{"value": each, "key": tenant} for each in messages])


class Raising(cimpl.Producer):
    """Raises a KafkaError as the C code can: it is no exception class."""

    def produce(self, topic, value=None, headers=None, callback=None):
        raise_ = ctypes.pythonapi.PyErr_SetObject
        raise_.argtypes, raise_.restype = (ctypes.py_object, ctypes.py_object), None
        raise_(KafkaError, KafkaError(KafkaError._QUEUE_FULL))


@pytest.fixture
def sent_by(instrument, kafka, topic, spans):
    """Send with a class while tracing, and return the message as it lies there."""

    def send(make_producer, *args, **kwargs):
        instrument()
        producer = make_producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce(*args, **kwargs)
        assert producer.flush(10) == 0
        with suppress_instrumentation():
            consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader"})
            consumer.assign([TopicPartition(topic, 0, 0)])
            message = consumer.poll(10)
            consumer.close()
        return message

    return send


@pytest.mark.parametrize("make_producer", [ByName, AnyName, ThroughTheName])
def test_one_span_whatever_can_be_named(sent_by, spans, topic, make_producer):
    message = sent_by(make_producer, topic=topic, value="x")
    send = spans.take(f"send {topic}")
    assert message.value() == b"x"
    assert dict(message.headers())["UNIQ_KEY"].decode() == send.attributes["messaging.message.id"]
    assert [name for name, _ in message.headers()].count("traceparent") == 1
    assert send.attributes["messaging.kafka.offset"] == 0


@pytest.mark.parametrize(
    ("make_producer", "args", "fields"), [(ByPosition, [b"x"], {}), (AsFields, [], {"value": "x"})]
)
def test_produce_without_room_for_headers_sends_its_own_message_and_is_reported(
    sent_by, spans, topic, make_producer, args, fields
):
    """Positions only, or names that are the message: nothing of ours is among them."""
    message = sent_by(make_producer, topic, *args, **fields)
    assert (message.value(), message.headers()) == (b"x" if args else b'{"value": "x"}', None)
    spans.assert_empty()
    assert f"{__name__}.{make_producer.__name__}.produce" in MqTraceInstrumentor().patches.untraceable


def test_a_class_made_while_tracing_is_traced_as_well(sent_by, instrument, spans, topic):
    instrument()

    class Late(confluent_kafka.Producer):
        def produce(self, value, /, *, where):
            super().produce(where, value)

    MqTraceInstrumentor().uninstrument()
    sent_by(Late, b"x", where=topic)
    spans.take(f"send {topic}")


def test_another_message_sent_on_the_way_has_its_own_span(sent_by, kafka, spans, topic):
    kafka.create_topic(f"{topic}-copy", 1)
    sent_by(WithACopy, topic, b"x")
    spans.take(f"send {topic}-copy")
    spans.take(f"send {topic}")


@pytest.mark.parametrize("policy", ["correlate", "send_each"])
def test_own_produce_batch_sends_its_own_messages_and_is_reported(instrument, kafka, spans, topic, policy):
    instrument(headerless_sends=policy)
    producer = InBatches({"bootstrap.servers": kafka.bootstrap_servers})
    assert producer.produce_batch(topic, [b"1", b"2"], tenant="t1") == 2
    assert producer.flush(10) == 0
    spans.assert_empty()
    assert f"{__name__}.InBatches.produce_batch" in MqTraceInstrumentor().patches.untraceable


def test_an_error_that_is_no_exception_class_ends_the_span(instrument, kafka, spans, topic):
    """``except BaseException`` would not see it, and the span would never end."""
    instrument()
    producer = Raising({"bootstrap.servers": kafka.bootstrap_servers})
    caught = None
    try:
        producer.produce(topic, b"x")
    except:  # noqa: E722 - nothing else catches it
        caught = True
    assert caught
    assert spans.take(f"send {topic}").attributes["error.type"] == "_QUEUE_FULL"


def test_the_classes_are_what_they_were_when_tracing_ends(instrument):
    classes = [ByName, ByPosition, AnyName, AsFields, ThroughTheName, InBatches]
    before = [dict(vars(each)) for each in classes]
    for _ in range(10):
        instrument()
        assert dict(vars(ByName)) != before[0]
        MqTraceInstrumentor().uninstrument()
    assert [dict(vars(each)) for each in classes] == before
