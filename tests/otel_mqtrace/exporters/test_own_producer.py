"""The native exporter and the application's own Kafka clients keep out of each other's way."""

from __future__ import annotations

import confluent_kafka
import pytest
from confluent_kafka import cimpl

from bridge.forwarder.sources.kafka import KafkaTraceSource
from otel_mqtrace import MqTraceInstrumentor, config
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from otel_mqtrace.wire.native import decode_body
from tests.support.native_spans import pub, traced

TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
def kafka():
    with EmbeddedKafka() as embedded:
        embedded.create_topic(TOPIC)
        yield embedded


def _landed(kafka):
    with KafkaTraceSource(kafka.bootstrap_servers, TOPIC) as source:
        return [message for batch in source.drain() for message in batch]


def test_the_applications_producer_may_be_closed_first(kafka):
    """RocketMQ's dispatcher once shared its host's client and lost what came last: ours has its own."""
    application = cimpl.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    config.remember_application_kafka_config({"bootstrap.servers": kafka.bootstrap_servers})
    try:
        processor, trace = traced(NativeKafkaSpanExporter())
        trace(pub(0))
        application.flush()
        del application
        processor.shutdown()
        assert [len(decode_body(each.body).contexts) for each in _landed(kafka)] == [1]
    finally:
        config.forget_application_kafka_config()


def test_the_exporters_own_producer_is_never_traced(kafka):
    """Else each trace would make the next one, for ever."""
    recording = RecordingExporter()
    instrumentor = MqTraceInstrumentor()
    instrumentor.instrument(
        tracer_provider=recording_provider(recording),
        exporters=[NativeKafkaSpanExporter(bootstrap_servers=kafka.bootstrap_servers)],
    )
    try:
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("orders", b"x")
        assert producer.flush(20) == 0
        assert instrumentor.processor.force_flush()
    finally:
        instrumentor.uninstrument()
    assert [each.name for each in recording.take_all()] == ["send orders"]
    assert len(_landed(kafka)) == 1
