"""The request bytes equal those of OpenTelemetry's encoder, message by message, field by field."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_by_opentelemetry
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from otel_mqtrace.wire.otlp import sdk_spans
from tests.support.opentelemetry_release import needs_sdk
from tests.support.record_equality import spans_of

ids = st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)
texts = st.sampled_from(["", "orders", "a" * 300, "订单", "\x00"]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=40
)
int64 = st.sampled_from([0, -1, 1, 127, 128, 2**63 - 1, -(2**63)]) | st.integers(-(2**63), 2**63 - 1)
scalars = texts | st.booleans() | int64 | st.floats() | st.binary(max_size=20) | st.none()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
attributes = st.dictionaries(st.sampled_from(["messaging.system", "k"]) | texts, values, max_size=5)
states = st.sampled_from([TraceState(), TraceState([("vendor", "1"), ("b", "x")])])
contexts = st.builds(SpanContext, *ids, is_remote=st.booleans(), trace_flags=st.just(TraceFlags(1)), trace_state=states)
times = st.integers(0, 2**64 - 1)
resources = st.sampled_from(
    [Resource({"service.name": "a"}), Resource({"service.name": "a"}), Resource({"n": 1}, schema_url="http://s/1")]
)
scopes = st.sampled_from(
    [None, InstrumentationScope("lib", "1.0"), InstrumentationScope("other", None, "http://s/2", {"x": 1})]
)


class _Span(ReadableSpan):
    dropped_attributes = dropped_events = dropped_links = 0


bounded = st.builds(BoundedAttributes, st.sampled_from([None, 1]), attributes)  # with 1, the others count as dropped


@st.composite
def spans(draw):
    code = draw(st.sampled_from(StatusCode))
    span = _Span(
        name=draw(texts),
        context=draw(contexts),
        parent=draw(st.none() | contexts),
        resource=draw(resources),
        attributes=draw(attributes),
        events=[Event(draw(texts), draw(bounded), draw(times)) for _ in range(draw(st.integers(0, 2)))],
        links=[Link(draw(contexts), draw(bounded)) for _ in range(draw(st.integers(0, 2)))],
        kind=draw(st.sampled_from(SpanKind)),
        status=Status(code, draw(st.none() | texts) if code is StatusCode.ERROR else None),
        start_time=draw(st.none() | times),
        end_time=draw(st.none() | times),
        instrumentation_scope=draw(scopes),
    )
    for name in ("dropped_attributes", "dropped_events", "dropped_links"):
        setattr(span, name, draw(st.sampled_from([0, 0, 1, 300])))
    return span


def _by_resource(request):
    return sorted(
        (each.resource.SerializeToString(), each.schema_url, scope.scope.SerializeToString(), scope.schema_url, span)
        for each in request.resource_spans
        for scope in each.scope_spans
        for span in (one.SerializeToString(deterministic=True) for one in scope.spans)
    )


@needs_sdk(40, "its encoder writes other flags and resources")
@settings(max_examples=40)
@given(st.lists(spans(), max_size=4))
def test_request_equals_that_of_opentelemetry_s_encoder(batch):
    request = sdk_spans.encode_spans(batch)
    ours = ExportTraceServiceRequest.FromString(request.body)
    size = ours.ByteSize()
    ours.DiscardUnknownFields()
    assert (request.errors, ours.ByteSize()) == ({}, size)
    assert _by_resource(ours) == _by_resource(encode_by_opentelemetry(batch))


def _span(**fields):
    return ReadableSpan("send orders", SpanContext(1, 2, is_remote=False), resource=Resource({}), **fields)


def _encoded(*batch):
    request = sdk_spans.encode_spans(batch)
    return spans_of(request.body), request.errors


def test_values_beyond_the_cache_are_encoded():
    batch = [_span(attributes={"id": f"id-{number}", "n": number}) for number in range(3_000)]
    encoded, _ = _encoded(*batch)
    assert [each.attributes[0].value.string_value for each in encoded] == [f"id-{number}" for number in range(3_000)]


def test_one_true_and_not_a_number_keep_their_types():
    encoded, _ = _encoded(*(_span(attributes={"x": value}) for value in (1, True, 1.0, True, 1, math.nan)))
    kinds = [each.attributes[0].value.WhichOneof("value") for each in encoded]
    assert kinds == ["int_value", "bool_value", "double_value", "bool_value", "int_value", "double_value"]
    assert math.isnan(encoded[-1].attributes[0].value.double_value)


def test_value_that_otlp_cannot_encode_is_left_out_alone(caplog):
    (span,), errors = _encoded(_span(attributes={"huge": 2**63, "odd": object(), "good": "yes"}))
    assert [each.key for each in span.attributes] == ["good"]
    assert errors == {}
    assert [r.args[0] for r in caplog.records if "Failed to encode" in r.getMessage()] == ["huge", "odd"]


def test_lone_surrogate_becomes_a_question_mark():
    (span,), errors = _encoded(_span(attributes={"x": "a\ud800b"}))
    assert span.attributes[0].value.string_value == "a?b"
    assert errors == {}


def test_span_that_cannot_be_encoded_leaves_its_neighbours():
    encoded, errors = _encoded(_span(), _span(start_time=-1), _span())
    assert len(encoded) == 2
    assert list(errors) == [1]
