"""Clocks that hurry, for what gives up after some time: however slow the machine is, it gives up at the same step."""

import threading

from otel_mqtrace.testing import ManualClock
from tests.support.lanes import GENEROUS_S


class TickingClock(ManualClock):
    """A clock on which ``step_ms`` pass from one reading to the next."""

    def __init__(self, step_ms=1_000):
        super().__init__()
        self._step_ms = step_ms

    def monotonic_ns(self):
        self.advance(ms=self._step_ms)
        return super().monotonic_ns()


class WatchedClock(ManualClock):
    """A clock that another thread can wait at for a reading, so that its time passes between two known steps."""

    def __init__(self):
        super().__init__()
        self.readings = 0
        self._was_read = threading.Condition()

    def monotonic_ns(self):
        with self._was_read:
            self.readings += 1
            self._was_read.notify_all()
            return super().monotonic_ns()

    def await_reading(self, number):
        """Wait until the clock was read more than ``number`` times."""
        with self._was_read:
            assert self._was_read.wait_for(lambda: self.readings > number, GENEROUS_S), "nobody reads the clock"
