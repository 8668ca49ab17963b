"""Spans start unread only where nobody looks at one that has just started, and then as the SDK's own tracer starts them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, SynchronousMultiSpanProcessor, Tracer, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, TraceState

from otel_mqtrace import MqTraceSpanProcessor
from otel_mqtrace.hooks._start import SpanStart
from otel_mqtrace.hooks._unread import UnreadSpan
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.testing import RecordingExporter
from tests.support.opentelemetry_release import needs_sdk


class Looking(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attribute("seen", parent_context is not None)


class Ending(SpanProcessor):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def _on_ending(self, span: Any) -> None:
        self.heard.append(span.name)


class Choosing(Sampler):
    def should_sample(self, *_: Any, **__: Any) -> SamplingResult:
        return SamplingResult(Decision.RECORD_AND_SAMPLE)

    def get_description(self) -> str:
        return "looks at everything"


class Counting(RandomIdGenerator):
    """Draws the same ids each time it is begun anew."""

    def __init__(self, first: int) -> None:
        self.last = first

    def generate_trace_id(self) -> int:
        self.last += 1
        return self.last

    def generate_span_id(self) -> int:
        self.last += 1
        return self.last


class Mine(Counting):
    def is_trace_id_random(self) -> bool:
        return False


SAMPLERS = st.sampled_from(
    [
        ALWAYS_ON,
        ALWAYS_OFF,
        DEFAULT_ON,
        TraceIdRatioBased(0.5),
        ParentBased(ALWAYS_OFF, remote_parent_sampled=ALWAYS_OFF, local_parent_not_sampled=ALWAYS_ON),
        ParentBased(TraceIdRatioBased(0.5), local_parent_sampled=TraceIdRatioBased(0.25)),
    ]
)
PARENTS = st.one_of(
    st.just(Context()),
    st.just(Context({"mine": 1})),
    st.builds(
        lambda *of: trace.set_span_in_context(NonRecordingSpan(SpanContext(*of)), Context()),
        st.integers(0, 1 << 127),
        st.integers(0, 1 << 63),
        st.booleans(),
        st.sampled_from([TraceFlags(flags) for flags in range(4)]),
        st.sampled_from([None, TraceState([("vendor", "x")])]),
    ),
)


def provider(*processors: SpanProcessor, sampler: Sampler = ALWAYS_ON, **options: Any) -> TracerProvider:
    made = TracerProvider(sampler=sampler, shutdown_on_exit=False, **options)
    for each in processors:
        made.add_span_processor(each)
    return made


def begun(tracer: Any, otel_ctx: Any, **said: Any) -> Any:
    return SpanStart(tracer).start("s", otel_ctx, SpanKind.CONSUMER, said, (), None, 7)


@given(sampler=SAMPLERS, otel_ctx=PARENTS, first=st.integers(1, 1 << 64), ids=st.sampled_from([Counting, Mine]))
def test_a_span_starts_as_the_sdks_tracer_starts_it(sampler: Sampler, otel_ctx: Any, first: int, ids: Any) -> None:
    """The same ids, flags, trace state and parent, and recorded or not, whatever the sampler and the parent."""
    theirs = (
        provider(sampler=sampler, id_generator=ids(first)).get_tracer("t").start_span("s", otel_ctx, SpanKind.CONSUMER)
    )
    ours = begun(provider(sampler=sampler, id_generator=ids(first)).get_tracer("t"), otel_ctx)
    assert ours.get_span_context() == theirs.get_span_context()
    assert ours.get_span_context().is_remote is theirs.get_span_context().is_remote
    assert ours.is_recording() is theirs.is_recording()
    assert getattr(ours, "parent", None) == getattr(theirs, "parent", None)
    assert type(ours) in {UnreadSpan, NonRecordingSpan}


@pytest.mark.parametrize(
    ("sampler", "answer"),
    [
        (ALWAYS_ON, True),
        (DEFAULT_ON, True),
        (TraceIdRatioBased(0.5), True),
        (ParentBased(TraceIdRatioBased(0.5)), True),
        (Choosing(), False),
        (ParentBased(Choosing()), False),
        (ParentBased(ALWAYS_ON, local_parent_sampled=Choosing()), False),
    ],
)
def test_only_samplers_that_go_by_ids_do_without_attributes(sampler: Sampler, answer: bool) -> None:
    """Any other looks at the span, and gets one of the SDK's."""
    assert (SpanStart(provider(sampler=sampler).get_tracer("t")).ground() is not None) is answer


