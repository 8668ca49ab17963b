"""A delivery with a spool: trace messages wait on disk while the broker is away.

A broker that has taken nothing for eight seconds is away, and batches go to the spool at once, so that the lane's queue
does not fill. Every five seconds it is asked for two, with the oldest message; when it takes that, the rest follows.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace.exporters.delivery import Undelivered

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.exporters.delivery import MessageDelivery
    from otel_mqtrace.exporters.packing import TraceMessage
    from otel_mqtrace.exporters.spool import Spool

__all__ = ["PATIENCE_MS", "SpooledDelivery"]

PATIENCE_MS: Final = 8_000
"""How long a delivery may take before the disk takes over; a missing topic is told after five seconds."""
_PATIENCE_NS: Final = PATIENCE_MS * 1_000_000
_PROBE_NS: Final = 2_000_000_000
_RETRY_NS: Final = 5_000_000_000
_ADOPT_NS: Final = 30_000_000_000
_REPLAY_AT_ONCE: Final = 100
"""Messages between two batches of the lane: new spans must not wait for a long past."""


class SpooledDelivery:
    """Keep on disk what another :class:`~otel_mqtrace.exporters.delivery.MessageDelivery` could not send.

    A message taken by the spool counts as delivered. It reaches the broker once, unless the process dies between the
    broker's answer and the mark, or the broker took what it never acknowledged: then twice.
    """

    def __init__(self, inner: MessageDelivery, spool: Spool, *, timeout_ms: float, clock: Clock) -> None:
        self._inner = inner
        self._spool = spool
        self._timeout_ns = int(timeout_ms * 1e6)
        self._clock = clock
        self._adopt_ns = MonotonicNs(clock.monotonic_ns() + _ADOPT_NS)
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._retry_ns = MonotonicNs(0)
        self._down = False
        self.spooled = 0
        self.replayed = 0
        self.refused = 0

    def deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Undelivered:
        """Send ``messages``, or keep them; return what could be neither."""
        with self._used():
            if self._down and not self._back(deadline):
                return self._kept(Undelivered(tuple(messages)))
            left = self._inner.deliver(messages, self._within(_PATIENCE_NS, deadline))
            self._note(left, len(messages))
            if not left.retriable:
                self._adopt_due()
                self._replay(self._within(_PATIENCE_NS, deadline), _REPLAY_AT_ONCE)
            return self._kept(left)

    def idle(self) -> None:
        """Try what waits, if it is time to."""
        with self._used():
            self._adopt_due()
            deadline = self._within(self._timeout_ns)
            if self._spool.waiting and (not self._down or self._back(deadline)):
                self._replay(self._within(_PATIENCE_NS, deadline), _REPLAY_AT_ONCE)

    def flush(self, deadline: MonotonicNs) -> bool:
        """Send what waits; ``True`` only when nothing is left on disk nor on its way."""
        with self._used():
            while self._spool.waiting and self._clock.monotonic_ns() < deadline:
                if not self._replay(self._within(_PATIENCE_NS, deadline), _REPLAY_AT_ONCE):
                    return False
            return self._inner.flush(deadline) and not self._spool.waiting

    def close(self, deadline: MonotonicNs) -> None:
        """Let go, by ``deadline``; what waits is for another process.

        A delivery that is running ends early, and keeps on disk what it had in its hands; then it lets go instead.
        """
        self._inner.close(deadline)
        self._closed = True
        if self._lock.acquire(timeout=max(0.0, (deadline - self._clock.monotonic_ns()) / 1e9)):
            try:
                self._spool.close()
            finally:
                self._lock.release()

    def after_fork(self) -> None:
        """Begin anew in a child, which adopts what siblings leave behind."""
        self._begin()
        self._adopt_ns = MonotonicNs(0)
        self._inner.after_fork()
        self._spool.after_fork()

    def stats(self) -> dict[str, int]:
        """Return how many messages went to disk, came back, were refused for ever by the broker, and still wait.

        ``spool_torn_bytes`` is what a crash or the disk had spoilt.
        """
        return {
            "spooled": self.spooled,
            "replayed": self.replayed,
            "replay_refused": self.refused,
            "spool_waiting": self._spool.waiting,
            "spool_torn_bytes": self._spool.corrupt_bytes,
        }

    @contextmanager
    def _used(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            finally:
                if self._closed:
                    self._spool.close()

    def _back(self, deadline: MonotonicNs) -> bool:
        """Whether it is time to ask again, and the broker then takes one message of those that wait."""
        return self._clock.monotonic_ns() >= self._retry_ns and self._replay(self._within(_PROBE_NS, deadline), 1)

    def _kept(self, left: Undelivered) -> Undelivered:
        taken = self._spool.put(left.retriable) if left.retriable else 0
        self.spooled += taken
        return Undelivered(left.retriable[taken:], left.rejected)

    def _replay(self, deadline: MonotonicNs, count: int) -> bool:
        """Send some of what waits; return whether the broker took it all."""
        waiting = self._spool.oldest(count)
        if not waiting:
            return True
        left = self._inner.deliver([each.message for each in waiting], deadline)
        self._note(left, len(waiting))
        retriable, rejected = set(map(id, left.retriable)), set(map(id, left.rejected))
        done = [each for each in waiting if id(each.message) not in retriable]
        self.refused += len(rejected)
        self.replayed += len(done) - len(rejected)
        self._spool.ack(done)
        return not left.retriable

    def _note(self, left: Undelivered, count: int) -> None:
        """The broker is away when it took nothing at all: what it took in part, it may have been too slow for."""
        self._down = bool(left.retriable) and len(left.messages) == count
        if self._down:
            self._retry_ns = MonotonicNs(self._clock.monotonic_ns() + _RETRY_NS)

    def _adopt_due(self) -> None:
        """Look for what others left behind, now and then."""
        now = self._clock.monotonic_ns()
        if now >= self._adopt_ns:
            self._adopt_ns = MonotonicNs(now + _ADOPT_NS)
            self._spool.adopt()

    def _within(self, allowed_ns: int, deadline: MonotonicNs | None = None) -> MonotonicNs:
        latest = MonotonicNs(self._clock.monotonic_ns() + allowed_ns)
        return latest if deadline is None else min(latest, deadline)
