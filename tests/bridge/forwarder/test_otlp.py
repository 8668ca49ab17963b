"""Delivery over HTTP and gRPC through OpenTelemetry's exporters: the same spans as the oracle's, as bytes."""

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bridge.forwarder.span_delivery import OtlpDelivery
from bridge.forwarder.spans import SpanRules
from otel_mqtrace._errors import UsageError
from tests.support.forwarded_spans import span_of
from tests.support.otlp_receiver import GrpcReceiver, OtlpReceiver
from tests.support.trace_stories import Messages, after, before, events_of, pub

RULES = SpanRules()


@pytest.fixture
def events():
    return events_of(Messages(((pub(success=False), pub("M2"), before("M2"), after("M2")),)))


def _encoded(events):
    return encode_spans([span_of(event, RULES) for event in events]).SerializeToString()


def _delivered(events, endpoint, **options):
    delivery = OtlpDelivery(endpoint, **options)
    try:
        delivery.deliver(events, RULES)
    finally:
        delivery.close()
    return delivery.rejected


def test_over_grpc_the_spans_are_those_of_the_definition(events, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=orders")
    with GrpcReceiver() as receiver:
        assert _delivered(events, receiver.endpoint.replace("http", "grpc")) == 1
    assert [each.SerializeToString() for each in receiver.requests] == [_encoded(events)]
    assert receiver.metadata[0]["tenant"] == "orders"


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_over_http_the_spans_are_those_of_the_definition(events, compression, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    with OtlpReceiver() as receiver:
        _delivered(events, receiver.endpoint)
    spans = ExportTraceServiceRequest.FromString(_encoded(events)).resource_spans
    expected = [span.SerializeToString(deterministic=True) for each in spans for span in each.scope_spans[0].spans]
    assert sorted(body for kept in receiver.spans.values() for _, body in kept) == sorted(expected)


@pytest.mark.parametrize(
    ("endpoint", "variable", "value"),
    [
        ("http://h:1", "OTEL_EXPORTER_OTLP_COMPRESSION", "lz4"),
        ("grpc://h:1", "OTEL_EXPORTER_OTLP_COMPRESSION", "lz4"),
        ("grpcs://h:1", "OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem"),
    ],
)
def test_variable_that_the_exporter_refuses_is_wrong_usage(endpoint, variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"refuses a variable OTEL_EXPORTER_OTLP_…: .*{value}"):
        OtlpDelivery(endpoint)
