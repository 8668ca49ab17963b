"""The bounded queue and its account."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace.spans.queue import SpanQueue
from otel_mqtrace.spans.stats import ExportOutcome
from otel_mqtrace.testing import ManualClock
from tests.support.lanes import account_balances


def _queue(max_size=3, drop_policy="newest"):
    return SpanQueue(max_size=max_size, clock=ManualClock(), drop_policy=drop_policy)


def test_a_full_queue_refuses_the_newest():
    """As RocketMQ does: what is already waiting stays."""
    queue = _queue()
    assert [queue.offer(n) for n in range(5)] == [1, 2, 3, 0, 0]
    assert queue.take(10) == [0, 1, 2]
    assert queue.stats()["dropped"]["queue_full"] == 2


def test_a_full_queue_evicts_the_oldest_when_told_to():
    """The other policy: the newest are kept."""
    queue = _queue(drop_policy="oldest")
    assert all(queue.offer(n) for n in range(5))
    assert queue.take(10) == [2, 3, 4]
    assert queue.stats()["dropped"]["queue_full"] == 2


def test_what_is_in_flight_is_pending_until_it_is_settled():
    """Taking a batch loses nothing from the account."""
    queue = _queue()
    queue.offer("a")
    queue.offer("b")
    queue.take(1)
    assert queue.stats()["pending"] == 2
    queue.settle(ExportOutcome(exported=1))
    assert (queue.stats()["pending"], queue.stats()["exported"]) == (1, 1)


def test_room_is_counted_by_what_waits_not_by_what_flies():
    """A batch on its way makes room at once."""
    queue = _queue(max_size=1)
    queue.offer("a")
    queue.take(1)
    assert queue.offer("b") == 1


def test_a_closed_queue_counts_what_it_refuses():
    """Offered after shutdown has its own reason."""
    queue = _queue()
    queue.close()
    assert queue.offer("late") == 0
    assert queue.stats()["dropped"]["already_shutdown"] == 1


def test_a_flush_mark_ignores_what_came_later():
    """A flush waits for what was there, not for a stream that never ends."""
    queue = _queue()
    queue.offer("before")
    mark = queue.request_flush()
    queue.offer("after")
    assert not queue.reached(mark)
    queue.take(1)
    assert not queue.reached(mark)
    queue.settle(ExportOutcome(exported=1))
    assert queue.reached(mark)


def test_a_flush_mark_knows_what_was_lost_since():
    """Evictions and failures count against the flush, refusals of later spans do not."""
    queue = _queue(max_size=2)
    queue.offer("a")
    queue.offer("b")
    mark = queue.request_flush()
    queue.offer("refused")
    assert queue.lost_since(mark) == 0
    queue.take(2)
    queue.settle(ExportOutcome(exported=1, failed=1))
    assert queue.lost_since(mark) == 1


def test_a_finaliser_may_offer_while_the_same_thread_offers():
    """The lock is re-entrant: a span that ends inside a garbage collection neither hangs nor is lost."""

    class Collecting(ManualClock):
        reentered = False

        def monotonic_ns(self):
            if not self.reentered:
                self.reentered = True
                queue.offer("from a finaliser")
            return super().monotonic_ns()

    queue = SpanQueue(max_size=3, clock=Collecting())
    queue.offer("from the application")
    assert account_balances(queue.stats())
    assert sorted(queue.take(3)) == ["from a finaliser", "from the application"]


def test_one_that_looked_before_the_close_and_came_after_the_end_is_counted():
    """Nobody would ever take it out: it may not stay pending for ever."""

    class Closing(ManualClock):
        def monotonic_ns(self):
            queue.close()
            queue.abandon()
            return super().monotonic_ns()

    queue = SpanQueue(max_size=3, clock=Closing())
    assert queue.offer("late") == 0
    assert (queue.stats()["dropped"]["already_shutdown"], queue.stats()["pending"]) == (1, 0)


@pytest.mark.parametrize("drop_policy", ["newest", "oldest"])
def test_threads_that_come_at_once_leave_no_more_than_there_is_room_for(drop_policy):
    """None of them waits for another: who looked at the same time as others may be one too many."""
    queue, begin, seen = _queue(2, drop_policy), threading.Barrier(5), []

    def work():
        begin.wait(60)
        for _ in range(2_000):
            queue.offer("x")

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        begin.wait(60)
        while any(thread.is_alive() for thread in threads):
            seen.append(queue.stats())
            queue.settle(ExportOutcome(exported=len(queue.take(1))))
    finally:
        sys.setswitchinterval(interval)
    for thread in threads:
        thread.join()
    seen.append(queue.stats())
    assert all(account_balances(each) and each["pending"] <= 2 for each in seen)
    assert seen[-1]["offered"] == 8_000


def test_somebody_is_roused_by_the_first_item_and_then_ever_more_rarely():
    """As a rule the worker is on its way; there may be no thread to be had just now, though."""
    roused = []
    queue = SpanQueue(max_size=100, clock=ManualClock(), rouse=lambda: roused.append("up"))
    for number in range(100):
        queue.offer(number)
    assert len(roused) == 6  # at 1, 3, 7, 15, 31 and 63
    queue.take(100)
    queue.unattended()
    queue.offer("after the death of the worker")
    assert len(roused) == 7


def test_a_worker_on_the_edge_of_sleep_is_called_again(monkeypatch):
    """A finaliser on its own thread may offer after it has looked and before it can hear."""
    roused = []
    queue = SpanQueue(max_size=500, clock=ManualClock(), rouse=lambda: roused.append("up"))

    def not_yet_asleep(_timeout):
        for number in range(150):
            queue.offer(number)

    with queue.hold():
        monkeypatch.setattr(queue._changed, "wait", not_yet_asleep)
        queue.wait(1.0)
    assert len(roused) == 7  # at 1, 3, 7, 15, 31, 63 and 127


STEPS = st.lists(
    st.one_of(
        st.just(("offer", 0)),
        st.tuples(st.just("take"), st.integers(1, 4)),
        st.tuples(st.just("settle"), st.sampled_from(["exported", "failed", "too_large"])),
        st.just(("refuse", 0)),
        st.just(("abandon", 0)),
        st.just(("close", 0)),
    ),
    max_size=60,
)


@given(steps=STEPS, max_size=st.integers(1, 5), drop_policy=st.sampled_from(["newest", "oldest"]))
def test_the_account_balances_after_every_step(steps, max_size, drop_policy):
    """offered = exported + dropped + failed + pending, whatever happens in whatever order."""
    queue, in_flight = _queue(max_size, drop_policy), 0
    for step, argument in steps:
        if step == "offer":
            queue.offer("x")
        elif step == "take" and not in_flight:
            in_flight = len(queue.take(argument))
        elif step == "settle" and in_flight:
            fate = {"dropped": {argument: in_flight}} if argument == "too_large" else {argument: in_flight}
            queue.settle(ExportOutcome(**fate))
            in_flight = 0
        elif step == "refuse":
            queue.refuse("too_large", object())
        elif step == "abandon":
            queue.abandon()
        elif step == "close":
            queue.close()
        assert account_balances(queue.stats())
        assert queue.stats()["pending"] <= max_size + in_flight


@given(steps=STEPS)
def test_a_mark_is_reached_exactly_when_everything_before_it_is_gone(steps):
    """Under either fate and with evictions in between."""
    queue, in_flight, number = _queue(3, "oldest"), [], 0
    queue.offer(number)
    mark = queue.request_flush()
    waiting = [number]
    for step, argument in steps:
        if step == "offer":
            number += 1
            queue.offer(number)
            waiting = [*waiting, number][-3:]
        elif step == "take" and not in_flight:
            in_flight = queue.take(argument)
            waiting = waiting[len(in_flight) :]
        elif step == "settle" and in_flight:
            queue.settle(ExportOutcome(exported=len(in_flight)))
            in_flight = []
        assert queue.reached(mark) == (0 not in [*waiting, *in_flight])


INTERRUPTED = """
import itertools, signal, threading
from otel_mqtrace._clock import SystemClock
from otel_mqtrace.spans.queue import SpanQueue
from tests.support.lanes import account_balances

