"""An instrumented application against a real Kafka: its spans, its trace topic, and what the forwarder lands."""

import base64
import json

import confluent_kafka
import pytest
from confluent_kafka import KafkaException

from bridge.forwarder.service import forward_once
from bridge.forwarder.sources.kafka import KafkaTraceSource
from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor, process, semconv
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.landing import LandingWriter
from otel_mqtrace.model import ContextCode, TraceType
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.wire.native import decode_body

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


def _producer(kafka):
    return confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 10_000})


def _consume_one(kafka, topic):
    settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "bootstrap.servers": kafka.bootstrap_servers}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    message = consumer.poll(30)
    assert message is not None
    with process(message):
        pass
    consumer.close()
    return message


def test_a_message_s_spans_agree_with_what_the_broker_did(kafka, provider, spans):
    topic = kafka.create_topic("traced-orders", partitions=2)
    reports = []
    producer = _producer(kafka)
    headers = [("TAGS", b"paid"), ("KEYS", "order-1 客户".encode())]
    producer.produce(topic, b"hello", key=b"k", headers=headers, on_delivery=lambda *report: reports.append(report))
    assert producer.flush(30) == 0
    message = _consume_one(kafka, topic)

    send, processed = spans.take(f"send {topic}"), spans.take(f"process {topic}")
    spans.assert_empty()
    error, reported = reports[0]
    assert error is None
    place = f"{topic}-{reported.partition()}@{reported.offset()}"
    assert send.attributes[semconv.MQTRACE_OFFSET_MSG_ID] == place
    assert processed.attributes[semconv.MQTRACE_OFFSET_MSG_ID] == place
    assert send.attributes[semconv.MESSAGING_MESSAGE_ID] == processed.attributes[semconv.MESSAGING_MESSAGE_ID]
    assert list(send.attributes[semconv.MQTRACE_KEYS]) == ["order-1", "客户"]
    assert processed.attributes[semconv.MESSAGING_CONSUMER_GROUP_NAME] == GROUP
    assert send.context.trace_id in {processed.context.trace_id, *(link.context.trace_id for link in processed.links)}
    names = [name for name, _ in message.headers()]
    assert headers == [("TAGS", b"paid"), ("KEYS", "order-1 客户".encode())]
    assert [names.count(name) for name in ("traceparent", semconv.HEADER_UNIQ_KEY, "TAGS", "KEYS")] == [1, 1, 1, 1]


def test_sends_that_a_real_broker_refuses_are_recorded_with_its_own_word(kafka, provider, spans):
    topic = kafka.create_topic("traced-small", max_message_bytes="1000")
    producer = _producer(kafka)
    producer.produce(topic, b"x" * 5000)
    producer.flush(30)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        producer.produce(topic, b"x" * 2_000_000)
    failed = spans.take_all(f"send {topic}")
    assert [span.attributes[semconv.ERROR_TYPE] for span in failed] == ["MSG_SIZE_TOO_LARGE"] * 2
    assert [span.attributes[semconv.MQTRACE_SUCCESS] for span in failed] == [False, False]


def test_records_on_a_real_trace_topic_are_forwarded_and_say_what_happened(kafka, provider, tmp_path):
    trace_topic = kafka.create_topic("PEER_TRACE_TOPIC", partitions=2)
    exporter = NativeKafkaSpanExporter(bootstrap_servers=kafka.bootstrap_servers, trace_topic=trace_topic)
    processor = MqTraceSpanProcessor(exporter)
    provider.add_span_processor(processor)
    topic = kafka.create_topic("traced-forwarded")
    producer = _producer(kafka)
    producer.produce(topic, b"hello", headers={"KEYS": b"order-9"})
    assert producer.flush(30) == 0
    message = _consume_one(kafka, topic)
    assert processor.force_flush(30_000)
    (books,) = processor.stats().values()
    assert (books["offered"], books["exported"]) == (3, 3)

    with KafkaTraceSource(kafka.bootstrap_servers, trace_topic) as source:
        first = forward_once(source, LandingWriter(tmp_path, format="jsonl"))
        again = forward_once(source, LandingWriter(tmp_path, format="jsonl"))
    assert first.messages > 0
    assert again.messages == 0
    contexts, errors = _decoded(tmp_path)
    assert errors == []
    uniq_key = dict(message.headers())[semconv.HEADER_UNIQ_KEY].decode()
    assert {context.beans[0].msg_id for context in contexts} == {uniq_key}
    by_type = {context.trace_type: context for context in contexts}
    assert sorted(kind.value for kind in by_type) == ["Pub", "SubAfter", "SubBefore"]
    assert by_type[TraceType.PUB].beans[0].offset_msg_id == f"{topic}-0@0"
    assert by_type[TraceType.SUB_AFTER].context_code is ContextCode.SUCCESS
    assert by_type[TraceType.SUB_BEFORE].request_id == by_type[TraceType.SUB_AFTER].request_id
    assert by_type[TraceType.SUB_BEFORE].group_name == GROUP


def _decoded(landing):
    lines = [
        line for part in landing.glob("native/date=*/part-*.jsonl") for line in part.read_text("utf-8").splitlines()
    ]
    bodies = [decode_body(base64.b64decode(json.loads(line)["body_base64"])) for line in lines]
    return [context for body in bodies for context in body.contexts], [bad for body in bodies for bad in body.errors]