def test_a_processor_that_looks_is_noticed_whenever_it_comes() -> None:
    """At the start, or before the end; the SDK's own do neither."""
    exporter = RecordingExporter()
    made = provider(BatchSpanProcessor(exporter), SimpleSpanProcessor(exporter), SpanProcessor())
    starting = SpanStart(made.get_tracer("t"))
    assert starting.ground() is not None
    made.add_span_processor(Looking())
    assert starting.ground() is None
    starting.start("s", Context(), SpanKind.CLIENT, {"a": 1}, (), None, 7).end()
    assert dict(exporter.take().attributes) == {"a": 1, "seen": True}
    assert SpanStart(provider(Ending()).get_tracer("t")).ground() is None
    made.shutdown()


def test_what_is_put_together_late_is_there_at_once_for_whoever_looks() -> None:
    """A processor of somebody else's sees all of it."""
    exporter = RecordingExporter()
    tracer = provider(Looking(), SimpleSpanProcessor(exporter)).get_tracer("t")
    SpanStart(tracer).start("s", Context(), SpanKind.CLIENT, {"a": 1}, (), lambda: ({"a": 1, "b": 2}, ()), 7).end()
    assert dict(exporter.take().attributes) == {"a": 1, "b": 2, "seen": True}


def test_without_an_sdk_nothing_is_recorded() -> None:
    """The API's own tracer starts them."""
    assert not begun(trace.NoOpTracer(), Context()).is_recording()
    assert not begun(trace.ProxyTracerProvider().get_tracer("t"), Context()).is_recording()


