"""Duties of a span processor, from requests of users of OpenTelemetry's own processors."""

import gc
import inspect
import logging
import threading
import weakref

from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import GENEROUS_S, Scripted, Stuck, account_balances, span
from tests.support.opentelemetry_release import needs_sdk


def books(processor):
    (account,) = processor.stats().values()
    return account


def without_threads(*exporters, **options):
    return MqTraceSpanProcessor(*exporters, **{"background": False, **options})


@needs_sdk(40, "processors have no _on_ending")
def test_processor_has_the_signatures_of_the_sdk():
    processor = without_threads(Scripted())
    assert isinstance(processor, SpanProcessor)
    for method in ("on_start", "on_end", "shutdown", "force_flush"):
        theirs = list(inspect.signature(getattr(SpanProcessor, method)).parameters)
        ours = list(inspect.signature(getattr(MqTraceSpanProcessor, method)).parameters)
        assert ours[: len(theirs)] == theirs
    processor._on_ending(span())
    assert processor.force_flush(None)
    assert MqTraceSpanProcessor().force_flush()


def test_calling_thread_neither_raises_nor_waits_nor_logs(caplog):
    stuck = Stuck()
    processor = MqTraceSpanProcessor(stuck, max_queue_size=2, max_export_batch_size=1)
    processor.on_end(span())
    assert stuck.entered.wait(GENEROUS_S)
    with caplog.at_level(logging.DEBUG):
        for _ in range(3_000):
            processor.on_start(span())
            processor.on_end(span())
        mine = [each for each in caplog.records if each.threadName == threading.current_thread().name]
    assert mine == []
    assert books(processor)["dropped"]["queue_full"] == 2_998
    stuck.let_go.set()
    processor.shutdown()


def test_exporter_that_changes_the_context_stays_untraced():
    seen = []

    class Forgetful(Scripted):
        def export(self, spans):
            seen.append(is_instrumentation_enabled())
            context.attach(Context({"its": "own"}))
            return super().export(spans)

    processor = MqTraceSpanProcessor(Forgetful(), max_export_batch_size=1)
    for _ in range(3):
        processor.on_end(span())
        processor.force_flush()
    processor.shutdown()
    assert seen == [False] * 3


def test_context_runtime_that_fails_costs_spans_and_no_worker(monkeypatch):
    """One of the user's own, named by ``OTEL_PYTHON_CONTEXT``."""
    ours = threading.current_thread()
    attach = context.attach

    def broken(otel_ctx):
        if threading.current_thread() is not ours:
            raise LookupError("no context here")
        return attach(otel_ctx)

    monkeypatch.setattr(context, "attach", broken)
    processor = MqTraceSpanProcessor(Scripted(), max_export_batch_size=1)
    for _ in range(3):
        processor.on_end(span())
    assert not processor.force_flush()
    assert books(processor)["failed"] == 3
    processor.shutdown()


def test_exporter_gets_its_timeout_and_its_failures_are_not_drops():
    given = []

    class Timed(Scripted):
        def export(self, spans, timeout_millis=None):
            given.append(timeout_millis)
            return super().export(spans)

    processor = without_threads(Timed(SpanExportResult.FAILURE), export_timeout_millis=1_234)
    processor.on_end(span())
    processor.force_flush()
    assert given == [1_234]
    assert (books(processor)["failed"], sum(books(processor)["dropped"].values())) == (1, 0)


def test_flush_exports_earlier_spans_and_returns_the_result():
    exporter = Scripted(SpanExportResult.SUCCESS, SpanExportResult.FAILURE)
    processor = without_threads(exporter)
    processor.on_end(span())
    assert processor.force_flush(5_000)
    assert 0 < exporter.flushes[-1] <= 5_000
    processor.on_end(span())
    assert not processor.force_flush()
    processor.on_end(span())
    exported = len(exporter.batches)
    assert not processor.force_flush(0)
    assert (len(exporter.batches), books(processor)["pending"]) == (exported, 1)
    exporter.force_flush = lambda timeout_millis: False
    assert not processor.force_flush()


def test_shutdown_of_several_threads_is_once_in_time_and_counts_what_is_left():
    calls = []

    class Timed(Scripted):
        def shutdown(self, timeout_millis=None):
            calls.append(timeout_millis)

    processor = without_threads(Timed(), max_export_batch_size=1)
    processor.on_end(span())
    threads = [threading.Thread(target=processor.shutdown, args=(0,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    processor.on_end(span())
    assert calls == [0]
    assert books(processor)["dropped"]["shutdown_timeout"] == 1
    assert books(processor)["dropped"]["already_shutdown"] == 1
    assert account_balances(books(processor))


def test_span_that_ends_at_interpreter_exit_is_exported_by_the_calling_thread(run_code):
    """Python starts no thread any more then."""
    code = """
    import atexit, os, threading
    from otel_mqtrace.spans.processor import MqTraceSpanProcessor
    from tests.support.lanes import Scripted, span
    class Writing(Scripted):
        def export(self, spans):
            os.write(1, spans[0].name.encode())
            return super().export(spans)
    processor = MqTraceSpanProcessor(Writing())
    def last():
        processor.on_end(span("last"))
        processor.shutdown()
    atexit.register(last)
    """
    assert run_code(code) == "last"


def test_exported_span_is_freed():
    processor = without_threads(Scripted())
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    live = provider.get_tracer("x").start_span("a")
    reference = weakref.ref(live)
    live.end()
    del live
    processor.force_flush()
    gc.collect()
    assert reference() is None
