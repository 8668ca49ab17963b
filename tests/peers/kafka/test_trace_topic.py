"""An instrumented application against a real Kafka: its spans, its trace topic, and what the forwarder lands."""

import base64

import confluent_kafka
import pytest

from bridge.forwarder.kafka_source import KafkaTraceSource
from bridge.forwarder.service import forward_once
from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor, process, semconv
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.landing import LandingWriter
from otel_mqtrace.model import ContextCode, TraceType
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.wire.native import decode_body
from tests.support.landings import landed_lines

pytestmark = pytest.mark.peers

GROUP = "peer-billing"


@pytest.fixture
def spans():
    """Every span of the test, as it ended."""
    return RecordingExporter()


@pytest.fixture
def provider(spans):
    """A tracer provider that records; the instrumentation uses no other exporter here."""
    provider = recording_provider(spans)
    instrumentor = MqTraceInstrumentor()
    instrumentor.instrument(tracer_provider=provider, exporters=())
    yield provider
    instrumentor.uninstrument()
    provider.shutdown()


def _consume_one(kafka, topic):
    settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "bootstrap.servers": kafka.bootstrap_servers}
    with confluent_kafka.Consumer(settings) as consumer:
        consumer.subscribe([topic])
        message = consumer.poll(30)
        assert message is not None
        with process(message):
            return message


def test_message_has_its_spans_and_its_forwarded_records(kafka, provider, spans, tmp_path):
    trace_topic = kafka.create_topic("PEER_TRACE_TOPIC", partitions=2)
    exporter = NativeKafkaSpanExporter(bootstrap_servers=kafka.bootstrap_servers, trace_topic=trace_topic)
    processor = MqTraceSpanProcessor(exporter)
    provider.add_span_processor(processor)
    topic = kafka.create_topic("traced-orders", partitions=2)
    reports = []
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 10_000})
    headers = [("TAGS", b"paid"), ("KEYS", "order-1 客户".encode())]
    producer.produce(topic, b"hello", key=b"k", headers=headers, on_delivery=lambda *report: reports.append(report))
    assert producer.flush(30) == 0
    message = _consume_one(kafka, topic)

    send, processed = spans.take(f"send {topic}"), spans.take(f"process {topic}")
    spans.assert_empty()
    [(error, reported)] = reports
    assert error is None
    offset_id = f"{topic}-{reported.partition()}@{reported.offset()}"
    names = [name for name, _ in message.headers()]
    msg_id = dict(message.headers())[semconv.HEADER_UNIQ_KEY].decode()
    for span in (send, processed):
        assert span.attributes[semconv.MQTRACE_OFFSET_MSG_ID] == offset_id
        assert span.attributes[semconv.MESSAGING_MESSAGE_ID] == msg_id
        assert list(span.attributes[semconv.MQTRACE_KEYS]) == ["order-1", "客户"]
    assert processed.attributes[semconv.MESSAGING_CONSUMER_GROUP_NAME] == GROUP
    assert send.context.trace_id in {processed.context.trace_id, *(link.context.trace_id for link in processed.links)}
    assert [names.count(name) for name in ("traceparent", semconv.HEADER_UNIQ_KEY, "TAGS", "KEYS")] == [1, 1, 1, 1]

    assert processor.force_flush(30_000)
    (stats,) = processor.stats().values()
    assert (stats["offered"], stats["exported"]) == (3, 3)
    with KafkaTraceSource(kafka.bootstrap_servers, trace_topic) as source:
        assert forward_once(source, LandingWriter(tmp_path, format="jsonl")).messages > 0
        assert forward_once(source, LandingWriter(tmp_path, format="jsonl")).messages == 0
    bodies = [decode_body(base64.b64decode(line["body_base64"])) for line in landed_lines(tmp_path)]
    assert not any(body.errors for body in bodies)
    by_type = {context.trace_type: context for body in bodies for context in body.contexts}
    assert {context.beans[0].msg_id for context in by_type.values()} == {msg_id}
    assert sorted(kind.value for kind in by_type) == ["Pub", "SubAfter", "SubBefore"]
    assert by_type[TraceType.PUB].beans[0].offset_msg_id == offset_id
    assert by_type[TraceType.SUB_AFTER].context_code is ContextCode.SUCCESS
    assert by_type[TraceType.SUB_BEFORE].request_id == by_type[TraceType.SUB_AFTER].request_id
    assert by_type[TraceType.SUB_BEFORE].group_name == GROUP
