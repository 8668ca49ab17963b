"""aiokafka patched in place: every name and every subclass sees it, and nothing of it is left afterwards."""

import inspect
import logging

import aiokafka
import pytest
import wrapt
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.cluster import ClusterMetadata

from otel_mqtrace.client_properties import application_kafka_config
from otel_mqtrace.clients.aiokafka import ClientPatches
from otel_mqtrace.hooks.process import sources
from otel_mqtrace.instrumentor import AioKafkaInstrumentor
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.asyncio_kafka import consumer_of, consuming, producing
from tests.support.consuming import current_span_id

CLASSES = (AIOKafkaProducer, AIOKafkaConsumer, ClusterMetadata)


class EarlyProducer(AIOKafkaProducer):
    """Made before anything is instrumented, and does its own before sending."""

    async def send(self, topic, value=None, *args, **kwargs):
        return await super().send(topic, value.upper(), *args, **kwargs)


def _everything():
    return [dict(vars(owner)) for owner in CLASSES]


def test_uninstrument_restores_every_method_ten_times(instrument):
    before, sources_before = _everything(), list(sources)
    for _ in range(10):
        instrument()
        assert AioKafkaInstrumentor().patches.untraceable == []
        assert inspect.iscoroutinefunction(AIOKafkaProducer.send)
        assert inspect.signature(AIOKafkaProducer.send).parameters["timestamp_ms"].default is None
        AioKafkaInstrumentor().uninstrument()
    assert _everything() == before
    assert sources == sources_before


async def test_subclass_made_before_or_after_has_one_span(instrument, spans, kafka, topic):
    instrument()

    class LateProducer(EarlyProducer):
        pass

    for make in (EarlyProducer, LateProducer, aiokafka.AIOKafkaProducer):
        async with producing(kafka, make=make) as producer:
            await producer.send_and_wait(topic, b"abc")
    assert len(spans.take_all(f"send {topic}")) == 3


async def test_client_made_before_is_traced_until_uninstrument(instrument, spans, kafka, topic):
    async with producing(kafka) as producer, consuming(kafka, topic) as consumer:
        await producer.send_and_wait(topic, b"1")
        instrument()
        await producer.send_and_wait(topic, b"2")
        await consumer.getone()
        AioKafkaInstrumentor().uninstrument()
        handled = spans.take(f"process {topic}")
        assert current_span_id() == 0
        await producer.send_and_wait(topic, b"3")
        assert [name for name, _ in (await consumer.getone()).headers] == ["traceparent", "UNIQ_KEY"]
        assert (await consumer.getone()).headers == ()
    sent = spans.take(f"send {topic}")
    assert sent.attributes["messaging.client.id"] == "shop"
    assert trace_context_of(handled).group_name == "billing"
    assert trace_context_of(handled).context_code is ContextCode.RETURNNULL


@pytest.mark.parametrize("servers", ["broker", ["broker", "127.0.0.1:1"]], ids=str)
async def test_servers_and_password_are_passed_on_and_the_password_is_not_shown(instrument, spans, caplog, servers):
    instrument()
    producer = AIOKafkaProducer(
        bootstrap_servers=servers,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="shop",
        sasl_plain_password="hunter2",
    )
    with pytest.raises(AssertionError):
        await producer.send("orders")
    producer._closed = True  # it was never started: nothing to stop, nothing to complain of
    span = spans.take()
    assert (span.attributes["server.address"], span.attributes["server.port"]) == ("broker", 9092)
    assert application_kafka_config()["bootstrap.servers"] == ("broker" if servers == "broker" else ",".join(servers))
    assert application_kafka_config()["sasl.password"] == "hunter2"
    assert "hunter2" not in caplog.text + span.to_json()


async def _foreign_send(wrapped, instance, args, kwargs):
    kwargs["headers"] = [*(kwargs.get("headers") or []), ("traceparent", b"theirs")]
    return await wrapped(*args, **kwargs)


@pytest.fixture
def neighbour():
    original = AIOKafkaProducer.send
    yield lambda: wrapt.wrap_function_wrapper(AIOKafkaProducer, "send", _foreign_send)
    AIOKafkaProducer.send = original


def test_instrument_steps_back_for_another_instrumentation(instrument, neighbour, caplog):
    neighbour()
    before = _everything()
    assert ClientPatches.find_conflict() == f"the module {__name__}"
    with caplog.at_level(logging.WARNING):
        instrument()
    assert _everything() == before
    assert __name__ in caplog.text


async def test_other_instrumentation_keeps_its_trace_headers_if_both_are_configured(
    instrument, neighbour, spans, kafka, topic
):
    neighbour()
    instrument(on_conflict="wrap")
    async with producing(kafka) as producer:
        await (await producer.send(topic, b"1"))
    consumer = await consumer_of(kafka, topic)
    record = await consumer.getone()
    await consumer.stop()
    headers = record.headers
    assert [name for name, _ in headers] == ["UNIQ_KEY", "traceparent"]
    assert dict(headers)["traceparent"] == b"theirs"
    AioKafkaInstrumentor().uninstrument()
    assert isinstance(vars(AIOKafkaProducer)["send"], wrapt.FunctionWrapper)
    assert len(spans.take_all()) == 2


async def test_later_instrumentation_is_reported_once(instrument, neighbour, spans, kafka, topic, caplog):
    instrument()
    neighbour()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            async with producing(kafka) as producer:
                await (await producer.send(topic, b"1"))
    assert [f"the module {__name__} wraps aiokafka on top" in line for line in caplog.messages] == [True]
    spans.take_all()
