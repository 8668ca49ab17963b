"""``topic_sampling``: of the traces that begin at a topic only a share is recorded; a trace under way is never cut."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.hooks.attributes import LegacyNames
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.sampling import _decided_id
from otel_mqtrace.model import TraceType
from otel_mqtrace.spans.mapping import OPERATIONS

SENDS = 400


class _SeededIds(IdGenerator):
    """Random ids, the same in every run."""

    def __init__(self):
        self._random = random.Random(7)

    def generate_span_id(self):
        return self._random.getrandbits(64) or 1

    def generate_trace_id(self):
        return self._random.getrandbits(128) or 1


@pytest.fixture
def provider_of(exporter):
    def make(sampler=None):
        provider = TracerProvider(id_generator=_SeededIds(), sampler=sampler)
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        return provider

    return make


@pytest.fixture
def sampling(tracing_with, provider_of):
    def make(topic_sampling, sampler=None):
        return tracing_with({"tracer_provider": provider_of(sampler)}, topic_sampling=topic_sampling)

    return make


def _send(tracing, topic="orders"):
    hook = SendHook(tracing=tracing)
    call = hook.before(topic)
    hook.after(call, partition=0, offset=1)
    return call


def test_without_shares_nothing_is_asked(tracing_with):
    assert tracing_with().sampling is None


def test_a_share_of_nothing_records_nothing_and_says_so_on_the_wire(sampling):
    """A parent-based sampler downstream obeys the flag; the message has its ids all the same."""
    call = _send(sampling({"orders": 0.0}))
    headers = dict(call.headers)
    assert headers["traceparent"].endswith(b"-00")
    assert f"{call.span_context.trace_id:032x}".encode() in headers["traceparent"]
    assert (call.span_context.is_valid, call.is_recorded, len(headers["UNIQ_KEY"])) == (True, False, 32)


def test_the_trace_id_decides_so_that_every_sampler_of_that_share_agrees(sampling, exporter):
    """Kept are exactly the ids OpenTelemetry's ratio sampler keeps: two of a quarter in a row make a quarter."""
    tracing = sampling({"orders": 0.25}, sampler=ParentBased(TraceIdRatioBased(0.25)))
    calls = [_send(tracing) for _ in range(SENDS)]
    bound = TraceIdRatioBased(0.25).bound
    kept = {call.span_context.trace_id for call in calls if call.is_recorded}
    assert kept == {call.span_context.trace_id for call in calls if call.span_context.trace_id & (2**64 - 1) < bound}
    assert SENDS * 0.15 < len(kept) < SENDS * 0.35
    assert {span.context.trace_id for span in exporter.take_all("send orders")} == kept
    assert len({call.span_context.trace_id for call in calls}) == SENDS


def test_a_kept_trace_still_goes_through_the_sdk_s_sampler(sampling):
    assert _send(sampling({"*": 1.0}, sampler=ALWAYS_OFF)).is_recorded is False


def test_the_first_pattern_decides_and_other_topics_are_the_sdk_s(sampling, exporter):
    tracing = sampling({"audit.keep": 1.0, "audit.*": 0.0})
    calls = [_send(tracing, topic) for topic in ("audit.keep", "audit.drop", "orders")]
    assert [call.is_recorded for call in calls] == [True, False, True]
    assert [span.name for span in exporter.take_all()] == ["send audit.keep", "send orders"]


def test_a_trace_that_began_earlier_is_not_cut(sampling, exporter):
    tracing = sampling({"*": 0.0})
    parent = tracing.tracer.start_span("handle a request")
    token = context.attach(trace.set_span_in_context(parent))
    try:
        _send(tracing)
    finally:
        context.detach(token)
    parent.end()
    assert exporter.take("send orders").parent.span_id == parent.get_span_context().span_id
    exporter.take("handle a request")


def test_what_is_left_out_at_the_send_is_left_out_downstream(sampling):
    tracing = sampling({"orders": 0.0})
    sent = _send(tracing)
    hook = ConsumeHook(tracing=tracing)
    (call,) = hook.before([IncomingMessage(topic="orders", partition=0, offset=1, headers=sent.headers)])
    token = context.attach(call.otel_ctx)
    try:
        onward = _send(tracing, "invoices")
    finally:
        context.detach(token)
    hook.after(call)
    assert {call.span.get_span_context().trace_id, onward.span_context.trace_id} == {sent.span_context.trace_id}
    assert (call.span.is_recording(), onward.is_recorded) == (False, False)


def test_a_process_span_that_begins_a_trace_is_sampled_too(sampling, exporter):
    hook = ConsumeHook(tracing=sampling({"orders": 0.0}))
    for topic in ("orders", "invoices"):
        for call in hook.before([IncomingMessage(topic=topic, partition=0, offset=1)]):
            hook.after(call)
    assert [span.name for span in exporter.take_all()] == ["process invoices"]


def test_other_traces_of_the_provider_keep_their_own_ids(sampling, exporter):
    tracing = sampling({"orders": 1.0})
    calls = [_send(tracing), _send(tracing, "free"), _send(tracing)]
    tracing.tracer.start_span("mine").end()
    ids = [span.context.trace_id for span in exporter.take_all()]
    assert len(set(ids)) == 4
    assert ids[:3] == [call.span_context.trace_id for call in calls]


def test_switching_on_again_wraps_nothing_twice(tracing_with, provider_of, exporter):
    provider = provider_of()
    for _ in range(10):
        tracing = tracing_with({"tracer_provider": provider}, topic_sampling={"orders": 1.0})
        _send(tracing)
    assert len({span.context.trace_id for span in exporter.take_all("send orders")}) == 10
    drawn, other = tracing.tracer.id_generator, provider.get_tracer("application").id_generator
    assert drawn._inner is other is provider.id_generator


def test_an_id_decided_on_for_a_span_that_could_not_be_started_is_forgotten(sampling, exporter):
    tracing = replace(sampling({"orders": 1.0}), naming=LegacyNames(both=True))
    start = {"context": Context(), "start_ns": 1}
    with pytest.raises(TypeError):
        tracing.start_span(OPERATIONS[TraceType.PUB], "orders", attributes=None, **start)
    assert _decided_id.get() is None
    tracing.start_span(OPERATIONS[TraceType.PUB], None, attributes={}, **start).end()
    assert len(exporter.take_all()) == 1
