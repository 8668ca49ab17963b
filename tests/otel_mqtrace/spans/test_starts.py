"""Spans that have just started, for exporters that export starts."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import Scripted


def _attached(provider, *exporters, **options):
    processor = MqTraceSpanProcessor(*exporters, **options)
    provider.add_span_processor(processor)
    return processor, provider.get_tracer("t")


class _Starts(Scripted):
    exports_starts = True

    def __init__(self):
        super().__init__()
        self.spans = []

    def wants(self, each):
        return each.attributes.get("mine", False)

    def export(self, spans):
        self.spans += spans
        return super().export(spans)


def test_a_start_that_is_recorded_but_not_sampled_is_nobodys():
    """Nor is an exporter asked whether it wants one: what it raises would be counted."""

    class Refusing(_Starts):
        def wants(self, each):
            raise ZeroDivisionError

    class RecordOnly(Sampler):
        def should_sample(self, *_, **__):
            return SamplingResult(Decision.RECORD_ONLY)

        def get_description(self):
            return "record only"

    processor, tracer = _attached(
        TracerProvider(sampler=RecordOnly(), shutdown_on_exit=False), Refusing(), background=False
    )
    tracer.start_span("a", attributes={"mine": True}).end()
    assert (processor.stats()["Refusing"]["offered"], processor.internal_errors) == (0, 0)


def test_starts_are_offered_as_snapshots_to_those_who_want_them():
    provider = TracerProvider(shutdown_on_exit=False)
    starts, plain = _Starts(), Scripted()
    processor, tracer = _attached(provider, starts, plain, background=False)
    live = tracer.start_span("a", attributes={"mine": True, "x": 1})
    live.set_attribute("x", 2)
    live.end()
    tracer.start_span("b").end()
    processor.force_flush()
    first, second = starts.spans
    assert (first.end_time, dict(first.attributes)) == (None, {"mine": True, "x": 1})
    assert not hasattr(first, "set_attribute")
    assert (first.context, first.start_time) == (second.context, second.start_time)
    assert (second.end_time is not None, second.attributes["x"]) == (True, 2)
    assert plain.names == ["a", "b"]
    assert [lane.stats()["offered"] for lane in processor.lanes] == [2, 2]  # one span twice; two spans once
