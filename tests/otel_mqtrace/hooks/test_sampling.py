"""The state of a tracer: when an event may be recorded without a span, and what makes the answer change."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import propagate, trace
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
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
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, NoOpTracerProvider, ProxyTracerProvider, SpanContext, TraceFlags

from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace.hooks.sampling import (
    TracerState,
    is_never_recorded,
    max_links,
    processors_of,
    remove_processor,
)
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.testing import RecordingExporter
from tests.support.opentelemetry_release import needs_sdk

NO_SDK = (NoOpTracerProvider().get_tracer("x"), ProxyTracerProvider().get_tracer("x"))
ROOT = trace.INVALID_SPAN_CONTEXT


class Looking(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attribute("seen", True)


class Ending(SpanProcessor):
    def _on_ending(self, span: Any) -> None:
        pass


class Marking(MqTraceSpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attribute("tenant", "shop")
        super().on_start(span, parent_context)


class Choosing(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "looks at everything"


class Multi(SynchronousMultiSpanProcessor):
    pass


class Wrapping(trace.Tracer):
    def __init__(self, tracer: Any) -> None:
        self._inner = tracer

    def start_span(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._inner.start_span(f"wrapped {name}", *args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._inner.start_as_current_span(*args, **kwargs)


def provider(*processors: SpanProcessor, sampler: Sampler = ALWAYS_ON, **options: Any) -> TracerProvider:
    made = TracerProvider(sampler=sampler, shutdown_on_exit=False, **options)
    for each in processors:
        made.add_span_processor(each)
    return made


def state(*processors: SpanProcessor, **options: Any) -> TracerState:
    return TracerState(provider(*processors, **options).get_tracer("t"))


def parent(*, sampled: bool, remote: bool) -> SpanContext:
    return SpanContext(1, 2, is_remote=remote, trace_flags=TraceFlags(sampled))


@pytest.mark.parametrize(
    "sampler", [ALWAYS_ON, DEFAULT_ON, TraceIdRatioBased(0.5), ParentBased(TraceIdRatioBased(0.5))]
)
def test_sampler_of_the_sdk_allows_records(sampler: Sampler) -> None:
    assert state(sampler=sampler).can_record


@pytest.mark.parametrize(
    "sampler", [Choosing(), ParentBased(Choosing()), ParentBased(ALWAYS_ON, local_parent_sampled=Choosing())]
)
def test_sampler_that_reads_attributes_needs_a_span(sampler: Sampler) -> None:
    assert not state(sampler=sampler).can_drop


def test_decision_of_a_parent_based_sampler_follows_the_parent() -> None:
    sampler = ParentBased(TraceIdRatioBased(0.5), remote_parent_sampled=ALWAYS_OFF)
    known = state(sampler=sampler)
    assert known.decision(ROOT) is None
    assert known.decision(parent(sampled=True, remote=True)) is Decision.DROP
    assert known.decision(parent(sampled=True, remote=False)) is Decision.RECORD_AND_SAMPLE
    assert known.decision(parent(sampled=False, remote=False)) is Decision.DROP


def test_idle_processors_of_the_sdk_allow_records() -> None:
    exporter = RecordingExporter()
    batch = BatchSpanProcessor(exporter)
    assert state(batch, SimpleSpanProcessor(exporter), SpanProcessor()).can_record
    batch.shutdown()


def _with_own_method() -> SpanProcessor:
    processor = SpanProcessor()
    processor.on_start = lambda span, parent_context=None: None  # type: ignore[method-assign]  # as some libraries do
    return processor


@pytest.mark.parametrize("processor", [Looking(), Ending(), _with_own_method()])
def test_processor_that_reads_open_spans_needs_a_span(processor: SpanProcessor) -> None:
    assert not state(processor).can_record


def test_subclass_of_our_processor_gets_an_sdk_span_at_the_start() -> None:
    exporter = RecordingExporter()
    exporter.exports_starts = True  # type: ignore[attr-defined]  # what an exporter may declare
    ours = Marking(exporter, background=False)
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider(ours)))
    assert hook.record("orders", b"x", None, None, None) is None
    hook.after(hook.before("orders", body=b"x"), partition=3, offset=4)
    ours.force_flush()
    start, end = exporter.take_all()
    assert start.attributes["tenant"] == end.attributes["tenant"] == "shop"
    assert start.attributes["messaging.destination.name"] == "orders"
    ours.shutdown()


@pytest.mark.parametrize("limits", [SpanLimits(max_span_attributes=10), SpanLimits(max_attribute_length=64)])
def test_limit_that_could_cut_needs_a_span(limits: SpanLimits) -> None:
    assert not state(span_limits=limits).can_record


def test_foreign_tracers_need_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not TracerState(Wrapping(provider().get_tracer("t"))).can_drop
    assert not any(TracerState(each).can_drop for each in NO_SDK)
    assert not state(active_span_processor=Multi()).can_drop
    original = Tracer.start_span
    known = state()
    monkeypatch.setattr(Tracer, "start_span", lambda *args: original(*args))  # noqa: PLW0108 - another function
    assert not known.is_current()
    assert not state().can_drop


@needs_sdk(40, "a provider takes no meter_provider")
def test_metrics_of_the_sdk_need_a_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    assert not state(meter_provider=MeterProvider()).can_drop


@pytest.mark.parametrize("change", ["processor", "sampler", "ids", "propagator"])
def test_change_of_the_provider_ends_the_state(change: str) -> None:
    made = provider()
    tracer: Any = made.get_tracer("t")
    known = TracerState(tracer)
    assert known.is_current()
    before = propagate.get_global_textmap()
    try:
        if change == "processor":
            made.add_span_processor(SpanProcessor())
        elif change == "sampler":
            tracer.sampler = ALWAYS_OFF
        elif change == "ids":
            tracer.id_generator = RandomIdGenerator()
        else:
            propagate.set_global_textmap(CompositePropagator([]))
        assert not known.is_current()
    finally:
        propagate.set_global_textmap(before)


@needs_sdk(40, "a tracer cannot be disabled")
def test_disabled_tracer_needs_a_span() -> None:
    tracer: Any = provider().get_tracer("t")
    known = TracerState(tracer)
    tracer._tracer_config = type(tracer._tracer_config)(is_enabled=False)
    assert not known.is_current()
    assert not TracerState(tracer).can_drop


@pytest.mark.parametrize(
    ("sampler", "root", "sampled"),
    [
        (ALWAYS_OFF, True, True),
        (DEFAULT_OFF, True, False),
        (ALWAYS_ON, False, False),
        (TraceIdRatioBased(0), False, False),
    ],
)
def test_never_recorded_is_known_of_static_samplers_only(sampler: Sampler, root: bool, sampled: bool) -> None:
    tracer = provider(sampler=sampler).get_tracer("t")
    assert is_never_recorded(tracer, ROOT) is root
    assert is_never_recorded(tracer, parent(sampled=True, remote=True)) is sampled


def test_without_an_sdk_nothing_is_ever_recorded() -> None:
    assert [is_never_recorded(each, ROOT) for each in NO_SDK] == [True, True]
    assert not is_never_recorded(object(), ROOT)


def test_links_of_a_span_are_bounded_as_the_provider_says() -> None:
    assert max_links(TracerProvider(span_limits=SpanLimits(max_links=7)).get_tracer("x")) == 7
    assert [max_links(tracer) for tracer in NO_SDK] == [None, None]


def test_removed_processor_leaves_the_others_at_work() -> None:
    kept, gone = RecordingExporter(), RecordingExporter()
    made = TracerProvider()
    processors = [SimpleSpanProcessor(kept), SimpleSpanProcessor(gone)]
    for each in processors:
        made.add_span_processor(each)
    assert list(processors_of(made)) == processors
    remove_processor(made, processors[1])
    made.get_tracer("x").start_span("x").end()
    assert ([span.name for span in kept.take_all()], gone.take_all()) == (["x"], [])
    remove_processor(trace.NoOpTracerProvider(), processors[0])
    assert processors_of(trace.NoOpTracerProvider()) == ()


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF), TraceIdRatioBased(0)])
def test_unsampled_span_is_no_start_and_no_mistake(sampler: Sampler) -> None:
    exporter = RecordingExporter()
    exporter.exports_starts = True  # type: ignore[attr-defined]  # what an exporter may declare
    ours = MqTraceSpanProcessor(exporter, background=False)
    hook = SendHook(tracing=Tracing.create(tracer_provider=provider(ours, sampler=sampler)))
    hook.after(hook.before("orders", body=b"x"), partition=3, offset=4)
    ours.on_start(NonRecordingSpan(ROOT))  # type: ignore[arg-type]  # a foreign span: a mistake that is counted
    assert (ours.internal_errors, ours.stats()["RecordingExporter"]["offered"]) == (1, 0)
    ours.shutdown()
