"""The bounded queue with its account, and the lane around it: when a batch leaves, what an answer means, the worker."""

import signal
import sys
import textwrap
import threading
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import context
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled
from opentelemetry.sdk.trace.export import SpanExportResult

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace._workers import Worker, refuse_subinterpreter
from otel_mqtrace.spans.queue import ExportOutcome, SpanQueue
from otel_mqtrace.testing import ManualClock
from tests.support.lanes import GENEROUS_S, Scripted, Stuck, account_balances, lane_of, span


def every_line_of(function):
    """Yield for every line that ``function`` runs a ``between(intrude)``: within it, the line is preceded by a call."""
    for line in count(1):
        left = [line]
        yield partial(_between, function, left)
        if left[0] > 0:
            assert line > 1, "nothing was run"
            return


@contextmanager
def _between(function, left, intrude):
    def on_line(_frame, event, _argument):
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                intrude()
        return on_line

    before = sys.gettrace()
    sys.settrace(lambda frame, _event, _argument: on_line if frame.f_code is function.__code__ else None)
    try:
        yield
    finally:
        sys.settrace(before)


def _queue(max_size=3, drop_policy="newest", *, batch_size=10, **options):
    options = {"note": lambda *_loss: None, "wake_worker": None, "clock": ManualClock(), **options}
    return SpanQueue(max_size=max_size, batch_size=batch_size, drop_policy=drop_policy, **options)


def test_worker_that_stopped_is_woken_by_the_next_item_and_while_items_are_refused():
    """A full queue may be one that no thread could be started for: later there may be one."""
    woken = []
    queue = _queue(100, batch_size=100, wake_worker=lambda: woken.append("up"))
    queue.offer("first")
    assert len(woken) == 1
    queue.take()
    queue.worker_stopped()
    queue.offer("after the death of the worker")
    assert len(woken) == 2
    for _ in range(99):
        queue.offer("fills it")
    woken.clear()
    assert [queue.offer("refused") for _ in range(64)] == [False] * 64
    assert woken == ["up"]


@pytest.mark.parametrize(
    ("function", "drop_policy"),
    [
        *((function, "newest") for function in (SpanQueue.offer, SpanQueue.refuse, SpanQueue.stats)),
        *((function, "oldest") for function in (SpanQueue.offer, SpanQueue.take)),
    ],
)
def test_finalizer_may_offer_while_the_same_thread_is_in_the_queue(function, drop_policy):
    for between in every_line_of(function):
        queue = _queue(2, drop_policy=drop_policy, batch_size=1)
        with between(lambda queue=queue: queue.offer("of a finalizer")):
            for number in range(3):
                queue.offer(number)
                stats = queue.stats()
                assert account_balances(stats)
                assert stats["pending"] <= 2
            queue.take()
            queue.settle(None)
        left = queue.stats()["pending"]
        assert account_balances(queue.stats())
        assert left == queue.waiting <= 2
        assert len([queue.take() for _ in range(3) if queue.waiting]) == left


class _ClockThatHoldsOthers(ManualClock):
    """Stands still; a thread that looks at it while no item waits, and is not this one, goes on when it may."""

    def __init__(self):
        super().__init__()
        self._own, self.looked, self.may_go_on = threading.get_ident(), threading.Event(), threading.Event()

    def monotonic_ns(self):
        if threading.get_ident() != self._own:
            self.looked.set()
            self.may_go_on.wait(GENEROUS_S)
        return super().monotonic_ns()


@pytest.mark.parametrize("drop_policy", ["newest", "oldest"])
def test_stats_keep_the_bound_when_a_thread_found_room_that_another_one_took(drop_policy):
    for between in every_line_of(SpanQueue.stats):
        clock = _ClockThatHoldsOthers()
        queue = _queue(1, drop_policy, clock=clock)
        late = threading.Thread(target=queue.offer, args=("late",))
        late.start()
        assert clock.looked.wait(GENEROUS_S)
        queue.offer("first")

        def append(clock=clock, queue=queue, late=late):
            clock.may_go_on.set()
            while late.is_alive() and queue.waiting == 1:
                late.join(0.001)

        with between(append):
            stats = queue.stats()
        append()
        late.join()
        assert account_balances(stats)
        assert stats["pending"] == queue.stats()["pending"] == 1


def test_batch_that_ctrl_c_kept_from_being_settled_has_failed():
    queue = _queue(batch_size=2)
    for item in ("exported", "exported too", "comes later"):
        queue.offer(item)
    queue.take()
    assert queue.take() == ["comes later"]
    assert account_balances(queue.stats())
    assert (queue.stats()["failed"], queue.stats()["pending"]) == (2, 1)


