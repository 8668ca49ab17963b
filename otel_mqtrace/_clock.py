"""The clocks: wall-clock nanoseconds for stamps, monotonic ones for waiting. No other module reads the time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NewType, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Callable

LAST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, in epoch milliseconds: the latest that calendars accept."""

NS_PER_MS: Final = 1_000_000

WallNs = NewType("WallNs", int)
MonotonicNs = NewType("MonotonicNs", int)


class Clock(Protocol):
    """Two clocks that must never be mixed, hence two types."""

    def wall_ns(self) -> WallNs:
        """Nanoseconds since the Unix epoch: what a record or a span is stamped with."""
        ...

    def monotonic_ns(self) -> MonotonicNs:
        """Nanoseconds that never step back: what a wait or a deadline is measured with."""
        ...


class SystemClock:
    """The machine's own clocks, bound without a call in between: every span is stamped twice."""

    wall_ns: Callable[[], WallNs] = cast("Callable[[], WallNs]", staticmethod(time.time_ns))
    monotonic_ns: Callable[[], MonotonicNs] = cast("Callable[[], MonotonicNs]", staticmethod(time.monotonic_ns))


def compute_deadline(clock: Clock, timeout_ms: float) -> MonotonicNs:
    """Return the monotonic instant that is ``timeout_ms`` from now, in nanoseconds."""
    return MonotonicNs(clock.monotonic_ns() + int(timeout_ms * NS_PER_MS))


def seconds_until(clock: Clock, deadline: MonotonicNs) -> float:
    """Return how many seconds are left before ``deadline``, 0 after it."""
    return max(0.0, (deadline - clock.monotonic_ns()) / 1e9)


def pause(seconds: float) -> None:
    """Block the calling thread; an exception of a signal handler ends the wait."""
    time.sleep(seconds)
