"""Losses are told in sums, to whoever wants to know."""

from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.spans.stats import EXPORT_FAILED, QUEUE_FULL
from tests.support.lanes import Scripted, span


def lossy(on_drop, *answers, **settings):
    """A processor without threads, and room for two."""
    return MqTraceSpanProcessor(
        Scripted(*answers), max_queue_size=2, max_export_batch_size=2, background=False, on_drop=on_drop, **settings
    )


def test_the_callback_is_told_what_is_new_by_reason_and_once():
    """By the lane, after the fact: the thread that lost a span calls nobody."""
    told = []
    processor = lossy(lambda lane, lost: told.append((lane, dict(lost))), SpanExportResult.FAILURE)
    for _ in range(5):
        processor.on_end(span())
    assert told == []
    processor.force_flush()
    assert told == [("Scripted", {QUEUE_FULL: 3, EXPORT_FAILED: 2})]
    processor.on_end(span())
    processor.force_flush()
    assert len(told) == 1
    for _ in range(3):
        processor.on_end(span())
    processor.shutdown()
    assert told[1:] == [("Scripted", {QUEUE_FULL: 1})]


def test_a_callback_that_raises_stops_nothing():
    """It is the application's, and it is not needed."""

    def fail(lane, lost):
        raise RuntimeError(lane, lost)

    processor = lossy(fail, SpanExportResult.FAILURE)
    for _ in range(3):
        processor.on_end(span())
    processor.force_flush()
    processor.on_end(span())
    assert processor.force_flush()
    assert processor.stats()["Scripted"]["exported"] == 1
