"""This module knows when trace messages go to disk instead of the broker, and when they come back.

While the broker does not answer, batches go to the spool at once, so that the lane's queue does not fill; every five
seconds one delivery is tried. When one succeeds, what waits follows, oldest first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bridge.exporters.trace_producer import Undelivered
from otel_mqtrace._clock import MonotonicNs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bridge.exporters.batching import TraceMessage
    from bridge.exporters.spool import Spool
    from bridge.exporters.trace_producer import MessageDelivery
    from otel_mqtrace._clock import Clock

__all__ = ["SpooledDelivery"]

_RETRY_NS: Final = 5_000_000_000
_REPLAY_AT_ONCE: Final = 100
"""Messages between two batches of the lane: new spans must not wait for a long past."""


class SpooledDelivery:
    """A :class:`~bridge.exporters.trace_producer.MessageDelivery` that keeps on disk what the other one could not send.

    A message taken by the spool counts as delivered. It reaches the broker once, unless the process dies between the
    broker's answer and the mark, or the broker took what it never acknowledged: then twice.
    """

    def __init__(self, inner: MessageDelivery, spool: Spool, *, timeout_ms: float, clock: Clock) -> None:
        self._inner = inner
        self._spool = spool
        self._timeout_ns = int(timeout_ms * 1e6)
        self._clock = clock
        self._retry_ns = MonotonicNs(0)
        self._down = False
        self.spooled = 0
        self.replayed = 0
        self.refused = 0

    def deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Undelivered:
        """Send ``messages``, or keep them; return what could be neither."""
        if self._down and self._clock.monotonic_ns() < self._retry_ns:
            return self._kept(Undelivered(tuple(messages)))
        left = self._inner.deliver(messages, deadline)
        self._note(left)
        if not self._down:
            self._replay(deadline, _REPLAY_AT_ONCE)
        return self._kept(left)

    def idle(self) -> None:
        """Try what waits, if it is time to."""
        now = self._clock.monotonic_ns()
        if self._spool.waiting and (not self._down or now >= self._retry_ns):
            self._replay(MonotonicNs(now + self._timeout_ns), _REPLAY_AT_ONCE)

    def flush(self, deadline: MonotonicNs) -> bool:
        """Send what waits; ``True`` only when nothing is left on disk nor on its way."""
        while self._spool.waiting and self._clock.monotonic_ns() < deadline:
            if not self._replay(deadline, _REPLAY_AT_ONCE):
                return False
        return self._inner.flush(deadline) and not self._spool.waiting

    def close(self, deadline: MonotonicNs) -> None:
        """Let go; what waits is for the next process."""
        self._inner.close(deadline)
        self._spool.close()

    def after_fork(self) -> None:
        """Begin anew in a child."""
        self._inner.after_fork()
        self._spool.after_fork()
        self.spooled = self.replayed = self.refused = 0

    def stats(self) -> dict[str, int]:
        """Return how many messages went to disk, came back, were refused for ever by the broker, and still wait."""
        return {
            "spooled": self.spooled,
            "replayed": self.replayed,
            "replay_refused": self.refused,
            "spool_waiting": self._spool.waiting,
        }

    def _kept(self, left: Undelivered) -> Undelivered:
        taken = self._spool.put(left.retriable) if left.retriable else 0
        self.spooled += taken
        return Undelivered(left.retriable[taken:], left.hopeless)

    def _replay(self, deadline: MonotonicNs, count: int) -> bool:
        """Send some of what waits; return whether the broker took it all."""
        waiting = self._spool.oldest(count)
        if not waiting:
            return True
        left = self._inner.deliver([each.message for each in waiting], deadline)
        self._note(left)
        retriable, hopeless = set(map(id, left.retriable)), set(map(id, left.hopeless))
        done = [each for each in waiting if id(each.message) not in retriable]
        self.refused += len(hopeless)
        self.replayed += len(done) - len(hopeless)
        self._spool.took(done)
        return not left.retriable

    def _note(self, left: Undelivered) -> None:
        self._down = bool(left.retriable)
        if self._down:
            self._retry_ns = MonotonicNs(self._clock.monotonic_ns() + _RETRY_NS)
