"""A lane: when a batch leaves, what an exporter's answer means, and the worker."""

import logging
import textwrap
import threading

import pytest
from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace._workers import Worker, refuse_subinterpreter
from otel_mqtrace.spans import lane as lane_module
from otel_mqtrace.spans.queue import ExportOutcome, SpanQueue
from otel_mqtrace.testing import ManualClock
from tests.support.interleaving import every_line_of
from tests.support.lanes import GENEROUS_S, Scripted, Stuck, account_balances, lane_of, span

FOREVER = MonotonicNs(10**18)


def _offer(lane, *names):
    for name in names:
        lane.offer(span(name))


def test_delay_may_count_from_the_last_batch():
    """RocketMQ since 5.3.1: at once after a quiet time, then not before 5000 ms are over, unless a batch is full."""
    exporter, clock = Scripted(), ManualClock()
    lane = lane_of(
        exporter, clock=clock, max_export_batch_size=10, schedule_delay_millis=5000, linger_from="last_batch"
    )
    _offer(lane, "first")
    assert lane.run_once(clock.monotonic_ns()) == 1
    clock.advance(ms=4_000)
    _offer(lane, "second")
    clock.advance(ms=1_000, ns=-1)
    assert lane.run_once(clock.monotonic_ns()) == 0
    clock.advance(ns=1)
    assert lane.run_once(clock.monotonic_ns()) == 1
    _offer(lane, *"0123456789a")
    assert lane.run_once(clock.monotonic_ns()) == 10
    assert lane.run_once(clock.monotonic_ns()) == 0


class _Precise(Scripted):
    outcome = ExportOutcome(exported=1, failed=1, dropped={"too_large": 1})

    def take_outcome(self):
        return self.outcome


class _Emptying(Scripted):
    def export(self, spans):
        spans.clear()
        return super().export(spans)


@pytest.mark.parametrize(
    ("exporter", "names", "account"),
    [
        (Scripted(SpanExportResult.FAILURE), "a", {"failed": 1}),
        (Scripted(ValueError("broken")), "a", {"failed": 1}),
        (Scripted(None), "a", {"failed": 1}),
        (_Precise(SpanExportResult.FAILURE), "abc", {"exported": 1, "failed": 1, "too_large": 1}),
        (_Precise(), "ab", {"exported": 2}),
        (_Emptying(), "abc", {"exported": 3}),
    ],
    ids=["failure", "exception", "nothing", "outcome of the exporter", "outcome that does not add up", "emptied list"],
)
def test_every_span_of_a_batch_is_counted_by_the_answer(exporter, names, account):
    lane = lane_of(exporter, max_export_batch_size=len(names))
    _offer(lane, *names)
    lane.run_once(MonotonicNs(0))
    stats = lane.stats()
    counts = {"exported": stats["exported"], "failed": stats["failed"], "pending": stats["pending"], **stats["dropped"]}
    assert {reason: count for reason, count in counts.items() if count} == account


def test_system_exit_from_an_exporter_is_counted_before_it_goes_on():
    lane = lane_of(Scripted(SystemExit(3)), max_export_batch_size=1)
    _offer(lane, "a")
    with pytest.raises(SystemExit):
        lane.run_once(MonotonicNs(0))
    assert lane.stats()["failed"] == 1


def test_instrumentation_is_off_during_every_export_and_on_afterwards():
    enabled = []

    class Forgetful(Scripted):
        def export(self, spans):
            enabled.append(is_instrumentation_enabled())
            context.attach(Context({"its": "own"}))
            return super().export(spans)

    lane = lane_of(Forgetful(ValueError("broken")), max_export_batch_size=1)
    for _ in range(2):
        _offer(lane, "a")
        lane.run_once(MonotonicNs(0))
    assert (enabled, is_instrumentation_enabled()) == ([False, False], True)


def test_lane_offers_only_wanted_spans():
    class Picky(Scripted):
        def wants(self, each):
            if each.name == "bad":
                raise ValueError(each.name)
            return each.name != "not mine"

    lane = lane_of(Picky())
    assert lane.wants(span("mine"))
    assert not lane.wants(span("not mine"))
    assert lane.stats()["offered"] == 0
    assert not lane.wants(span("bad"))
    assert lane.stats()["dropped"]["wants_error"] == 1
    assert account_balances(lane.stats())


