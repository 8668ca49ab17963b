"""The bytes that are sent are those of OpenTelemetry's encoder for the span that defines them."""

import itertools
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from bridge.forwarder.otlp_requests import requests_of
from bridge.forwarder.pairing import Event, Half, Origin, Pairing, Position
from bridge.forwarder.span_delivery import OtlpDelivery
from bridge.forwarder.span_fields import SpanRules
from otel_mqtrace._errors import UsageError
from otel_mqtrace.model import TraceBean, TraceContext, TraceType
from otel_mqtrace.wire.native import decode_body, explode
from otel_mqtrace.wire.native.decode import decode_rows
from otel_mqtrace.wire.otlp.protobuf import BoundedCache
from tests.support.forwarded_spans import record_of, span_of
from tests.support.native_vectors import RECORDED_FILES, recorded
from tests.support.otlp_receiver import GrpcReceiver
from tests.support.strategies import fields_of, sayable
from tests.support.trace_stories import START_MS, after, before, body_of, pub

ORIGIN = Origin(Position("trace", 0, 0), START_MS, START_MS, START_MS)

texts = st.sampled_from(
    ["", "null", "dKey", "a", "k1 k2", " ", "订单", "\ud800", "x\udfff y", "k" * 300, "\x00"]
) | st.text(max_size=300)
groups = st.sampled_from(["PG_order", "PG_go_1", "订单", "\ud800", "?", "null"]) | texts
numbers = st.sampled_from([0, -1, 127, 128, (1 << 63) - 1, -(1 << 63)]) | st.integers(-(1 << 63), (1 << 63) - 1)
lengths = st.sampled_from([1 << 63]) | numbers  # a number beyond int64 is left out
stamps = st.sampled_from([0, -1, START_MS, START_MS + 7, (1 << 63) - 1]) | numbers
hosts = (
    st.sampled_from(["10.0.0.5:10911", "[::1]:1", "h", ":9", "h:²", "h:99999999999999999999", "http://h:1,g:2"]) | texts
)
beans = fields_of(TraceBean, texts, numbers, body_length=st.none() | lengths, store_host=st.none() | hosts)


def contexts(trace_types=tuple(TraceType)):
    """Whatever the model can say of one message, with a bean or without."""
    own = {"trace_type": st.sampled_from(trace_types), "beans": st.tuples(beans) | st.just(())}
    return fields_of(
        TraceContext, texts, numbers, timestamp_ms=st.none() | stamps, group_name=st.none() | groups, **own
    )


@st.composite
def events(draw):
    """A record alone, as half or whole, or both halves of a call that agree on nothing."""
    is_pair = draw(st.booleans())

    def record(trace_ctx):
        return record_of(trace_ctx, arrival_ms=draw(stamps), messages=draw(st.sampled_from([1, 1, 2, 300])))

    if is_pair:
        first, second = (record(draw(contexts([kind]))) for kind in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER))
        return Event(record=second, before=first)
    half = draw(st.sampled_from([None, *Half]))
    return Event(record=record(draw(contexts())), half=half, is_root=draw(st.booleans()))


rules = st.builds(
    SpanRules,
    service_name=st.sampled_from([None, "fixed", "定"]),
    system=st.sampled_from(["rocketmq", "kafka"]),
    stamped_after=st.sampled_from([(), ("PG_go_*",), ("[?]", "订*")]),
)


def _written(fields, how):
    (request,) = requests_of(fields, how)
    assert request.events == fields
    return request.body


@settings(max_examples=50)
@given(st.lists(events(), min_size=1, max_size=5), rules)
def test_span_is_encoded_like_opentelemetry(values, how):
    ours, theirs = _written(values, how), encode_spans([span_of(event, how) for event in values])
    assert ExportTraceServiceRequest.FromString(ours) == theirs
    assert ours == theirs.SerializeToString()
    spans = [span for each in theirs.resource_spans for scope in each.scope_spans for span in scope.spans]
    assert all(0 <= span.start_time_unix_nano <= span.end_time_unix_nano < 1 << 63 for span in spans)


def _events_of(bodies):
    pairing = Pairing()
    return pairing.add(record for body in bodies for record in decode_rows(body, ORIGIN)[0]) + pairing.flush()


