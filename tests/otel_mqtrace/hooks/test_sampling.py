"""Samplers, shares by topic, unsampled spans, and the limits of a span."""

import random
import re
from importlib.metadata import entry_points
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanLimits, SpanProcessor, SynchronousMultiSpanProcessor, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    StaticSampler,
    TraceIdRatioBased,
)

from otel_mqtrace import ConsumeHook, MqTraceSpanProcessor, SendHook
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.sampling import TracerState, max_links
from otel_mqtrace.hooks.scope import BlockScope
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import RecordingExporter
from tests.support.mailbox import incoming
from tests.support.opentelemetry_release import needs_sdk

ROOT = trace.INVALID_SPAN_CONTEXT


class Marking(MqTraceSpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attribute("tenant", "shop")
        super().on_start(span, parent_context)


READS_ATTRIBUTES = Mock(Sampler, **{"should_sample.return_value": SamplingResult(Decision.RECORD_AND_SAMPLE)})
OWN_DECISION = {"should_sample": READS_ATTRIBUTES.should_sample}
SUBCLASSES = [
    type("Own", (StaticSampler,), OWN_DECISION)(Decision.DROP),
    type("Own", (TraceIdRatioBased,), OWN_DECISION)(0.5),
    type("Own", (ParentBased,), OWN_DECISION)(ALWAYS_OFF),
]


def provider(*processors: SpanProcessor, sampler: Sampler = ALWAYS_ON, **options: Any) -> TracerProvider:
    made = TracerProvider(sampler=sampler, shutdown_on_exit=False, **options)
    for each in processors:
        made.add_span_processor(each)
    return made


def state(*processors: SpanProcessor, **options: Any) -> TracerState:
    return TracerState(provider(*processors, **options).get_tracer("t"))


def parent(*, sampled: bool, remote: bool) -> trace.SpanContext:
    return trace.SpanContext(1, 2, is_remote=remote, trace_flags=trace.TraceFlags(sampled))


SDKS_SAMPLERS = [each for each in entry_points(group="opentelemetry_traces_sampler") if ".sdk.trace." in each.value]
"""Under ``opentelemetry-instrument``, ``OTEL_TRACES_SAMPLER`` names private classes of the SDK."""


@pytest.mark.parametrize("sampler", [ALWAYS_ON, DEFAULT_ON, *(each.load()(0.5) for each in SDKS_SAMPLERS)])
def test_sampler_and_idle_processors_of_the_sdk_allow_records(sampler: Sampler) -> None:
    exporter = RecordingExporter()
    batch = BatchSpanProcessor(exporter)
    assert state(batch, SimpleSpanProcessor(exporter), SpanProcessor(), sampler=sampler).can_record
    batch.shutdown()


DROP, KEEP = Decision.DROP, Decision.RECORD_AND_SAMPLE


@pytest.mark.parametrize(
    ("sampler", "decisions"),
    [
        (ALWAYS_OFF, [DROP] * 5),
        (DEFAULT_OFF, [DROP, KEEP, DROP, KEEP, DROP]),
        (DEFAULT_ON, [KEEP, KEEP, DROP, KEEP, DROP]),
        (ALWAYS_ON, [KEEP] * 5),
        (TraceIdRatioBased(0), [None] * 5),
        (ParentBased(TraceIdRatioBased(0.5), remote_parent_sampled=ALWAYS_OFF), [None, DROP, DROP, KEEP, DROP]),
        (ParentBased(ALWAYS_OFF, remote_parent_not_sampled=ALWAYS_ON), [DROP, KEEP, KEEP, KEEP, DROP]),
        (ParentBasedTraceIdRatio(0.5), [None, KEEP, DROP, KEEP, DROP]),
        *((each, [None] * 5) for each in (READS_ATTRIBUTES, *SUBCLASSES)),
    ],
)
def test_certain_decision_follows_the_sampler_and_the_parent(sampler: Sampler, decisions: list) -> None:
    known = state(sampler=sampler)
    parents = [ROOT, *(parent(sampled=flag, remote=remote) for remote in (True, False) for flag in (True, False))]
    assert [known.decision_under(each)[0] for each in parents] == decisions
    for each, decision in zip(parents, decisions, strict=True):
        for flags in (each.trace_flags, each.trace_flags | 2):  # a trace id that says to be random
            above = trace.SpanContext(each.trace_id, each.span_id, each.is_remote, trace.TraceFlags(flags))
            span = known.tracer.start_span("s", trace.set_span_in_context(trace.NonRecordingSpan(above), Context()))
            expected = (span.is_recording(), span.get_span_context().trace_flags)
            assert decision is None or (decision is KEEP, known.decision_under(above)[1]) == expected


@example(ratio=0.5, trace_id=2**64 + 2**63 - 1)
@example(ratio=0.5, trace_id=2**63)
@given(ratio=st.floats(0, 1), trace_id=st.integers(1, 2**128 - 1))
def test_trace_that_begins_here_is_decided_by_its_id_as_the_ratio_sampler_does(ratio: float, trace_id: int) -> None:
    sampler = TraceIdRatioBased(ratio)
    for whole in (sampler, ParentBased(sampler)):
        decision, _ = state(sampler=whole).decision_on(trace_id.to_bytes(16, "big") + bytes(8))
        assert decision is sampler.should_sample(None, trace_id, "send orders").decision


@pytest.mark.parametrize("kind", [TraceIdRatioBased, ParentBasedTraceIdRatio])
@pytest.mark.parametrize("others", [{}, {"meter_provider": MeterProvider([InMemoryMetricReader()])}])
def test_share_of_the_sends_that_begin_a_trace_is_sampled(kind: type, others: Any) -> None:
    made = provider(sampler=kind(0.25))
    hook = SendHook(tracing=Tracing.create(tracer_provider=made, **others))
    sampled = 0
    for _ in range(400):
        sent, headers = hook.record("orders", b"x", None, None, None, None)
        _, trace_id, _, flags = dict(headers)["traceparent"].decode().split("-")
        is_sampled = int(trace_id[16:], 16) < 2**62
        assert is_sampled == (sent is not None and bool(sent.flags & 1))
        random = made.get_tracer("t").start_span("s").get_span_context().trace_flags & 2
        assert int(flags, 16) == random + is_sampled
        sampled += is_sampled
    assert 40 < sampled < 160


@pytest.mark.parametrize("is_remote", [False, True])
def test_send_inside_a_trace_is_left_to_a_ratio_sampler_which_reads_the_id_of_that_trace(is_remote: bool) -> None:
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider(sampler=TraceIdRatioBased(0.5))))
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote, trace.TraceFlags(1)))):
        assert hook.record("orders", b"x", None, None, None, None) is None


