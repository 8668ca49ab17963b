"""Losses are told in sums, to whoever wants to know."""

from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace.spans.loss_ledger import LossWatch
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from otel_mqtrace.spans.stats import EXPORT_FAILED, QUEUE_FULL
from tests.support.lanes import Scripted, Stuck, span


def lossy(on_drop, *answers, **settings):
    return MqTraceSpanProcessor(
        Scripted(*answers), max_queue_size=2, max_export_batch_size=2, background=False, on_drop=on_drop, **settings
    )


def test_the_callback_is_told_what_is_new_by_reason_and_once():
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
    def fail(lane, lost):
        raise RuntimeError(lane, lost)

    processor = lossy(fail, SpanExportResult.FAILURE)
    for _ in range(3):
        processor.on_end(span())
    processor.force_flush()
    processor.on_end(span())
    assert processor.force_flush()
    assert processor.stats()["Scripted"]["exported"] == 1


def test_what_two_threads_tell_at_once_is_told_once():
    """A shutdown and the lane may both look; the later look may carry the older account."""
    told = []
    watch = LossWatch("lane", on_drop=lambda _lane, lost: told.append(dict(lost)))
    older = {"offered": 3, "exported": 0, "dropped": {QUEUE_FULL: 2}, "failed": 0, "pending": 1}
    newer = {"offered": 4, "exported": 0, "dropped": {QUEUE_FULL: 3}, "failed": 0, "pending": 1}
    for stats in (newer, older, newer):
        watch.look(stats, MonotonicNs(0))
    assert told == [{QUEUE_FULL: 3}]


def test_a_callback_may_ask_for_the_account_and_for_a_flush_even_during_a_shutdown():
    exporter, answers = Stuck(), []

    def ask(lane, _lost):
        answers.append((processor.stats()[lane]["dropped"]["shutdown_timeout"], processor.force_flush(10**9)))

    processor = MqTraceSpanProcessor(exporter, max_export_batch_size=1, on_drop=ask)
    processor.on_end(span("stuck"))
    assert exporter.entered.wait(20)
    processor.on_end(span("waits"))
    processor.shutdown(timeout_millis=50)
    assert answers == [(1, False)]
    assert exporter.batches == []  # it still hangs: nobody waited for it
    exporter.let_go.set()


def test_what_the_application_does_when_it_is_told_is_traced():
    """On the lane's own thread as well, where what the exporter does is not."""
    seen = []
    processor = MqTraceSpanProcessor(
        Scripted(SpanExportResult.FAILURE), on_drop=lambda *_: seen.append(is_instrumentation_enabled())
    )
    processor.on_end(span())
    processor.force_flush()
    processor.shutdown()
    assert seen == [True]
