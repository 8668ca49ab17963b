"""What a span processor owes the application it lives in: fifteen points, each a test by its number.

The points are collected from what users of OpenTelemetry's own processors have asked for; the other files of this
directory go into each of them further.
"""

from __future__ import annotations

import gc
import inspect
import logging
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
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
def test_point_01_it_is_a_span_processor_with_the_sdks_own_signatures():
    """A subclass whose methods take what the SDK gives them, ``force_flush(None)`` included."""
    processor = without_threads(Scripted())
    assert isinstance(processor, SpanProcessor)
    for method in ("on_start", "on_end", "shutdown", "force_flush"):
        theirs = list(inspect.signature(getattr(SpanProcessor, method)).parameters)
        ours = list(inspect.signature(getattr(MqTraceSpanProcessor, method)).parameters)
        assert ours[: len(theirs)] == theirs
    processor._on_ending(span())
    assert processor.force_flush(None)


def test_point_02_the_callers_thread_neither_raises_nor_waits_nor_logs(caplog):
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


def test_point_03_unsampled_spans_are_skipped():
    processor = without_threads(Scripted())
    processor.on_end(span(sampled=False))
    assert books(processor)["offered"] == 0


@pytest.mark.parametrize(("policy", "left"), [("newest", ["0", "1"]), ("oldest", ["3", "4"])])
def test_point_04_the_queue_is_bounded_and_its_policy_stated_and_its_losses_counted_and_told(policy, left, caplog):
    exporter = Scripted()
    processor = without_threads(exporter, max_queue_size=2, max_export_batch_size=2, drop_policy=policy)
    for number in range(5):
        processor.on_end(span(str(number)))
    processor.force_flush()
    assert exporter.names == left
    assert books(processor)["dropped"]["queue_full"] == 3
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.endswith("3 spans lost since the last line; totals of 5: queue_full 3")


def test_point_05_the_worker_is_a_daemon_that_suppresses_instrumentation_and_survives():
    """Whatever an exporter raises, ``SystemExit`` included."""
    seen = []

    class Curious(Scripted):
        def export(self, spans):
            seen.append((threading.current_thread().daemon, is_instrumentation_enabled()))
            return super().export(spans)

    processor = MqTraceSpanProcessor(Curious(SystemExit(), ConnectionError()), max_export_batch_size=1)
    for _ in range(3):
        processor.on_end(span())
    processor.force_flush()
    assert seen == [(True, False)] * 3
    assert (books(processor)["failed"], books(processor)["exported"]) == (2, 1)
    processor.shutdown()


def test_an_exporter_that_changes_what_is_current_is_not_traced_the_next_time_either():
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


def test_a_runtime_of_contexts_that_fails_costs_spans_and_no_worker(monkeypatch):
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


def test_point_06_an_exporter_gets_its_timeout_and_its_failures_are_no_queue_drops():
    """One that takes ``timeout_millis``; the others own theirs."""
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


def test_point_07_a_flush_takes_what_came_before_it_and_tells_the_truth():
    """``False`` for a failed export, for an exporter whose own flush failed, and for no time."""
    exporter = Scripted(SpanExportResult.SUCCESS, SpanExportResult.FAILURE)
    processor = without_threads(exporter)
    processor.on_end(span())
    assert processor.force_flush(5_000)
    assert 0 < exporter.flushes[-1] <= 5_000
    processor.on_end(span())
    assert not processor.force_flush()
    processor.on_end(span())
    assert not processor.force_flush(0)
    exporter.force_flush = lambda timeout_millis: False
    assert not processor.force_flush()


def test_point_08_shutdown_is_once_bounded_and_counts_what_was_left():
    told = []

    class Timed(Scripted):
        def shutdown(self, timeout_millis=None):
            told.append(timeout_millis)

    processor = without_threads(Timed(), max_export_batch_size=1)
    processor.on_end(span())
    threads = [threading.Thread(target=processor.shutdown, args=(0,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    processor.on_end(span())
    assert told == [0]
    assert books(processor)["dropped"]["shutdown_timeout"] == 1
    assert books(processor)["dropped"]["already_shutdown"] == 1
    assert account_balances(books(processor))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_point_09_a_forked_child_begins_with_nothing_and_a_parent_keeps_what_it_had():
    """And no thread runs before the first span, so a pre-forking parent has none to lose."""
    exporter = Scripted()
    processor = MqTraceSpanProcessor(exporter, schedule_delay_millis=60_000)
    assert not any(lane._worker.running for lane in processor.lanes)
    processor.on_end(span("of the parent"))
    pid = os.fork()
    if not pid:
        processor.on_end(span("of the child"))
        well = processor.force_flush() and exporter.names == ["of the child"]
        os._exit(0 if well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert processor.force_flush()
    assert exporter.names == ["of the parent"]
    processor.shutdown()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_point_10_a_multiprocessing_child_which_ends_by_os_exit_flushes_first():
    """Past ``atexit``, by multiprocessing's own finalizers."""
    receiving, sending = multiprocessing.Pipe(duplex=False)

    class Sending(Scripted):
        def export(self, spans):
            sending.send([each.name for each in spans])
            return super().export(spans)

    processor = MqTraceSpanProcessor(Sending(), schedule_delay_millis=60_000)
    child = multiprocessing.get_context("fork").Process(target=lambda: processor.on_end(span("of the child")))
    child.start()
    child.join()
    assert receiving.poll(GENEROUS_S)
    assert receiving.recv() == ["of the child"]
    processor.shutdown()


def test_point_11_what_ends_while_the_interpreter_does_is_exported_by_the_calling_thread():
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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "last", "")


def test_point_12_a_wrong_argument_is_refused_and_a_wrong_variable_is_told(monkeypatch, caplog):
    """Code is the developer's, the environment is the operator's: a service must start."""
    with pytest.raises(ValueError, match="max_queue_size must be"):
        without_threads(Scripted(), max_queue_size=0)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    assert without_threads(Scripted()).settings.max_queue_size == 2048
    assert "OTEL_BSP_MAX_QUEUE_SIZE" in caplog.text


def test_point_13_its_names_come_before_opentelemetrys_and_it_reports_on_itself(monkeypatch):
    """``MQTRACE_*``, then ``OTEL_BSP_*``; ``otel.sdk.processor.span.*`` under a component type of its own."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "300")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "700")
    monkeypatch.setenv("MQTRACE_QUEUE_SIZE", "200")
    reader = InMemoryMetricReader()
    processor = without_threads(Scripted(), meter_provider=MeterProvider([reader], shutdown_on_exit=False))
    assert (processor.settings.max_queue_size, processor.settings.schedule_delay_ms) == (200, 700)
    metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    kinds = {point.attributes["otel.component.type"] for each in metrics for point in each.data.data_points}
    assert kinds == {"otel_mqtrace.spans.processor.MqTraceSpanProcessor"}
    assert {each.name for each in metrics} >= {"otel.sdk.processor.span.queue.size"}


def test_point_14_one_slow_exporter_stalls_no_other():
    stuck, free = Stuck(), Scripted()
    processor = MqTraceSpanProcessor(stuck, free, max_export_batch_size=1)
    processor.on_end(span("a"))
    assert stuck.entered.wait(GENEROUS_S)
    processor.on_end(span("b"))
    flushed = processor.lanes[1].request_flush(processor._deadline(GENEROUS_S * 1e3))
    assert processor.lanes[1].await_flush(flushed)
    assert free.names == ["a", "b"]
    stuck.let_go.set()
    processor.shutdown()


def test_point_15_no_span_is_held_beyond_its_export():
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