def _make_derived(kind: type, **methods: Any) -> Any:
    return type("Own", (kind,), methods)()


def _with_own_method() -> SpanProcessor:
    processor = SpanProcessor()
    processor.on_start = lambda span, parent_context=None: None  # type: ignore[method-assign]  # as some libraries do
    return processor


@pytest.mark.parametrize(
    ("tracer_provider", "others"),
    [
        *((provider(_make_derived(SpanProcessor, **{name: print})), {}) for name in ("on_start", "_on_ending")),
        (provider(_with_own_method()), {}),
        *(
            (provider(span_limits=SpanLimits(**{name: limit})), {})
            for name, limit in (("max_span_attributes", 10), ("max_attribute_length", 64), ("max_link_attributes", 1))
        ),
        (provider(sampler=TraceIdRatioBased(0.5), span_limits=SpanLimits(max_span_attributes=10)), {}),
        *(
            (provider(sampler=sampler), {})
            for sampler in (
                READS_ATTRIBUTES,
                *SUBCLASSES,
                ParentBased(READS_ATTRIBUTES),
                ParentBased(ALWAYS_ON, local_parent_sampled=READS_ATTRIBUTES),
            )
        ),
        (provider(active_span_processor=_make_derived(SynchronousMultiSpanProcessor)), {}),
        (trace.NoOpTracerProvider(), {}),
        *(
            (provider(sampler=ALWAYS_OFF), {"settings": Settings(**each)})
            for each in ({"propagation": False}, {"topic_exclude": ("orders",)}, {"topic_sampling": {"orders": 0.5}})
        ),
    ],
)
def test_send_that_a_reader_limit_or_setting_may_concern_needs_a_span(tracer_provider: Any, others: Any) -> None:
    hook = SendHook(tracing=Tracing.create(tracer_provider=tracer_provider, **others))
    assert hook.record("orders", b"x", None, None, None, None) is None