@needs_sdk(40, "a provider takes no meter_provider")
def test_the_sdk_counts_them_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by where they come from, live until they end: its own metrics."""
    monkeypatch.setenv("OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED", "true")
    reader = InMemoryMetricReader()
    tracer = provider(meter_provider=MeterProvider([reader])).get_tracer("t")
    open_span, ended = begun(tracer, Context()), begun(tracer, Context())
    ended.end()
    assert open_span.is_recording()
    (scope,) = reader.get_metrics_data().resource_metrics[0].scope_metrics
    counted = {metric.name: [point.value for point in metric.data.data_points] for metric in scope.metrics}
    assert counted == {"otel.sdk.span.started": [2], "otel.sdk.span.live": [1]}


def sent(
    kind: type[MqTraceSpanProcessor] = MqTraceSpanProcessor, sampler: Sampler = ALWAYS_ON
) -> tuple[RecordingExporter, MqTraceSpanProcessor, SendHook]:
    """A processor of ours whose exporter wants starts, and the hook of sends that reach it."""
    exporter = RecordingExporter()
    exporter.exports_starts = True
    ours = kind(exporter, background=False)
    return exporter, ours, SendHook(tracing=Tracing.create(tracer_provider=provider(ours, sampler=sampler)))


def test_our_processor_is_told_of_a_start() -> None:
    """With what the span starts with, and nothing that it is told later."""
    exporter, ours, hook = sent()
    call = hook.before("orders", body=b"x", headers=[("TAGS", b"paid")])
    call.span.set_attribute("later", True)
    hook.after(call, partition=3, offset=4)
    ours.force_flush()
    start, end = exporter.take_all()
    assert (start.end_time, start.attributes["messaging.destination.name"]) == (None, "orders")
    assert "later" not in start.attributes
    assert "messaging.destination.partition.id" not in start.attributes
    assert {**end.attributes, **start.attributes} == dict(end.attributes)
    assert end.attributes["later"] is True
    ours.shutdown()


class Marking(MqTraceSpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attribute("tenant", "shop")
        super().on_start(span, parent_context)


def test_a_subclass_of_our_processor_looks_at_starts_itself() -> None:
    """It may do anything there."""
    exporter, ours, hook = sent(Marking)
    assert hook._tracing.starting.ground() is None
    hook.after(hook.before("orders", body=b"x"), partition=3, offset=4)
    ours.force_flush()
    start, end = exporter.take_all()
    assert start.attributes["tenant"] == end.attributes["tenant"] == "shop"
    assert start.attributes["messaging.destination.name"] == "orders"
    ours.shutdown()


@pytest.mark.parametrize("sampler", [ALWAYS_OFF, ParentBased(ALWAYS_OFF), TraceIdRatioBased(0)])
def test_a_span_that_is_not_sampled_is_no_start_and_no_mistake(sampler: Sampler) -> None:
    """Nor is a foreign one that says nothing, but for the mistake it is."""
    _, ours, hook = sent(sampler=sampler)
    hook.after(hook.before("orders", body=b"x"), partition=3, offset=4)
    ours.on_start(NonRecordingSpan(trace.INVALID_SPAN_CONTEXT))
    assert (ours.internal_errors, ours.stats()["RecordingExporter"]["offered"]) == (1, 0)
    ours.shutdown()


def test_a_method_put_on_one_processor_is_called() -> None:
    """As some libraries do with OpenTelemetry's."""
    exporter = RecordingExporter()
    batch = BatchSpanProcessor(exporter)
    batch.on_start = lambda span, parent_context=None: span.set_attribute("workflow", "w")
    made = provider(batch)
    begun(made.get_tracer("t"), Context(), a=1).end()
    made.shutdown()
    assert dict(exporter.take().attributes) == {"a": 1, "workflow": "w"}


class Tenants(SynchronousMultiSpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        span.set_attribute("tenant", "shop")
        super().on_start(span, parent_context)


def test_a_multi_processor_of_somebody_elses_is_called() -> None:
    """It may do anything before it calls the others."""
    exporter = RecordingExporter()
    made = provider(SimpleSpanProcessor(exporter), active_span_processor=Tenants())
    begun(made.get_tracer("t"), Context()).end()
    assert exporter.take().attributes["tenant"] == "shop"


class Wrapping(trace.Tracer):
    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    def start_span(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._tracer.start_span(f"wrapped {name}", *args, **kwargs)

    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Any:
        return self._tracer.start_as_current_span(*args, **kwargs)


def test_a_tracer_that_wraps_the_sdks_starts_our_spans() -> None:
    """Not the one inside."""
    assert begun(Wrapping(provider().get_tracer("t")), Context()).name == "wrapped s"


def test_a_start_that_somebody_has_replaced_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one tracer or on all, before the first span or after it."""
    tracer, asked = provider().get_tracer("t"), []
    starting = SpanStart(tracer)
    assert starting.ground() is not None
    original = Tracer.start_span
    monkeypatch.setattr(Tracer, "start_span", lambda *args: (asked.append(args[1]), original(*args))[1])
    assert starting.ground() is None
    begun(tracer, Context())
    assert asked == ["s"]


@needs_sdk(40, "processors have no _on_ending")
def test_a_processor_that_comes_after_the_start_hears_of_the_end() -> None:
    """Of the moment before it, too."""
    exporter = RecordingExporter()
    made = provider(SimpleSpanProcessor(exporter))
    span = begun(made.get_tracer("t"), Context(), a=1)
    late = Ending()
    made.add_span_processor(late)
    span.end()
    assert (late.heard, dict(exporter.take().attributes)) == (["s"], {"a": 1})