def test_full_queue_smaller_than_what_an_exporter_takes_at_once_does_not_wait(monkeypatch):
    has_four = threading.Event()

    class Together(Stuck):
        def export(self, spans):
            answer = super().export(spans)
            if len(self.names) == 4:
                has_four.set()
            return answer

        def export_batches(self, batches):
            return [self.export(batch) for batch in batches][-1]

    monkeypatch.setattr(lane_module, "_GATHER_S", 100 * GENEROUS_S)
    exporter = Together()
    lane = lane_of(exporter, background=True, max_queue_size=4, max_export_batch_size=2)
    _offer(lane, "a", "b")
    assert exporter.entered.wait(GENEROUS_S)
    _offer(lane, "c", "d")
    exporter.let_go.set()
    assert has_four.wait(GENEROUS_S)
    lane.close(FOREVER)


def test_losses_are_logged_in_sums(caplog):
    clock = ManualClock()
    lane = lane_of(Scripted(), clock=clock, max_queue_size=1, max_export_batch_size=1)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            _offer(lane, *["a"] * 1000)
            lane.run_once(clock.monotonic_ns())
        assert [record.getMessage() for record in caplog.records] == [
            "mqtrace: test: 999 spans lost since the last line; totals of 1000: queue_full 999"
        ]
        clock.advance(ms=30_000)
        _offer(lane, "a")
        lane.run_once(clock.monotonic_ns())
    assert "1998 spans lost" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_what_an_exporter_raises_is_logged_once_for_each_type(caplog):
    lane = lane_of(Scripted(ValueError("no key"), ValueError("again"), KeyError("other")), max_export_batch_size=1)
    with caplog.at_level(logging.WARNING):
        _offer(lane, "a", "b", "c")
        for _ in range(3):
            lane.run_once(FOREVER)
    raised = [record for record in caplog.records if "raised" in record.getMessage()]
    assert [str(record.exc_info[1]) for record in raised] == ["no key", "'other'"]
    assert raised[0].getMessage() == "mqtrace: test raised in export() (logged once)"


def test_span_offered_after_the_shutdown_is_counted_and_not_exported():
    late = []
    for between in every_line_of(SpanQueue.offer):
        exporter = Scripted()
        lane = lane_of(exporter, background=True)
        lane.offer(span("in time"))

        def close(lane=lane):
            lane.close(FOREVER)
            assert lane._exporter_closed.wait(GENEROUS_S)

        with between(close):
            lane.offer(span("late"))
        lane.close(FOREVER)
        lane.finish()
        assert exporter.shutdowns == 1
        assert account_balances(lane.stats())
        assert len(exporter.names) + sum(lane.stats()["dropped"].values()) == 2
        late.append(exporter.names == ["in time"])
    assert late == sorted(late, reverse=True)
    assert late.count(True) >= 3


def test_worker_is_started_again_when_it_has_ended_and_not_before():
    stop, runs = threading.Event(), []

    def body():
        runs.append(1)
        stop.wait(GENEROUS_S)

    worker = Worker("test", body)
    assert not worker.running
    assert worker.ensure_running()
    assert worker.ensure_running()
    stop.set()
    worker.join(GENEROUS_S)
    assert (runs, worker.running) == ([1], False)
    assert worker.ensure_running()
    worker.join(GENEROUS_S)
    assert (runs, worker.running) == ([1, 1], False)


def test_subinterpreter_is_refused_with_the_fix(capfd):
    """Its threads are refused, or crash it at its end; mod_wsgi makes one for each application unless told otherwise."""
    interpreters = pytest.importorskip("_xxsubinterpreters", reason="this Python has another door to subinterpreters")
    other = interpreters.create(isolated=False)
    code = """
    from otel_mqtrace._errors import SubinterpreterError
    from otel_mqtrace._workers import Worker
    from otel_mqtrace.spans.processor import MqTraceSpanProcessor
    assert not Worker("leaders", None).ensure_running()
    try:
        MqTraceSpanProcessor()
    except SubinterpreterError as refusal:
        import os
        os.write(1, str(refusal).encode())
    """
    try:
        interpreters.run_string(other, textwrap.dedent(code))
    finally:
        interpreters.destroy(other)
    assert "WSGIApplicationGroup %{GLOBAL}" in capfd.readouterr().out
    refuse_subinterpreter()  # and here it is none
