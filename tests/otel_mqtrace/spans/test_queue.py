"""The bounded queue and its account."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace.spans.queue import SpanQueue
from otel_mqtrace.spans.stats import ExportOutcome
from otel_mqtrace.testing import ManualClock
from tests.support.interleaving import every_line_of
from tests.support.lanes import account_balances


def _queue(max_size=3, drop_policy="newest", *, batch_size=10, clock=None, rouse=None):
    clock = clock or ManualClock()
    return SpanQueue(max_size=max_size, batch_size=batch_size, clock=clock, drop_policy=drop_policy, rouse=rouse)


def test_a_full_queue_refuses_the_newest():
    """As RocketMQ does: what is already waiting stays."""
    queue = _queue()
    assert [queue.offer(n) for n in range(5)] == [1, 2, 3, 0, 0]
    assert queue.take() == [0, 1, 2]
    assert queue.stats()["dropped"]["queue_full"] == 2


def test_a_full_queue_evicts_the_oldest_when_told_to():
    """The other policy: the newest are kept."""
    queue = _queue(drop_policy="oldest")
    assert all(queue.offer(n) for n in range(5))
    assert queue.take() == [2, 3, 4]
    assert queue.stats()["dropped"]["queue_full"] == 2


def test_what_is_in_flight_is_pending_until_it_is_settled():
    """Taking a batch loses nothing from the account."""
    queue = _queue(batch_size=1)
    queue.offer("a")
    queue.offer("b")
    queue.take()
    assert queue.stats()["pending"] == 2
    queue.settle(ExportOutcome(exported=1))
    assert (queue.stats()["pending"], queue.stats()["exported"]) == (1, 1)


def test_room_is_counted_by_what_waits_not_by_what_flies():
    """A batch on its way makes room at once."""
    queue = _queue(max_size=1)
    queue.offer("a")
    queue.take()
    assert queue.offer("b") == 1


def test_a_closed_queue_counts_what_it_refuses():
    """Offered after shutdown has its own reason."""
    queue = _queue()
    queue.close()
    assert queue.offer("late") == 0
    assert queue.stats()["dropped"]["already_shutdown"] == 1


def test_a_flush_mark_ignores_what_came_later():
    """A flush waits for what was there, not for a stream that never ends."""
    queue = _queue(batch_size=1)
    queue.offer("before")
    mark = queue.request_flush()
    queue.offer("after")
    assert not queue.reached(mark)
    queue.take()
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
    queue.take()
    queue.settle(ExportOutcome(exported=1, failed=1))
    assert queue.lost_since(mark) == 1


@pytest.mark.parametrize("drop_policy", ["newest", "oldest"])
@pytest.mark.parametrize("function", [SpanQueue.offer, SpanQueue._crowded, SpanQueue._note_arrivals])
def test_a_finaliser_may_offer_while_the_same_thread_offers(function, drop_policy):
    """The lock is re-entrant: a span that ends inside a garbage collection neither hangs nor is lost."""
    for between in every_line_of(function):
        queue = _queue(drop_policy=drop_policy, batch_size=1)
        with between(lambda queue=queue: queue.offer("of a finaliser")):
            queue.offer("of the application")
        assert account_balances(queue.stats())
        offered = queue.stats()["offered"]
        assert sorted(queue.take()[0] for _ in range(offered)) == ["of a finaliser", "of the application"][-offered:]


def test_one_that_looked_before_the_close_and_came_after_the_end_is_counted():
    """Nobody would ever take it out: it may not stay pending for ever."""
    reasons = []
    for between in every_line_of(SpanQueue.offer):
        queue = _queue()
        with between(lambda queue=queue: (queue.close(), queue.abandon())):
            queue.offer("late")
        queue.close()
        queue.abandon()
        assert (queue.stats()["pending"], queue.stats()["offered"]) == (0, 1)
        reasons += [reason for reason, count in queue.stats()["dropped"].items() if count]
    assert set(reasons) == {"already_shutdown", "shutdown_timeout"}


def _in_ms(queue, clock):
    """Return in how many milliseconds a batch is due that may linger for 500."""
    due_ns = queue.due_ns(clock.monotonic_ns(), linger_ns=500_000_000)
    return None if due_ns is None else due_ns / 1e6


def test_the_oldest_that_waits_says_when_a_batch_is_due():
    """Whoever comes after it hurries nobody and holds nobody up."""
    clock = ManualClock()
    queue = _queue(clock=clock)
    assert _in_ms(queue, clock) is None
    for _ in range(3):
        queue.offer("x")
        clock.advance(ms=100)
    assert _in_ms(queue, clock) == 200


@pytest.mark.parametrize("batches_before", [0, 1, 2])
def test_who_is_left_behind_by_a_batch_has_waited_since_its_own_arrival(batches_before):
    """Not since the batch came, nor since it left."""
    clock = ManualClock()
    queue = _queue(max_size=100, batch_size=4, clock=clock)
    for _ in range(batches_before * 4):
        queue.offer("before")
        clock.advance(ms=1)
    clock.advance(ms=300)
    queue.offer("left behind")
    clock.advance(ms=40)
    queue.offer("and one more")
    for _ in range(batches_before):
        queue.take()
    clock.advance(ms=60)
    assert _in_ms(queue, clock) == 400


def test_who_comes_in_as_the_last_are_taken_out_has_waited_since_then():
    """Not since those came with whom it was not taken."""
    stayed = []
    for between in every_line_of(SpanQueue.take):
        clock = ManualClock()
        queue = _queue(clock=clock)
        queue.offer("there before")
        clock.advance(ms=450)
        with between(lambda queue=queue: queue.offer("comes in")):
            taken = queue.take()
        stayed.append(len(taken) == 1)
        assert _in_ms(queue, clock) == (500 if queue.waiting else None)
    assert any(stayed)


@pytest.mark.parametrize("function", [SpanQueue.take, SpanQueue._leave, SpanQueue._note_arrivals, SpanQueue._look_out])
def test_a_batch_is_due_again_after_ctrl_c_has_come_in_between(function):
    """Whoever works without a thread of its own is interrupted anywhere; what comes later must still leave."""
    for between in every_line_of(function):
        clock = ManualClock()
        queue = _queue(clock=clock, batch_size=2)
        queue.offer("taken")
        clock.advance(ms=10_000)
        with suppress(KeyboardInterrupt), between(_interrupt):
            queue.take()
        queue.offer("comes later")
        assert _in_ms(queue, clock) in {0, 500}
        clock.advance(ms=500)
        assert _in_ms(queue, clock) == 0
        assert queue.take()[-1] == "comes later"


def _interrupt():
    raise KeyboardInterrupt


@given(batch_size=st.integers(1, 4), waits=st.lists(st.integers(0, 30)), steps=st.data())
def test_no_batch_is_late_and_none_is_early_while_nothing_is_evicted(batch_size, waits, steps):
    """Held against a list of when each came in."""
    clock = ManualClock()
    queue, came = _queue(1_000, batch_size=batch_size, clock=clock), []
    for wait in waits:
        clock.advance(ms=wait)
        if steps.draw(st.booleans()):
            queue.offer("x")
            came.append(clock.monotonic_ns())
        else:
            assert len(queue.take()) == len(came[:batch_size])
            del came[:batch_size]
        if not came:
            assert _in_ms(queue, clock) is None
        elif len(came) >= batch_size:
            assert _in_ms(queue, clock) == 0
        else:
            assert _in_ms(queue, clock) == max(0, 500 - (clock.monotonic_ns() - came[0]) / 1e6)


@given(steps=st.lists(st.sampled_from(["offer", "offer", "offer", "take"]), max_size=80))
def test_where_the_oldest_are_evicted_a_batch_may_be_early_but_never_late(steps):
    """By no more than a batch of those before it came earlier; and what is noted does not grow."""
    clock = ManualClock()
    queue, came, every = _queue(5, "oldest", batch_size=2, clock=clock), [], []
    for step in steps:
        clock.advance(ms=10)
        if step == "offer":
            queue.offer("x")
            every.append(clock.monotonic_ns())
            came = [*came, every[-1]][-5:]
        else:
            queue.take()
            del came[:2]
        if len(came) == 1:
            before = every[max(0, every.index(came[0]) - 2)]
            due = [max(0, 500 - (clock.monotonic_ns() - at_ns) / 1e6) for at_ns in (before, came[0])]
            assert due[0] <= _in_ms(queue, clock) <= due[1]
        assert len(queue._arrivals) <= 5


@pytest.mark.parametrize("drop_policy", ["newest", "oldest"])
def test_threads_that_come_at_once_leave_no_more_than_there_is_room_for(drop_policy):
    """None of them waits for another: who looked at the same time as others may be one too many."""
    queue, begin, seen = _queue(2, drop_policy, batch_size=1), threading.Barrier(5), []

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
            queue.settle(ExportOutcome(exported=len(queue.take())))
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
    queue = _queue(100, batch_size=100, rouse=lambda: roused.append("up"))
    for number in range(100):
        queue.offer(number)
    assert len(roused) == 6  # at 1, 3, 7, 15, 31 and 63
    queue.take()
    queue.unattended()
    queue.offer("after the death of the worker")
    assert len(roused) == 7


def test_a_worker_on_the_edge_of_sleep_is_called_again(monkeypatch):
    """A finaliser on its own thread may offer after it has looked and before it can hear."""
    roused = []
    queue = _queue(500, rouse=lambda: roused.append("up"))

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
        st.just(("take", 0)),
        st.tuples(st.just("settle"), st.sampled_from(["exported", "failed", "too_large"])),
        st.just(("refuse", 0)),
        st.just(("abandon", 0)),
        st.just(("close", 0)),
    ),
    max_size=60,
)


@given(
    steps=STEPS,
    max_size=st.integers(1, 5),
    batch_size=st.integers(1, 4),
    drop_policy=st.sampled_from(["newest", "oldest"]),
)
def test_the_account_balances_after_every_step(steps, max_size, batch_size, drop_policy):
    """offered = exported + dropped + failed + pending, whatever happens in whatever order."""
    queue, in_flight = _queue(max_size, drop_policy, batch_size=batch_size), 0
    for step, argument in steps:
        if step == "offer":
            queue.offer("x")
        elif step == "take" and not in_flight:
            in_flight = len(queue.take())
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


@given(steps=STEPS, batch_size=st.integers(1, 4))
def test_a_mark_is_reached_exactly_when_everything_before_it_is_gone(steps, batch_size):
    """Under either fate and with evictions in between."""
    queue, in_flight, number = _queue(3, "oldest", batch_size=batch_size), [], 0
    queue.offer(number)
    mark = queue.request_flush()
    waiting = [number]
    for step, _ in steps:
        if step == "offer":
            number += 1
            queue.offer(number)
            waiting = [*waiting, number][-3:]
        elif step == "take" and not in_flight:
            in_flight = queue.take()
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

queue = SpanQueue(max_size=1, batch_size=1, clock=SystemClock())
queue.offer("fills it")
handled, done = itertools.count(1), threading.Event()

def handle(_number, _frame):
    queue.offer("of the handler")
    if next(handled) == 400:
        done.set()
    else:  # one at a time: on a slow machine a timer that repeats itself would call the handler within the handler
        signal.setitimer(signal.ITIMER_REAL, 3e-5)

signal.signal(signal.SIGALRM, handle)
signal.setitimer(signal.ITIMER_REAL, 3e-5)
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