@needs_sdk(40, "a provider takes no meter_provider")
def test_metrics_of_the_sdk_need_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    assert not state(meter_provider=MeterProvider()).can_drop


def test_subclass_of_our_processor_gets_an_sdk_span_at_the_start() -> None:
    exporter = RecordingExporter()
    exporter.exports_starts = True  # type: ignore[attr-defined]  # what an exporter may declare
    ours = Marking(exporter, background=False)
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider(ours)))
    assert hook.record("orders", b"x", None, None, None, None) is None
    hook.after(hook.before("orders", body=b"x"), partition=3, offset=4)
    ours.force_flush()
    start, end = exporter.take_all()
    assert start.attributes["tenant"] == end.attributes["tenant"] == "shop"
    assert start.attributes["messaging.destination.name"] == "orders"
    ours.shutdown()


def _disable(_: Any, tracer: Any) -> None:
    tracer._tracer_config = type(tracer._tracer_config)(is_enabled=False)


@pytest.mark.parametrize(
    ("change", "can_drop"),
    [
        (lambda provider, _: provider.add_span_processor(SpanProcessor()), True),
        (lambda _, tracer: setattr(tracer, "sampler", ALWAYS_OFF), True),
        (lambda _, tracer: setattr(tracer, "id_generator", RandomIdGenerator()), True),
        (lambda *_: propagate.set_global_textmap(CompositePropagator([])), False),
        (lambda *_: setattr(Tracer, "start_span", Mock()), False),
        pytest.param(_disable, False, marks=needs_sdk(40, "a tracer cannot be disabled")),
    ],
    ids=["processor", "sampler", "ids", "propagator", "patched", "disabled"],
)
def test_change_of_the_tracer_or_propagator_ends_the_state(
    change: Any, can_drop: bool, propagating: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tracer, "start_span", Tracer.start_span)  # undone after the test
    made = provider()
    known = TracerState(tracer := made.get_tracer("t"))
    assert known.is_current()
    change(made, tracer)
    assert not known.is_current()
    assert TracerState(tracer).can_drop is can_drop


def test_tracer_without_an_sdk_has_no_limit_of_links() -> None:
    assert max_links(TracerProvider(span_limits=SpanLimits(max_links=7)).get_tracer("x")) == 7
    for provider in (trace.NoOpTracerProvider(), trace.ProxyTracerProvider()):
        assert max_links(provider.get_tracer("x")) is None


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF), TraceIdRatioBased(0)])
def test_unsampled_span_is_neither_a_start_nor_an_error(sampler: Sampler) -> None:
    exporter = RecordingExporter()
    exporter.exports_starts = True  # type: ignore[attr-defined]  # what an exporter may declare
    ours = MqTraceSpanProcessor(exporter, background=False)
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider(ours, sampler=sampler)))
    hook.after(hook.before("orders", body=b"x"), partition=3, offset=4)
    ours.on_start(trace.NonRecordingSpan(ROOT))  # type: ignore[arg-type]  # a foreign span: a mistake that is counted
    assert (ours.internal_errors, ours.stats()["RecordingExporter"]["offered"]) == (1, 0)
    ours.shutdown()


