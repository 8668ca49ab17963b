"""How the exporters are used: bytes where they take them, spans where they do not, and the same spans either way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from bridge.forwarder.meaning import SpanRules
from bridge.forwarder.otlp import OtlpDelivery
from bridge.forwarder.spans import span_of
from otel_mqtrace._errors import PeerError
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.trace_stories import Messages, after, before, events_of, pub

RULES = SpanRules()


@pytest.fixture
def events():
    """A send that was refused, another, and a listener call."""
    return events_of(Messages(((pub(success=False), pub("M2"), before("M2"), after("M2")),)))


def _encoded(events):
    return encode_spans([span_of(event, RULES) for event in events]).SerializeToString()


class _GrpcReceiver(TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self):
        self.bodies, self.metadata = [], []
        self._server = grpc.server(ThreadPoolExecutor(1))
        add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"grpc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(self, request, context):  # noqa: N802 - the service's own name
        self.metadata.append(dict(context.invocation_metadata()))
        self.bodies.append(request.SerializeToString())
        return ExportTraceServiceResponse()

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        self._server.stop(None).wait(10)


def _delivered(events, endpoint, **options):
    delivery = OtlpDelivery(endpoint, **options)
    try:
        delivery.deliver(events, RULES)
    finally:
        delivery.close()


def test_over_grpc_the_spans_are_those_of_the_definition(events, monkeypatch):
    """With the headers that OpenTelemetry's variables ask for."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=orders")
    with _GrpcReceiver() as receiver:
        _delivered(events, receiver.endpoint)
    assert receiver.bodies == [_encoded(events)]
    assert receiver.metadata[0]["tenant"] == "orders"


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_over_http_the_spans_are_those_of_the_definition(events, compression, monkeypatch):
    """Compressed as OpenTelemetry's variables ask for."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    with OtlpReceiver() as receiver:
        _delivered(events, receiver.endpoint)
    spans = ExportTraceServiceRequest.FromString(_encoded(events)).resource_spans
    expected = [span.SerializeToString(deterministic=True) for each in spans for span in each.scope_spans[0].spans]
    assert sorted(said for kept in receiver.spans.values() for _, said in kept) == sorted(expected)


def test_an_exporter_that_takes_no_bytes_is_given_the_spans(events):
    """Any exporter of the SDK will do."""
    exporter = InMemorySpanExporter()
    _delivered(events, "memory", exporter=exporter)
    assert [span.to_json() for span in exporter.get_finished_spans()] == [
        span_of(event, RULES).to_json() for event in events
    ]


class _Refusing(SpanExporter):
    def export(self, spans):
        return SpanExportResult.FAILURE


def test_such_an_exporter_may_refuse(events):
    """That is an error, as from any other."""
    with pytest.raises(PeerError, match="memory did not accept 3 spans; they are not committed"):
        _delivered(events, "memory", exporter=_Refusing())


def test_an_exporter_of_the_application_s_own_is_given_the_spans(events):
    """OpenTelemetry's own as well: nothing of it is touched that it does not offer."""
    with OtlpReceiver() as receiver:
        _delivered(events, receiver.endpoint, exporter=HttpSpanExporter(f"{receiver.endpoint}/v1/traces"))
    assert len(receiver.spans) == 3


def test_an_http_exporter_without_the_client_is_given_the_spans(events, monkeypatch):
    """Another release may keep it elsewhere."""
    monkeypatch.setattr(HttpSpanExporter, "_metrics", property(None, lambda *_: None), raising=False)
    from bridge.forwarder.otlp_http import HttpRequestExporter  # noqa: PLC0415 - after the change

    delivery = OtlpDelivery("http://127.0.0.1:1")
    assert not isinstance(delivery._exporter, HttpRequestExporter)
    delivery.close()


def test_a_grpc_exporter_without_the_hook_is_given_the_spans(events, monkeypatch):
    """Another release may make its messages elsewhere."""
    monkeypatch.delattr(GrpcSpanExporter, "_translate_data")
    monkeypatch.setattr(
        GrpcSpanExporter,
        "export",
        lambda self, spans: self._client.Export(encode_spans(spans)) and SpanExportResult.SUCCESS,
    )
    with _GrpcReceiver() as receiver:
        _delivered(events, receiver.endpoint)
    assert receiver.bodies == [_encoded(events)]


def test_a_receiver_that_is_busy_is_asked_again_by_the_exporter(events):
    """The bytes are the same at every attempt."""
    answers = iter([503])

    def busy_once(number, moment):
        if moment == "before":
            receiver.status = next(answers, 200)

    with OtlpReceiver(on_request=busy_once) as receiver:
        _delivered(events, receiver.endpoint)
    assert (receiver.requests, len(receiver.spans)) == (2, 3)