def _check_rows(body, **how):
    decoded = decode_body(body, **how)
    expected = [
        record_of(each, arrival_ms=START_MS, messages=len(pieces), record_index=index)
        for index, trace_ctx in zip(decoded.record_indexes, decoded.contexts, strict=True)
        for pieces in [explode(trace_ctx)]
        for each in pieces
    ]
    assert decode_rows(body, ORIGIN, **how) == (expected, list(decoded.errors))


@pytest.mark.parametrize("name", RECORDED_FILES)
def test_rows_of_a_recorded_body_are_its_records(name):
    bodies = [each.body for each in recorded(name)]
    whole = b"".join(bodies)
    # its last field empty, and it
    records = [(record[: record.rfind(b"\1") + 1], record) for record in whole.split(b"\2")]
    for body in [*bodies, whole, whole[:-7].replace(b"1", b"x", 3), b"\2".join(itertools.chain(*records))]:
        for msg_type_map in "ab":
            _check_rows(body, msg_type_map=msg_type_map)


@given(sayable(), st.binary(max_size=20))
def test_rows_of_a_written_body_are_its_records(drawn, noise):
    trace_ctx, dialect, channel = drawn
    body = body_of(trace_ctx._replace(access_channel=channel), dialect=dialect)
    _check_rows(body + noise + body)


@pytest.mark.parametrize("name", RECORDED_FILES)
def test_records_of_real_clients_are_encoded_like_opentelemetry(name):
    events = _events_of([each.body for each in recorded(name)])
    assert _written(events, SpanRules()) == _encoded(events)


def test_events_are_split_into_requests_without_repeats():
    events = _events_of([body_of(pub(f"M{n}"), before(f"M{n}"), after(f"M{n}")) for n in range(1_500)])
    requests = list(requests_of(events, SpanRules()))
    assert [event for request in requests for event in request.events] == events
    assert len(requests) == 2
    assert list(requests_of([], SpanRules())) == []
    assert [_spans_in(request.body) for request in requests] == [len(request.events) for request in requests]


def _spans_in(body):
    resources = ExportTraceServiceRequest.FromString(body).resource_spans
    return sum(len(scope.spans) for resource in resources for scope in resource.scope_spans)


@pytest.mark.parametrize(("keys", "count"), [("k" * 70_000, 50), ("键" * 200_000, 10), ("k " * 40_000, 8)])
def test_request_fits_the_grpc_receive_limit(keys, count):
    events = _events_of([body_of(pub(f"M{n}", keys=keys)._replace(group_name=f"PG_{n}")) for n in range(count)])
    requests = list(requests_of(events, SpanRules()))
    assert len(requests) > 1
    assert sum(_spans_in(request.body) for request in requests) == count
    assert all(len(request.body) <= 3 << 20 for request in requests)


def test_cache_of_texts_is_bounded():
    lengths = BoundedCache(len)
    assert [lengths["a"], lengths["x" * 257], len(lengths)] == [1, 257, 1]
    for number in range(10_000):
        assert lengths[str(number)] == len(str(number))
    assert len(lengths) <= 4_096


@pytest.fixture
def delivered():
    return _events_of([body_of(pub(success=False), pub("M2"), before("M2"), after("M2"))])


def _encoded(events):
    return encode_spans([span_of(event, SpanRules()) for event in events]).SerializeToString()


def _deliver(events, endpoint):
    handlers = [*OtlpDelivery._logger.handlers]
    with closing(OtlpDelivery(endpoint)) as delivery:
        delivery.deliver(events, SpanRules())
    assert OtlpDelivery._logger.handlers == handlers
    return delivery.rejected


def test_over_grpc_the_spans_are_those_of_the_definition(delivered, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "tenant=orders")
    with GrpcReceiver() as receiver:
        assert _deliver(delivered, receiver.endpoint.replace("http", "grpc")) == 1
    assert [each.SerializeToString() for each in receiver.requests] == [_encoded(delivered)]
    assert receiver.metadata[0]["tenant"] == "orders"


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_over_http_the_spans_are_those_of_the_definition(delivered, receiver, compression, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", compression)
    _deliver(delivered, receiver.endpoint)
    spans = ExportTraceServiceRequest.FromString(_encoded(delivered)).resource_spans
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