@pytest.fixture
def sampling(tracing_with, spans):
    def make(topic_sampling, sampler=DEFAULT_ON):
        collaborators = {"tracer_provider": provider(SimpleSpanProcessor(spans), sampler=sampler)}
        return tracing_with(collaborators, topic_sampling=topic_sampling)

    return make


def _send(tracing, topic="orders"):
    hook = SendHook(tracing=tracing)
    call = hook.before(topic)
    hook.after(call, partition=0, offset=1)
    return call


def test_share_of_zero_records_no_span_and_sends_the_unsampled_flag(sampling):
    call = _send(sampling({"orders": 0.0}))
    headers = dict(call.headers)
    assert headers["traceparent"].endswith(b"-00")
    assert f"{call.span_context.trace_id:032x}".encode() in headers["traceparent"]
    assert (call.span_context.is_valid, call.is_recorded, len(headers["UNIQ_KEY"])) == (True, False, 32)


def test_share_is_decided_by_the_trace_id_as_in_every_ratio_sampler(sampling, spans):
    """Kept are exactly the ids OpenTelemetry's ratio sampler keeps: two of a quarter in a row make a quarter."""
    random.seed(7)  # the SDK draws its ids from there
    tracing = sampling({"orders": 0.25}, sampler=ParentBased(TraceIdRatioBased(0.25)))
    calls = [_send(tracing) for _ in range(400)]
    bound = TraceIdRatioBased(0.25).bound
    kept = {call.span_context.trace_id for call in calls if call.is_recorded}
    assert kept == {call.span_context.trace_id for call in calls if call.span_context.trace_id & (2**64 - 1) < bound}
    assert 60 < len(kept) < 140
    assert {span.context.trace_id for span in spans.take_all("send orders")} == kept
    assert len({call.span_context.trace_id for call in calls}) == 400


@pytest.mark.parametrize(
    ("shares", "sampler", "recorded"),
    [({"audit.keep": 1.0, "audit.*": 0.0}, DEFAULT_ON, ["audit.keep", "orders"]), ({"*": 1.0}, ALWAYS_OFF, [])],
    ids=["first pattern, other topics", "a kept trace is the SDK's to sample"],
)
def test_first_matching_pattern_decides_and_what_is_left_is_sampled_by_the_sdk(
    sampling, spans, shares, sampler, recorded
):
    tracing = sampling(shares, sampler)
    topics = ("audit.keep", "audit.drop", "orders")
    assert [topic for topic in topics if _send(tracing, topic).is_recorded] == recorded
    assert [span.name for span in spans.take_all()] == [f"send {topic}" for topic in recorded]


def test_send_inside_a_trace_is_not_sampled_by_its_topic(sampling, spans):
    tracing = sampling({"*": 0.0})
    with tracing.tracer.start_as_current_span("handle a request") as parent:
        _send(tracing)
    assert spans.take("send orders").parent.span_id == parent.get_span_context().span_id
    spans.take("handle a request")


def test_process_span_that_begins_a_trace_is_sampled_by_its_topic(sampling, spans):
    hook = ConsumeHook(tracing=sampling({"orders": 0.0}))
    for topic in ("orders", "invoices"):
        for call in hook.before([incoming(topic=topic)]):
            hook.after(call)
    assert [span.name for span in spans.take_all()] == ["process invoices"]


def test_other_traces_of_the_provider_keep_their_own_ids(sampling, spans):
    tracing = sampling({"orders": 1.0})
    generator = tracing.tracer.id_generator
    calls = [_send(tracing), _send(tracing, "free"), _send(tracing)]
    tracing.tracer.start_span("mine").end()
    assert tracing.tracer.id_generator is generator  # the application's too
    ids = [span.context.trace_id for span in spans.take_all()]
    assert len(set(ids)) == 4
    assert ids[:3] == [call.span_context.trace_id for call in calls]


NAMES = st.sampled_from(["TAGS", "KEYS", "traceparent", "Traceparent", "tracestate", "baggage", "UNIQ_KEY", "order"])
HEADERS = st.one_of(
    st.none(),
    st.dictionaries(NAMES, st.one_of(st.binary(max_size=4), st.none())),
    st.lists(st.tuples(NAMES, st.one_of(st.binary(max_size=4), st.text(max_size=3), st.none())), max_size=4),
)


