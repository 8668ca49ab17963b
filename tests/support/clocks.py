"""Clocks that hurry, for what gives up after some time: however slow the machine is, it gives up at the same step."""

from otel_mqtrace.testing import ManualClock


class TickingClock(ManualClock):
    """A clock on which ``step_ms`` pass from one reading to the next."""

    def __init__(self, step_ms=1_000):
        super().__init__()
        self._step_ms = step_ms

    def monotonic_ns(self):
        self.advance(ms=self._step_ms)
        return super().monotonic_ns()