@pytest.mark.parametrize("drop_policy", ["newest", "oldest"])
def test_account_balances_and_the_bound_holds_while_threads_offer(impatient, drop_policy):
    queue, begin, seen = _queue(2, drop_policy, batch_size=1), threading.Barrier(5), []

    def work():
        begin.wait(60)
        for _ in range(2_000):
            queue.offer("x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    begin.wait(60)
    while any(thread.is_alive() for thread in threads):
        seen.append(queue.stats())
        queue.settle(ExportOutcome(exported=len(queue.take())))
    seen.append(queue.stats())
    assert all(account_balances(each) and each["pending"] <= 2 for each in seen)
    assert seen[-1]["offered"] == 8_000


STEPS = st.lists(st.sampled_from(["offer", "take", "exported", "failed", "too_large", "refuse", "close"]), max_size=60)
POLICIES = st.sampled_from(["newest", "oldest"])


@given(steps=STEPS, max_size=st.integers(1, 5), batch_size=st.integers(1, 4), drop_policy=POLICIES)
def test_accounts_marks_and_notes_of_losses_are_right_in_any_order_of_steps(steps, max_size, batch_size, drop_policy):
    noted, expected, in_flight, number = [], [("export_failed", None)], [], 0
    queue = _queue(max_size, drop_policy, batch_size=batch_size, note=lambda *loss: noted.append(loss[:2]))
    queue.offer(None)  # lost before the mark
    queue.take()
    queue.settle(None)
    queue.offer(number)
    mark, waiting, is_closed, lost = queue.request_flush(), [number], False, 0
    for step in steps:
        if step == "offer":
            number += 1
            is_full = len(waiting) == max_size
            is_accepted = not is_closed and (drop_policy == "oldest" or not is_full)
            assert queue.offer(number) is is_accepted
            if not is_accepted:
                expected.append(("already_shutdown" if is_closed else "queue_full", number))
            else:
                waiting.append(number)
                if is_full:
                    expected.append(("queue_full", waiting.pop(0)))
                    lost += 1
        elif step == "take" and not in_flight:
            in_flight = queue.take()
            assert in_flight == waiting[: len(in_flight)]
            waiting = waiting[len(in_flight) :]
        elif step in {"exported", "failed", "too_large"} and in_flight:
            count = len(in_flight)
            queue.settle(ExportOutcome(**({"dropped": {step: count}} if step == "too_large" else {step: count})))
            if step != "exported":
                expected += [("export_failed" if step == "failed" else step, each) for each in in_flight]
                lost += count
            in_flight = []
        elif step == "refuse":
            queue.refuse("too_large", None)
            expected.append(("too_large", None))
        elif step == "close":
            queue.close()
            is_closed = True
        stats = queue.stats()
        assert account_balances(stats)
        assert stats["pending"] == len(waiting) + len(in_flight)
        assert queue.has_reached(mark) == (0 not in [*waiting, *in_flight])
        assert (queue.count_lost_since(mark), noted) == (lost, expected)
    queue.close()
    queue.abandon()
    stats = queue.stats()
    assert account_balances(stats)
    assert stats["pending"] == len(in_flight)
    assert stats["failed"] + sum(stats["dropped"].values()) == len(noted) == len(expected) + len(waiting)


FOREVER = MonotonicNs(10**18)


def _offer(lane, *names):
    for name in names:
        lane.offer(span(name))


def test_batch_leaves_when_it_is_full_or_its_first_span_has_lingered():
    clock = ManualClock()
    lane = lane_of(Scripted(), clock=clock, max_export_batch_size=2, schedule_delay_millis=500)
    for names, passed_ms, exported in (("", 0, 0), ("abc", 100, 2), ("", 400, 1), ("d", 499, 0), ("", 1, 1)):
        _offer(lane, *names)
        clock.advance(ms=passed_ms)
        assert lane.run_once(clock.monotonic_ns()) == exported


def test_delay_may_count_from_the_last_batch():
    """RocketMQ since 5.3.1: at once after a quiet time, then not before 5000 ms are over, unless a batch is full."""
    clock, settings = ManualClock(), {"max_export_batch_size": 10, "schedule_delay_millis": 5000}
    lane = lane_of(Scripted(), clock=clock, linger_from="last_batch", **settings)
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


class _Joining(Stuck):
    def export_batches(self, batches):
        return self.export([each for batch in batches for each in batch])


def test_half_a_queue_smaller_than_what_an_exporter_takes_at_once_leaves_without_a_wait(monkeypatch):
    """The worker sleeps while it gathers: a queue that fills up meanwhile refuses spans."""
    monkeypatch.setattr("otel_mqtrace.spans.lane._GATHER_S", 100 * GENEROUS_S)
    exporter = _Joining()
    lane = lane_of(exporter, background=True, max_queue_size=4, max_export_batch_size=2)
    lane.offer(span("a"))
    lane.offer(span("b"))
    assert exporter.entered.wait(GENEROUS_S)
    exporter.entered.clear()
    lane.offer(span("c"))
    lane.offer(span("d"))
    exporter.let_go.set()
    assert exporter.entered.wait(GENEROUS_S)
    lane.close(FOREVER)


def test_losses_are_logged_in_sums(caplog):
    clock = ManualClock()
    lane = lane_of(Scripted(), clock=clock, max_queue_size=1, max_export_batch_size=1)
    for _ in range(3):
        _offer(lane, *["a"] * 1000)
        lane.run_once(clock.monotonic_ns())
    assert [record.getMessage() for record in caplog.records] == [
        "mqtrace: test: spans lost since the last line: 999; totals of 1000: queue_full 999"
    ]
    clock.advance(ms=30_000)
    _offer(lane, "a")
    lane.run_once(clock.monotonic_ns())
    assert "spans lost since the last line: 1998;" in caplog.records[-1].getMessage()
    assert len(caplog.records) == 2


def test_what_an_exporter_raises_is_logged_once_for_each_type(caplog):
    lane = lane_of(Scripted(ValueError("no key"), ValueError("again"), KeyError("other")), max_export_batch_size=1)
    _offer(lane, "a", "b", "c")
    for _ in range(3):
        lane.run_once(FOREVER)
    raised = [record for record in caplog.records if "raised" in record.getMessage()]
    assert [str(record.exc_info[1]) for record in raised] == ["no key", "'other'"]
    assert raised[0].getMessage() == "mqtrace: test raised in export() (logged once)"


def test_span_offered_after_the_shutdown_is_counted_and_not_exported():
    late, reasons = [], set()
    for between in every_line_of(SpanQueue.offer):
        exporter = Scripted()
        lane = lane_of(exporter, background=True)
        lane.offer(span("in time"))

        def close(lane=lane):
            lane.close(FOREVER)
            lane.finish()

        with between(close):
            lane.offer(span("late"))
        assert not lane._exporter_closed.is_set() or lane.stats()["pending"] == 0
        close()
        assert exporter.shutdowns == 1
        assert account_balances(lane.stats())
        assert len(exporter.names) + sum(lane.stats()["dropped"].values()) == 2
        reasons |= {reason for reason, count in lane.stats()["dropped"].items() if count}
        late.append(exporter.names == ["in time"])
    assert late == sorted(late, reverse=True)
    assert late.count(True) >= 3
    assert reasons == {"already_shutdown"}


@pytest.mark.parametrize("has_begun", [False, True])
def test_worker_whose_start_was_interrupted_runs_once(monkeypatch, has_begun):
    begun, stop, runs, start = threading.Event(), threading.Event(), [], threading.Thread.start

    def body():
        runs.append(1)
        begun.set()
        stop.wait(GENEROUS_S)

    def interrupt(thread):
        if has_begun:
            start(thread)
            assert begun.wait(GENEROUS_S)
        raise KeyboardInterrupt

    worker = Worker("test", body)
    monkeypatch.setattr(threading.Thread, "start", interrupt)
    with pytest.raises(KeyboardInterrupt):
        worker.ensure_running()
    monkeypatch.undo()
    assert worker.ensure_running()
    stop.set()
    worker.join(GENEROUS_S)
    assert (runs, worker.running) == ([1], False)


def test_failure_of_a_blocking_call_under_gevent_is_raised_and_not_printed(run_code):
    """Gevent's thread pool prints a traceback of what a call raises, such as that of a broker that is away."""
    program = """
        from gevent import monkey; monkey.patch_all()
        from otel_mqtrace._workers import call_blocking
        try:
            call_blocking(divmod, 1, 0)
        except ZeroDivisionError as error:
            print(error)
        """
    assert run_code(program) == "integer division or modulo by zero\n"


def test_runtime_error_of_a_signal_handler_while_a_worker_starts_is_the_application_s(monkeypatch):
    def refuse(number, frame):
        raise RuntimeError("mine")

    before = signal.signal(signal.SIGUSR1, refuse)
    monkeypatch.setattr(threading.Thread, "start", lambda _: signal.raise_signal(signal.SIGUSR1))
    try:
        with pytest.raises(RuntimeError, match="mine"):
            Worker("test", int).ensure_running()
    finally:
        signal.signal(signal.SIGUSR1, before)


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
