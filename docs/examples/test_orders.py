"""An application's own test: what it sends and handles is traced. Run it with pytest; no server is needed."""

import pytest
from confluent_kafka import Consumer, Producer

from otel_mqtrace import MqTraceInstrumentor, process
from otel_mqtrace.testing import RecordingExporter, embedded_kafka, recording_provider

kafka = pytest.fixture(scope="session")(embedded_kafka)


@pytest.fixture
def spans():
    """Record the spans of one test; the instrumentation is switched off behind it."""
    exporter = RecordingExporter()
    MqTraceInstrumentor().instrument(tracer_provider=recording_provider(exporter), exporters=())
    yield exporter
    MqTraceInstrumentor().uninstrument()


def test_failed_order_is_recorded_as_failed(kafka, spans):
    """Send an order, handle it badly, and look at both spans."""
    kafka.create_topic("orders")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("orders", b"order 7", headers={"KEYS": "order-7"})
    producer.flush(10)

    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    message = None
    while message is None:
        message = consumer.poll(1)
    with process(message) as outcome:
        outcome.failed()
    consumer.close()

    sent, handled = spans.take("send orders"), spans.take("process orders")
    assert sent.attributes["mqtrace.keys"] == ("order-7",)
    assert handled.context.trace_id == sent.context.trace_id
    assert handled.attributes["mqtrace.context_code"] == "FAILED"
