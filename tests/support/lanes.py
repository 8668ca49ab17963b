"""Exporters whose behaviour a test decides, and spans to feed them."""

import threading

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext, TraceFlags

from otel_mqtrace.spans.lane import Lane
from otel_mqtrace.spans.loss_ledger import Ledger
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.spans.settings import LaneSettings
from otel_mqtrace.testing import ManualClock

GENEROUS_S = 20.0  # never waited for unless something is broken


def span(name="a", *, sampled=True, **attributes):
    """An ended span that no SDK had a hand in."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else 2)  # 2: a random trace id
    context = SpanContext(trace_id=1, span_id=1, is_remote=False, trace_flags=flags)
    return ReadableSpan(
        name, context=context, resource=Resource.get_empty(), attributes=attributes, start_time=1, end_time=2
    )


class Scripted(SpanExporter):
    """Answers each export with the next of ``answers`` (a result, an exception to raise); afterwards with success."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.batches = []
        self.flushes = []
        self.shutdowns = 0
        self.entered, self.let_go, self.closed = threading.Event(), threading.Event(), threading.Event()

    def export(self, spans):
        self.batches.append([each.name for each in spans])
        answer = self.answers.pop(0) if self.answers else SpanExportResult.SUCCESS
        if isinstance(answer, SpanExportResult):
            return answer
        raise answer

    def force_flush(self, timeout_millis=30000):
        self.flushes.append(timeout_millis)
        return True

    def shutdown(self):
        self.shutdowns += 1
        self.closed.set()

    @property
    def names(self):
        return [name for batch in self.batches for name in batch]


class Stuck(Scripted):
    """Hangs in every export until it is let go."""

    def export(self, spans):
        self.entered.set()
        self.let_go.wait(GENEROUS_S)
        return super().export(spans)


class Hanging(Scripted):
    """Hangs in its shutdown until it is let go."""

    def shutdown(self):
        self.let_go.wait(GENEROUS_S)
        super().shutdown()


def stuck_processor(**options):
    """A processor of one span a batch that hangs in the export of a span ``in flight``, and its exporter."""
    exporter = Stuck()
    processor = MqTraceSpanProcessor(exporter, max_export_batch_size=1, **options)
    processor.on_end(span("in flight"))
    assert exporter.entered.wait(GENEROUS_S)
    return processor, exporter


def tracer_of(processor):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return provider.get_tracer("tests")


def lane_of(exporter, *, clock=None, background=False, **settings):
    """A lane without a thread unless asked for, on a clock that stands still unless given."""
    own = LaneSettings(background=background, **settings)
    return Lane(exporter, name="test", settings=own, clock=clock or ManualClock(), ledger=Ledger(None))


def account_balances(stats):
    return stats["offered"] == (stats["exported"] + sum(stats["dropped"].values()) + stats["failed"] + stats["pending"])


def worker_ended(processor, timeout_s):
    """Return whether the only lane's worker, and with it its last export, ends within ``timeout_s`` seconds."""
    worker = processor.lanes[0]._worker
    worker.join(timeout_s)
    return not worker.running
