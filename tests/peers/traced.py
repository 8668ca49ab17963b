"""A small application of two services, traced for the length of a block, and its spans in the form of ``bridge.otlp.spans``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import confluent_kafka
from confluent_kafka import Message
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter

from bridge.otlp.spans import parse_message, spans_of
from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor, process
from otel_mqtrace.hooks import guard
from otel_mqtrace.testing import RecordingExporter, recording_provider
from tests.support.consuming import poll

_EXPORT_SECONDS, _FLUSH_MILLIS = 60, 120_000  # after a shorter wait for an answer the spans are sent a second time


def http_to(server: Any) -> SpanExporter:
    return HttpExporter(endpoint=server.traces_url, timeout=_EXPORT_SECONDS)


def grpc_to(server: Any) -> SpanExporter:
    return GrpcExporter(endpoint=server.grpc_endpoint, insecure=True, timeout=_EXPORT_SECONDS)


@contextmanager
def recording(instrumentor: Any = None, **options: Any) -> Iterator[RecordingExporter]:
    """Record the spans of a traced client, confluent-kafka unless named; fail where something of ours has failed."""
    exporter, before = RecordingExporter(), guard.failures()
    instrumentor = instrumentor or MqTraceInstrumentor()
    instrumentor.instrument(tracer_provider=recording_provider(exporter), exporters=(), **options)
    try:
        yield exporter
    finally:
        instrumentor.uninstrument()
    assert guard.failures() == before


@contextmanager
def traced(service: str, *exporters: SpanExporter, **options: Any) -> Iterator[None]:
    """Trace confluent-kafka as ``service``; what is still queued at the block's end is exported then."""
    provider = TracerProvider(resource=Resource.create({"service.name": service}), shutdown_on_exit=False)
    processor = MqTraceSpanProcessor(*exporters)
    provider.add_span_processor(processor)
    instrumentor = MqTraceInstrumentor()
    instrumentor.instrument(tracer_provider=provider, exporters=(), **options)
    try:
        yield
    finally:
        instrumentor.uninstrument()
        is_exported = processor.force_flush(_FLUSH_MILLIS)
        provider.shutdown()
    assert is_exported


def send(kafka: Any, topic: str, count: int = 1) -> None:
    """Send ``count`` messages with a tag and keys."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(count):
        headers = [("TAGS", "付款".encode()), ("KEYS", f"order-{number} customer-7".encode())]
        producer.produce(topic, b"order", headers=headers)
    assert producer.flush(30) == 0


def handle(kafka: Any, topic: str, count: int = 1, *, handler: Callable[[Message], Any] = bool) -> None:
    """Have ``count`` messages processed by ``handler`` in the group ``<topic>-billing``; it may fail for some of them."""
    settings = {"group.id": f"{topic}-billing", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "bootstrap.servers": kafka.bootstrap_servers})
    consumer.subscribe([topic])
    try:
        for _ in range(count):
            message = poll(consumer)
            with suppress(ArithmeticError), process(message):
                handler(message)
    finally:
        consumer.close()


def of_message(payload: bytes) -> list[dict[str, Any]]:
    return list(spans_of(parse_message(payload) or []))


def of_sdk(span: ReadableSpan) -> dict[str, Any]:
    """Return a span that the SDK ended in the same form, as OpenTelemetry's exporters encode it."""
    (encoded,) = of_message(encode_spans([span]).SerializeToString())
    return encoded