def hook(sampler: Sampler = ALWAYS_OFF) -> SendHook:
    return SendHook(tracing=Tracing.create(tracer_provider=provider(sampler=sampler)))


def inject_unsampled(hook: SendHook, topic: str, headers: Any) -> Any:
    recorded = hook.record(topic, b"x", None, headers, None, None)
    return None if recorded is None or recorded[0] is not None else recorded[1]


def shape(headers: Any) -> list[tuple[str, Any]]:
    return [
        (name, re.sub(rb"[0-9a-fA-F]", b"x", value) if name in {"traceparent", "UNIQ_KEY"} else value)
        for name, value in headers
    ]


@given(headers=HEADERS)
def test_unsampled_send_has_the_headers_of_any_other_send(headers: Any) -> None:
    never = hook()
    unsampled, usual = inject_unsampled(never, "orders", headers), never.before("orders", headers=headers)
    names = {name.lower() for name, _ in (headers.items() if isinstance(headers, dict) else headers or ())}
    if unsampled is None:
        assert names & {"traceparent", "tracestate", "baggage", "uniq_key"}
    else:
        assert shape(unsampled) == shape(usual.headers)
        assert dict(unsampled)["traceparent"].endswith((b"-00", b"-02"))


def test_unsampled_send_carries_state_and_baggage_of_the_current_span() -> None:
    parent = trace.SpanContext(1, 2, is_remote=False, trace_state=trace.TraceState([("vendor", "x")]))
    inside = trace.set_span_in_context(trace.NonRecordingSpan(parent))
    with BlockScope(baggage.set_baggage("order", "42", inside)):
        headers = dict(inject_unsampled(hook(DEFAULT_OFF), "orders", None))
    assert re.fullmatch(rb"00-0{31}1-[0-9a-f]{16}-00", headers["traceparent"])
    assert (headers["tracestate"], headers["baggage"]) == (b"vendor=x", b"order=42")


def test_suppressed_send_or_other_propagator_has_no_shortcut(propagating: Any) -> None:
    unsampled = hook()
    assert inject_unsampled(unsampled, "orders", None) is not None
    with suppress_instrumentation():
        assert inject_unsampled(unsampled, "orders", None) is None
    propagating(CompositePropagator([]))
    assert inject_unsampled(unsampled, "orders", None) is None


def _beans_of_a_poll(tracing, spans, count):
    hook = ConsumeHook(tracing=tracing)
    for call in hook.before([incoming(topic="t", offset=n) for n in range(count)], batch=True):
        hook.after(call)
    return [[bean.offset_msg_id for bean in trace_context_of(span).beans] for span in spans.take_all()]


@pytest.mark.parametrize(
    ("max_links", "count", "sizes"),
    [(4, 10, [4, 4, 2]), (1, 10, [1] * 10), (0, 10, [1] * 10), (None, 10, [10]), (SpanLimits.UNSET, 130, [128, 2])],
)
def test_batch_is_split_by_the_link_limit_of_the_provider(spans, max_links, count, sizes):
    tracer_provider = provider(SimpleSpanProcessor(spans), span_limits=SpanLimits(max_links=max_links))
    beans = _beans_of_a_poll(Tracing.create(settings=Settings(), tracer_provider=tracer_provider), spans, count)
    assert [len(each) for each in beans] == sizes
    assert [name for each in beans for name in each] == [f"t-0@{n}" for n in range(count)]


def test_link_limit_of_a_late_provider_is_used(spans, monkeypatch):
    tracing = Tracing.create(settings=Settings())
    assert tracing.links_per_span == 128
    late = provider(SimpleSpanProcessor(spans), span_limits=SpanLimits(max_links=4))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", late)
    assert [len(each) for each in _beans_of_a_poll(tracing, spans, 10)] == [4, 4, 2]
