"""A recorded send equals the span of the same send in every attribute, in both formats."""

import contextlib
import copy
import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_by_opentelemetry
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from otel_mqtrace.hooks.sampling import IdPool
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.records.sent import SentSpan
from otel_mqtrace.wire.native import DIALECTS
from otel_mqtrace.wire.otlp.sdk_spans import encode_spans
from tests.support.opentelemetry_release import needs_sdk
from tests.support.programs import run_in_child
from tests.support.record_equality import Leaders, World, encode_whole, native_of, spans_of

topics = st.sampled_from(["orders", "a-b.c", "订单", "100%", "odd\x01topic", "%s"])
keys = st.none() | st.binary(max_size=8) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
bodies = st.none() | st.binary(max_size=300) | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
texts = st.binary(max_size=6) | st.sampled_from([b"k1 k2", b"", b" ", b"a\x01b", "订单".encode()])
headers = st.none() | st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "other"]), texts | st.none()), max_size=3)


class _World(World):
    """Two hooks that differ in nothing: the ids, the clock and the request ids of both count from one."""

    def __init__(self, client_id=None, **options):
        super().__init__(records=True, **options)
        info = ClientInfo.of_kafka({"bootstrap.servers": "b1:9092", "client.id": client_id}, group_name=None)
        self.hook = SendHook(tracing=self.tracing, info=info)

    def by_record(self, sending):
        recorded = self.hook.record(sending.topic, sending.body, sending.key, sending.headers, sending.leaders)
        if recorded is None:
            return None
        sent, pairs = recorded
        self.clock.advance(ms=sending.took_ms)
        self.hook.end_record(sent, sending.partition, sending.offset)
        return pairs, self.ended.take()

    def by_span(self, sending):
        call = self.hook.before(sending.topic, body=sending.body, key=sending.key, headers=sending.headers)
        self.clock.advance(ms=sending.took_ms)
        self.hook.after(
            call,
            partition=sending.partition,
            offset=sending.offset,
            store_host=sending.leaders.of(sending.topic, sending.partition),
            cluster_id=sending.leaders.cluster_id,
        )
        return call.headers, self.ended.take()


@dataclass
class _Sending:
    topic: str = "orders"
    body: object = b"an order"
    key: object = None
    headers: list | None = None
    partition: int = 0
    offset: int = 7
    took_ms: int = 5
    leaders: Leaders = None

    def __post_init__(self):
        self.leaders = self.leaders or Leaders({0: "b2:9092"}, "C1")


sendings = st.builds(
    _Sending,
    topic=topics,
    body=bodies,
    key=keys,
    headers=headers,
    partition=st.integers(0, 3),
    offset=st.sampled_from([0, 127, 128, 1 << 14, (1 << 42) + 1, (1 << 63) - 1]),
    took_ms=st.sampled_from([0, 1, 300, 1 << 31]),
    leaders=st.builds(Leaders, st.sampled_from([{}, {0: "b2:9092", 1: "b3:9092"}]), st.none() | st.just("C1")),
)


@given(sendings, st.none() | st.just("shop"), st.booleans(), st.sampled_from(sorted(DIALECTS)))
def test_recorded_send_equals_the_span_of_the_same_send(sending, client_id, has_parent, dialect):
    results = []
    for way in ("by_record", "by_span"):
        world = _World(client_id)
        if has_parent:
            with trace.use_span(world.tracing.tracer.start_span("handler"), end_on_exit=False):
                results.append(getattr(world, way)(sending))
        else:
            results.append(getattr(world, way)(sending))
    (recorded_headers, recorded), (span_headers, span) = results
    assert type(recorded) is SentSpan
    assert recorded_headers == span_headers
    for _ in range(2):  # by a new template, and by the same again
        assert native_of([recorded], dialect) == native_of([span], dialect, encode_whole)
    written = encode_spans([recorded]).body
    assert spans_of(written) == spans_of(encode_by_opentelemetry([span]).SerializeToString())
    assert dict(recorded.attributes) == dict(span.attributes)
    assert json.loads(recorded.to_json()) == json.loads(span.to_json())
    assert spans_of(encode_spans([recorded]).body) == spans_of(written)
    assert native_of([recorded], dialect) == native_of([span], dialect)


@pytest.mark.parametrize(
    "copied", [copy.copy, pytest.param(copy.deepcopy, marks=needs_sdk(40, "attributes cannot be copied deeply"))]
)
def test_copy_of_a_span_is_equal(copied):
    world = _World(resource=Resource({"service.name": "shop"}))
    with trace.use_span(world.tracing.tracer.start_span("handler")):
        _, span = world.by_record(_Sending(key=b"k"))
    assert json.loads(copied(span).to_json()) == json.loads(span.to_json())


@needs_sdk(40, "its encoder writes other flags and resources")
@pytest.mark.parametrize("name", ["_attributes", "_name", "_resource"])
def test_values_a_processor_assigned_are_exported(name):
    _, span = _World().by_record(_Sending())
    assigned = {"_attributes": {"only": "this"}, "_name": "renamed", "_resource": Resource({"service.name": "other"})}
    setattr(span, name, assigned[name])
    ours = ExportTraceServiceRequest.FromString(encode_spans([span]).body)
    assert ours == encode_by_opentelemetry([span])


def test_resource_of_a_record_is_grouped_with_that_of_other_spans():
    resource = Resource({"service.name": "shop"}, "https://example.com/schema")
    _, span = _World(resource=resource).by_record(_Sending())
    assert {resource: "group"}[span.resource] == "group"
    assert (span.resource, hash(span.resource)) == (resource, hash(resource))
    assert span.resource is span.resource


def test_random_ids_are_unique():
    pool = IdPool(RandomIdGenerator())
    drawn = [pool.draw()]
    with contextlib.suppress(IndexError):
        while True:
            drawn.append(pool.pop())
    assert len(set(drawn)) == len(drawn) > 1
    assert set(map(len, drawn)) == {24}


@pytest.mark.parametrize(
    "given",
    [[("traceparent", b"x")], [("UNIQ_KEY", b"x")], [("DELAY", b"3")], [("Baggage", b"a=b")], {"uniq_key": b"x"}],
)
def test_send_with_trace_headers_needs_a_span(given):
    assert _World().by_record(_Sending(headers=given)) is None


def test_failed_send_equals_the_span_of_the_same_send():
    spans = []
    for is_recorded in (True, False):
        world = _World()
        sending = _Sending(key=b"k")
        if is_recorded:
            sent, _ = world.hook.record(sending.topic, sending.body, sending.key, None, sending.leaders)
            call = world.hook.reopen(sent)
        else:
            call = world.hook.before(sending.topic, body=sending.body, key=sending.key)
        world.clock.advance(ms=3)
        world.hook.after(call, error="_MSG_TIMED_OUT", description="Local: Message timed out")
        spans.append(world.ended.take().to_json())
    assert spans[0] == spans[1]


def test_forked_child_ends_no_send_of_its_parent():
    world = _World()
    sent, _ = world.hook.record("orders", b"x", None, None, None)

    def end_both_ways():
        world.hook.end_record(sent, 0, 1)
        world.hook.after(world.hook.reopen(sent), error="X")
        return len(world.ended.take_all())

    assert run_in_child(end_both_ways) == 0
    world.hook.end_record(sent, 0, 1)
    assert len(world.ended.take_all()) == 1
