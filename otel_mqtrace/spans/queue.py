"""This module knows one bounded queue of spans and the account of every span that was ever offered to it."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeVar

from otel_mqtrace.spans.stats import (
    ALREADY_SHUTDOWN,
    EXPORT_FAILED,
    QUEUE_FULL,
    SHUTDOWN_TIMEOUT,
    TOO_LARGE,
    ExportOutcome,
    LaneStats,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace._clock import Clock, MonotonicNs

__all__ = ["DropPolicy", "FlushMark", "SpanQueue"]

DropPolicy = Literal["newest", "oldest"]
Item = TypeVar("Item")

_ALWAYS_TOLD: Final = (QUEUE_FULL, ALREADY_SHUTDOWN, SHUTDOWN_TIMEOUT, TOO_LARGE)


class FlushMark(NamedTuple):
    """A point in the order of acceptance, and how many accepted items had been lost when it was taken."""

    position: int
    lost: int


class SpanQueue(Generic[Item]):
    """First in, first out, at most ``max_size`` waiting; what is being exported is still pending but no longer waits.

    Items are numbered in order of acceptance, so that a flush can wait for exactly what came before it. One lock guards
    queue and counters; under it nothing is encoded, logged or called back. It is re-entrant, since a finaliser or a
    signal handler may end a span while the same thread is in here. ``note(reason, item)`` is told of each item lost,
    under the lock too: it may count, and no more.
    """

    def __init__(
        self,
        *,
        max_size: int,
        clock: Clock,
        drop_policy: DropPolicy = "newest",
        note: Callable[[str, Item], None] | None = None,
    ) -> None:
        self._max_size = max_size
        self._now = clock.monotonic_ns
        self._drop_oldest = drop_policy == "oldest"
        self._changed = threading.Condition()
        self._waiting: deque[tuple[MonotonicNs, Item]] = deque()
        self._closed = False
        self._note = note
        self._accepted = 0
        self._flying: list[Item] = []
        self._in_flight = 0
        self._first_in_flight = 0
        self._wanted = 0
        self._lost = 0
        self._offered = 0
        self._exported = 0
        self._failed = 0
        self._dropped: defaultdict[str, int] = defaultdict(int, dict.fromkeys(_ALWAYS_TOLD, 0))

    # -- the application's side ------------------------------------------------------------------------------------

    def offer(self, item: Item) -> int:
        """Take ``item`` or refuse it, never waiting. Return how many wait now; 0 when it was refused."""
        with self._changed:
            self._offered += 1
            if self._closed:
                self._drop(ALREADY_SHUTDOWN, item)
                return 0
            if len(self._waiting) >= self._max_size:
                if not self._drop_oldest:
                    self._drop(QUEUE_FULL, item)
                    return 0
                self._drop(QUEUE_FULL, self._waiting.popleft()[1])
                self._lost += 1
            self._waiting.append((self._now(), item))
            self._accepted += 1
            return len(self._waiting)

    def refuse(self, reason: str, item: Item) -> None:
        """Account for an item that was offered and dropped before it could wait."""
        with self._changed:
            self._offered += 1
            self._drop(reason, item)

    def stats(self) -> LaneStats:
        """Return all counters as of one instant."""
        with self._changed:
            return LaneStats(
                offered=self._offered,
                exported=self._exported,
                dropped=dict(self._dropped),
                failed=self._failed,
                pending=len(self._waiting) + self._in_flight,
            )

    @property
    def waiting(self) -> int:
        """How many wait now, never more than there is room for."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """How many were taken and are not settled yet."""
        return self._in_flight

    # -- the worker's side -----------------------------------------------------------------------------------------

    def due_ns(
        self, now: MonotonicNs, *, batch_size: int, linger_ns: int, since_ns: MonotonicNs | None = None
    ) -> int | None:
        """Return in how many nanoseconds a batch is due (0: now), or ``None`` while nothing waits.

        A batch is due now when, in this order: a full batch waits, or ``linger_ns`` are over since the oldest came
        (since ``since_ns``, if given), or a flush wants one that waits, or the queue is closing.
        """
        with self._changed:
            if not self._waiting:
                return None
            if len(self._waiting) >= batch_size:
                return 0
            lingers_ns = linger_ns - (now - (self._waiting[0][0] if since_ns is None else since_ns))
            if lingers_ns <= 0 or self._wanted > self._first_waiting or self._closed:
                return 0
            return lingers_ns

    def take(self, count: int) -> list[Item]:
        """Move up to ``count`` of the oldest from waiting to in flight; :meth:`settle` must follow."""
        with self._changed:
            self._first_in_flight = self._first_waiting
            batch = [self._waiting.popleft()[1] for _ in range(min(count, len(self._waiting)))]
            self._flying = batch
            self._in_flight = len(batch)
            return batch

    def settle(self, outcome: ExportOutcome) -> None:
        """Account for the batch in flight, which ``outcome`` must cover exactly."""
        with self._changed:
            self._in_flight -= outcome.total
            self._exported += outcome.exported
            self._failed += outcome.failed
            lost = outcome.total - outcome.exported
            self._lost += lost
            for reason, count in outcome.dropped.items():
                self._dropped[reason] += count
            flown, self._flying = self._flying, []
            if self._note is not None and lost:
                self._note_lost(flown, outcome)
            self._changed.notify_all()

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until something changes, at most ``timeout_s`` seconds; needs :meth:`hold`."""
        self._changed.wait(timeout_s)

    def hold(self) -> threading.Condition:
        """Return the lock, for a worker that must test and wait in one step."""
        return self._changed

    def wake(self) -> None:
        """Wake whoever waits for a change."""
        with self._changed:
            self._changed.notify_all()

    # -- flush and shutdown ----------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether new items are refused."""
        return self._closed

    def request_flush(self) -> FlushMark:
        """Make everything accepted so far due, and return the point to wait for."""
        with self._changed:
            self._wanted = self._accepted
            self._changed.notify_all()
            return FlushMark(self._accepted, self._lost)

    def reached(self, mark: FlushMark) -> bool:
        """Whether nothing accepted before ``mark`` waits or is in flight."""
        with self._changed:
            waits = bool(self._waiting) and self._first_waiting < mark.position
            flies = bool(self._in_flight) and self._first_in_flight < mark.position
            return not (waits or flies)

    def lost_since(self, mark: FlushMark) -> int:
        """Return how many accepted items were lost since ``mark`` was taken; refusals of later ones do not count."""
        with self._changed:
            return self._lost - mark.lost

    def close(self) -> None:
        """Refuse whatever is offered from now on, and make what waits due."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until nothing is pending, at most ``timeout_s`` seconds; return whether that came true."""
        return self._wait_until(lambda: not (self._waiting or self._in_flight), timeout_s)

    def abandon(self) -> int:
        """Drop whatever still waits, counted under ``shutdown_timeout``; return how many that were."""
        with self._changed:
            count = len(self._waiting)
            self._lost += count
            while self._waiting:
                self._drop(SHUTDOWN_TIMEOUT, self._waiting.popleft()[1])
            self._changed.notify_all()
            return count

    @property
    def _first_waiting(self) -> int:
        """How many were accepted before the oldest that waits; evictions take from the front, so this stays exact."""
        return self._accepted - len(self._waiting)

    def _drop(self, reason: str, item: Item) -> None:
        self._dropped[reason] += 1  # no call between read and write: a signal handler could come in there
        if self._note is not None:
            self._note(reason, item)

    def _note_lost(self, flown: list[Item], outcome: ExportOutcome) -> None:
        """Name the items that were lost: those the exporter said, else as many of the newest."""
        lost = outcome.lost
        if len(lost) != outcome.total - outcome.exported:
            reasons = [EXPORT_FAILED] * outcome.failed
            reasons += [reason for reason, count in outcome.dropped.items() for _ in range(count)]
            lost = dict(zip(range(len(flown) - len(reasons), len(flown)), reasons, strict=True))
        for position, reason in lost.items():
            if self._note is not None and 0 <= position < len(flown):
                self._note(reason, flown[position])

    def _wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(condition, max(timeout_s, 0.0))
