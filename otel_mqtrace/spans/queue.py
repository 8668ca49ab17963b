"""This module knows one bounded queue of spans and the account of every span that was ever offered to it."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from contextlib import contextmanager
from itertools import repeat, starmap
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
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from otel_mqtrace._clock import Clock, MonotonicNs

__all__ = ["DropPolicy", "FlushMark", "SpanQueue"]

DropPolicy = Literal["newest", "oldest"]
Item = TypeVar("Item")

_LOOK_AGAIN: Final = 64
"""After so many refusals somebody looks whether the worker lives."""
_ALWAYS_TOLD: Final = (QUEUE_FULL, ALREADY_SHUTDOWN, SHUTDOWN_TIMEOUT, TOO_LARGE)


class FlushMark(NamedTuple):
    """A point in the order of acceptance, and how many accepted items had been lost when it was taken."""

    position: int
    lost: int


class _Arrival(NamedTuple):
    """When the item of this number came in."""

    number: int
    at_ns: MonotonicNs


class SpanQueue(Generic[Item]):
    """First in, first out, at most ``max_size`` waiting; what is being exported is still pending but no longer waits.

    Whoever offers pays for an append and waits for nobody. One lock guards the account; only those take it who find the
    queue full or closed, or the worker asleep, or whose time of arrival is noted. Between a look and an append others
    may have come in: what is too much then goes out again as the newest, before anybody counts. Items are numbered in
    order of acceptance, so that a flush can wait for exactly what came before it.

    When an item came in is noted of those only that can become the oldest that waits: the first into an empty queue
    and every ``batch_size``-th after it. Where evictions come between, the last one noted before it stands for it.

    Under the lock nothing is encoded, logged or called back. It is re-entrant: a finaliser or a signal handler may end
    a span while the same thread is in here. ``note(reason, item)`` is told of each item lost, under the lock too: it
    may count, and no more. ``rouse()`` is called without it when somebody has to see to what waits; ``None``
    where nobody is to be roused.
    """

    def __init__(  # noqa: PLR0913 - settings by their names
        self,
        *,
        max_size: int,
        batch_size: int,
        clock: Clock,
        drop_policy: DropPolicy = "newest",
        note: Callable[[str, Item], None] | None = None,
        rouse: Callable[[], object] | None = None,
    ) -> None:
        self._max_size = self._room = max_size
        self._batch_size = batch_size
        self._now = clock.monotonic_ns
        self._drop_oldest = drop_policy == "oldest"
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # entered by the lock itself: through this it is a call more
        self._watchers = 0
        self._waiting: deque[Item] = deque()
        self._arrivals: deque[_Arrival] = deque()  # the first, if any, is of the oldest or of one before it
        self._next_arrival = 0  # the number of the next whose arrival is noted
        self._closed = self._abandoned = False
        self._note = note
        self._rouse = rouse
        self._never = max_size + 1  # more than there is room for
        self._wake_at = self._never if rouse is None else 1  # later the worker says itself what it wakes up for
        self._look_at = 1  # so many waiting have something done about them: see _look_out
        self._gone = 0  # that were taken in and wait no longer: the number of the oldest that does
        self._flying: list[Item] = []
        self._in_flight = 0
        self._first_in_flight = 0
        self._wanted = 0
        self._lost = 0
        self._refused = 0
        self._exported = 0
        self._failed = 0
        self._dropped: defaultdict[str, int] = defaultdict(int, dict.fromkeys(_ALWAYS_TOLD, 0))

    # -- the application's side ------------------------------------------------------------------------------------

    def offer(self, item: Item) -> int:
        """Take ``item`` or refuse it, never waiting. Return how many wait now; 0 when it was refused."""
        waiting = self._waiting
        if len(waiting) >= self._room and not self._make_room(item):
            if self._refused % _LOOK_AGAIN == 0 and self._rouse is not None and not self._closed:
                self._rouse()  # perhaps it is full because something killed the worker
            return 0
        waiting.append(item)  # one atomic step
        count = len(waiting)
        return count if count < self._look_at else self._crowded()

    def _make_room(self, item: Item) -> bool:
        """Evict the oldest for ``item`` where that is the rule, else refuse it; return whether it may come in."""
        with self._lock:
            if len(self._waiting) < self._room:
                return True
            if self._closed or not self._drop_oldest:
                self._refused += 1
                self._drop(ALREADY_SHUTDOWN if self._closed else QUEUE_FULL, item)
                return False
            self._evict()
            return True

    def _crowded(self) -> int:
        """See to what an append may have brought about: a time to note, one item too many, or work for a sleeper."""
        with self._lock:
            self._settle_room()
            waiting = len(self._waiting)
            is_wanted = waiting >= self._wake_at
            if is_wanted:
                # Not with every item until somebody comes, but again: a worker on the very edge of sleep hears nothing,
                # and there may be no thread now.
                self._wake_at = min(2 * waiting + 1, self._never)
                self._changed.notify_all()
            self._note_arrivals()
        if is_wanted and self._rouse is not None and not self._closed:
            self._rouse()
        return len(self._waiting)

    def _look_out(self) -> None:
        """Say anew at how many waiting there is a time to note, somebody to wake or one too many."""
        self._look_at = min(self._next_arrival - self._gone + 1, self._wake_at, self._never)

    def _note_arrivals(self) -> None:
        """Note when those came in of whom it is to be known, and forget what stands for nobody any more."""
        while self._next_arrival < self._gone + len(self._waiting):
            self._arrivals.append(_Arrival(self._next_arrival, self._now()))
            self._next_arrival += self._batch_size
        marks = self._arrivals
        # No call in the test: a signal handler could come in there, and forget them itself.
        while marks and marks[0] is not marks[-1] and marks[1].number <= self._gone:
            marks.popleft()
        self._look_out()

    def _settle_room(self) -> None:
        """Take out what came in at the same time as others, or as the queue was closed; before anything is counted."""
        while len(self._waiting) > self._max_size:
            if self._drop_oldest:
                self._evict()
            else:
                self._refuse_newest(QUEUE_FULL)
        while self._abandoned and self._closed and self._waiting:
            self._refuse_newest(ALREADY_SHUTDOWN)

    def _refuse_newest(self, reason: str) -> None:
        self._refused += 1
        self._drop(reason, self._waiting.pop())

    def _evict(self) -> None:
        self._gone += 1
        self._lost += 1
        self._look_out()
        self._drop(QUEUE_FULL, self._waiting.popleft())

    def refuse(self, reason: str, item: Item) -> None:
        """Account for an item that was offered and dropped before it could wait."""
        with self._lock:
            self._refused += 1
            self._drop(reason, item)

    def stats(self) -> LaneStats:
        """Return all counters as of one instant."""
        with self._lock:
            self._settle_room()
            waiting = len(self._waiting)  # once: others append meanwhile
            return LaneStats(
                offered=self._gone + waiting + self._refused,
                exported=self._exported,
                dropped=dict(self._dropped),
                failed=self._failed,
                pending=waiting + self._in_flight,
            )

    @property
    def waiting(self) -> int:
        """How many wait now, never more than there is room for."""
        return len(self._waiting)

    @property
    def has_batch(self) -> bool:
        """Whether as many wait as leave together: then nothing else need be asked."""
        return len(self._waiting) >= self._batch_size

    @property
    def lost_any(self) -> bool:
        """Whether any was lost until now, or refused."""
        return bool(self._lost or self._refused)

    @property
    def in_flight(self) -> int:
        """How many were taken and are not settled yet."""
        return self._in_flight

    # -- the worker's side -----------------------------------------------------------------------------------------

    def due_ns(self, now: MonotonicNs, *, linger_ns: int, since_ns: MonotonicNs | None = None) -> int | None:
        """Return in how many nanoseconds a batch is due (0: now), or ``None`` while nothing waits.

        A batch is due now when, in this order: a full batch waits, or ``linger_ns`` are over since the oldest came
        (since ``since_ns``, if given), or a flush wants one that waits, or the queue is closing.
        """
        with self._lock:
            if not self._waiting:
                return None
            if self.has_batch:
                return 0
            self._note_arrivals()  # who has come in may not have got so far
            lingers_ns = linger_ns - (now - (self._arrivals[0].at_ns if since_ns is None else since_ns))
            if lingers_ns <= 0 or self._wanted > self._gone or self._closed:
                return 0
            return lingers_ns

    def take(self) -> list[Item]:
        """Move a batch of the oldest from waiting to in flight; :meth:`settle` must follow."""
        with self._lock:
            self._settle_room()
            self._first_in_flight = self._gone
            waiting = len(self._waiting)  # once: others append meanwhile
            calls = min(self._batch_size, waiting)
            batch = list(starmap(self._waiting.popleft, repeat((), calls)))  # a loop would take twice as long
            self._leave(calls, is_last=calls == waiting)
            self._flying = batch
            self._in_flight = calls
            return batch

    def _leave(self, count: int, *, is_last: bool) -> None:
        """Say that ``count`` wait no longer; where that were all, the next to come in will be the oldest."""
        self._gone += count
        if is_last:
            self._next_arrival = self._gone  # what is noted of others goes when that one is noted
        self._look_out()  # first said, then looked: nobody comes in between unseen
        self._note_arrivals()

    def settle(self, outcome: ExportOutcome) -> None:
        """Account for the batch in flight, which ``outcome`` must cover exactly."""
        with self._lock:
            total, exported = outcome.total, outcome.exported
            self._in_flight -= total
            self._exported += exported
            self._failed += outcome.failed
            lost = total - exported
            self._lost += lost
            for reason, count in outcome.dropped.items():
                self._dropped[reason] += count
            flown, self._flying = self._flying, []
            if self._note is not None and lost:
                self._note_lost(flown, outcome)
            if self._watchers:
                self._changed.notify_all()

    def wait(self, timeout_s: float | None, *, rouse_at: int = 1) -> None:
        """Sleep until something changes or ``rouse_at`` items wait, at most ``timeout_s`` s; needs :meth:`hold`."""
        self._wake_at = rouse_at
        self._look_out()  # first said, then looked: nobody comes in between unseen
        if len(self._waiting) < rouse_at:
            with self._watching():
                self._changed.wait(timeout_s)
        self._wake_at = self._never
        self._look_out()

    def unattended(self) -> None:
        """Nobody works on it any more: the next to offer something rouses somebody."""
        with self._lock:
            self._wake_at = 1
            self._look_out()

    def hold(self) -> AbstractContextManager[bool]:
        """Return the lock, for a worker that must test and wait in one step."""
        return self._lock

    def wake(self) -> None:
        """Wake whoever waits for a change."""
        with self._lock:
            self._changed.notify_all()

    # -- flush and shutdown ----------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether new items are refused."""
        return self._closed

    def request_flush(self) -> FlushMark:
        """Make everything accepted so far due, and return the point to wait for."""
        with self._lock:
            self._settle_room()
            self._wanted = self._gone + len(self._waiting)
            self._changed.notify_all()
            return FlushMark(self._wanted, self._lost)

    def reached(self, mark: FlushMark) -> bool:
        """Whether nothing accepted before ``mark`` waits or is in flight."""
        with self._lock:
            waits = bool(self._waiting) and self._gone < mark.position
            flies = bool(self._in_flight) and self._first_in_flight < mark.position
            return not (waits or flies)

    def lost_since(self, mark: FlushMark) -> int:
        """Return how many accepted items were lost since ``mark`` was taken; refusals of later ones do not count."""
        with self._lock:
            return self._lost - mark.lost

    def close(self) -> None:
        """Refuse whatever is offered from now on, and make what waits due."""
        with self._lock:
            self._closed, self._room = True, 0
            self._never = self._wake_at = self._look_at = 0  # who looked before and comes in all the same is seen to
            self._changed.notify_all()

    def wait_until_empty(self, timeout_s: float) -> bool:
        """Wait until nothing is pending, at most ``timeout_s`` seconds; return whether that came true."""
        return self.wait_until(lambda: not (self._waiting or self._in_flight), timeout_s)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``condition`` is true, at most ``timeout_s`` seconds; return whether it is."""
        with self._lock, self._watching():
            return self._changed.wait_for(condition, max(timeout_s, 0.0))

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Be told of what is settled; most often nobody is there to be told."""
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    def abandon(self) -> int:
        """Drop whatever still waits, counted under ``shutdown_timeout``; return how many that were."""
        with self._lock:
            self._settle_room()
            self._abandoned, count = True, len(self._waiting)
            self._lost += count
            for _ in range(count):
                self._drop(SHUTDOWN_TIMEOUT, self._waiting.popleft())
            self._leave(count, is_last=True)
            self._changed.notify_all()
            return count

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
