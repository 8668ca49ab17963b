"""When the disk takes over from a broker, and when the broker is asked again: by time that a test holds."""

from __future__ import annotations

import threading

import pytest

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace.exporters.native_delivery import PATIENCE_MS, SpooledDelivery, Undelivered
from otel_mqtrace.exporters.packing import TraceMessage
from otel_mqtrace.exporters.spool import Spool
from otel_mqtrace.testing import ManualClock
from tests.support.lanes import GENEROUS_S

LATE = MonotonicNs(10**18)


def message(text):
    return TraceMessage(None, None, text.encode(), "", frozenset(), 1)


class Broker:
    """The other side of a delivery: takes what ``takes`` allows, waits out its deadline for the rest."""

    def __init__(self, clock):
        self.clock = clock
        self.takes = lambda _message: True
        self.taken = []
        self.waited_ms = []

    def deliver(self, messages, deadline):
        left = [each for each in messages if not self.takes(each)]
        self.taken += [each.value.decode() for each in messages if each not in left]
        if left:
            self.waited_ms.append((deadline - self.clock.monotonic_ns()) // 10**6)
            self.clock.advance(ms=self.waited_ms[-1])
        return Undelivered(tuple(left))

    def flush(self, deadline):
        return True

    def close(self, deadline):
        self.takes = lambda _message: False

    def after_fork(self):
        pass


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def broker(clock):
    return Broker(clock)


@pytest.fixture
def delivery(broker, clock, tmp_path):
    return SpooledDelivery(broker, Spool(tmp_path, max_bytes=10**6), timeout_ms=30_000, clock=clock)


def in_ms(clock, ms):
    return MonotonicNs(clock.monotonic_ns() + ms * 10**6)


def test_an_outage_holds_up_the_lane_for_seconds_and_not_for_the_whole_export_timeout(delivery, broker, clock):
    """The queue would be full long before; the broker is asked for two seconds of every seven."""
    broker.takes = lambda _message: False
    for number in range(3):
        assert delivery.deliver([message(str(number))], in_ms(clock, 30_000)).messages == ()
        assert delivery.deliver([message(f"{number} more")], in_ms(clock, 30_000)).messages == ()
        clock.advance(ms=5_000)
        delivery.idle()
        clock.advance(ms=5_000)
    assert broker.waited_ms == [PATIENCE_MS, *[2_000] * 5]
    assert delivery.stats()["spooled"] == 6


def test_a_deadline_that_is_nearer_is_kept(delivery, broker, clock):
    """Patience never makes a delivery longer."""
    broker.takes = lambda _message: False
    delivery.deliver([message("a")], in_ms(clock, 300))
    clock.advance(ms=5_000)
    delivery.deliver([message("b")], in_ms(clock, 300))
    assert broker.waited_ms == [300, 300]


def test_the_broker_is_back_when_it_takes_the_oldest_message(delivery, broker, clock):
    broker.takes = lambda _message: False
    for text in ("a", "b", "c"):
        delivery.deliver([message(text)], in_ms(clock, 30_000))
    broker.takes = lambda _message: True
    clock.advance(ms=5_000)
    assert delivery.deliver([message("new")], in_ms(clock, 30_000)).messages == ()
    assert broker.taken == ["a", "new", "b", "c"]
    assert delivery.stats() == {
        "spooled": 3,
        "replayed": 3,
        "replay_refused": 0,
        "spool_waiting": 0,
        "spool_torn_bytes": 0,
    }


def test_one_message_that_never_gets_through_does_not_make_the_broker_seem_away(delivery, broker, clock):
    broker.takes = lambda each: each.value != b"poison"
    delivery.deliver([message("poison"), message("a")], in_ms(clock, 30_000))
    delivery.deliver([message("b")], in_ms(clock, 30_000))
    assert broker.taken == ["a", "b"]
    assert delivery.stats()["spool_waiting"] == 1


def test_what_siblings_leave_is_looked_for_twice_a_minute_and_at_once_by_a_child(delivery, broker, clock, tmp_path):
    def leave(text):
        sibling = Spool(tmp_path, max_bytes=10**6)
        sibling.put([message(text)])
        sibling.close()

    leave("a")
    delivery.idle()
    assert broker.taken == []
    clock.advance(ms=30_000)
    delivery.idle()
    leave("b")
    delivery.idle()
    assert broker.taken == ["a"]
    delivery.after_fork()
    delivery.idle()
    assert broker.taken == ["a", "b"]


def test_a_shutdown_in_the_middle_of_a_delivery_leaves_it_on_disk(delivery, broker, tmp_path):
    inside, let_go = threading.Event(), threading.Event()

    def hang(_message):
        inside.set()
        let_go.wait(GENEROUS_S)
        return False

    broker.takes = hang
    left = []
    lane = threading.Thread(target=lambda: left.append(delivery.deliver([message("a")], LATE)))
    lane.start()
    assert inside.wait(GENEROUS_S)
    delivery.close(MonotonicNs(0))
    assert lane.is_alive()
    let_go.set()
    lane.join(GENEROUS_S)
    assert left == [Undelivered()]
    assert [each.message.value for each in Spool(tmp_path, max_bytes=10**6).oldest(5)] == [b"a"]