queue = SpanQueue(max_size=1, clock=SystemClock())
queue.offer("fills it")
handled, done = itertools.count(1), threading.Event()

def handle(_number, _frame):
    queue.offer("of the handler")
    if next(handled) == 400:
        done.set()

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 2e-5, 2e-5)
while not done.is_set():
    queue.offer("of the application")
signal.setitimer(signal.ITIMER_REAL, 0)
assert account_balances(queue.stats()), queue.stats()
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no such timers")
def test_no_count_is_lost_to_a_signal_handler_that_ends_a_span_in_the_middle_of_one():
    """The lock lets the same thread in: between reading a counter and writing it nothing may come.

    In a process of its own: such a storm of signals ends the threads of the embedded broker.
    """
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_that_was_interrupted_on_its_way_in_makes_no_other_older():
    """The time was noted, and a signal handler raised before the item came in."""
    clock = ManualClock()
    queue = SpanQueue(max_size=10, clock=clock)
    for _ in range(1_000):
        queue._arrived.append(clock.monotonic_ns())
    clock.advance(ms=5_000)
    queue.offer("a")
    now = clock.monotonic_ns()
    assert queue.due_ns(now, batch_size=5, linger_ns=500) == 500
    assert (queue.take(5), queue.stats()["pending"]) == (["a"], 1)
    assert len(queue._arrived) < 1_000
