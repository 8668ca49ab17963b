"""A bounded queue of spans and its account: spans exported, dropped for a named reason, failed, or pending.

``offered = exported + Σ dropped + failed + pending`` holds at every instant; each lane counts for itself, because a
span that reached one exporter may be lost on the way to the other.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypedDict, TypeVar

from otel_mqtrace._clock import MonotonicNs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from otel_mqtrace._clock import Clock

QUEUE_FULL: Final = "queue_full"
"""The queue had no room: the newest span was refused, or the oldest evicted under that policy."""
ALREADY_SHUTDOWN: Final = "already_shutdown"
"""Offered after ``shutdown()``."""
SHUTDOWN_TIMEOUT: Final = "shutdown_timeout"
"""Still queued when ``shutdown()`` ran out of time."""
TOO_LARGE: Final = "too_large"
"""An exporter found it larger than a message may be, even alone."""
ENCODE_ERROR: Final = "encode_error"
"""An exporter could not encode it in its format."""
TRUNCATED: Final = "truncated"
"""OpenTelemetry's span limits had taken something of its trace record: what is left is exported, if it has a name."""
EXPORT_FAILED: Final = "export_failed"
"""What the ledger and the self-metrics call ``failed``."""
WANTS_ERROR: Final = "wants_error"
"""The exporter's own ``wants`` raised."""


class LaneStats(TypedDict):
    """What was handed to one lane since this process began (a fork starts over), not what was written from it.

    Each hand-over counts: an ended span once; a lane whose exporter ``exports_starts`` counts a span it wants at its
    start as well as at its end, so that one process span is 2 offered. It does not matter how many messages it is for.
    """

    offered: int
    exported: int
    dropped: dict[str, int]
    failed: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOutcome:
    """The outcome of one batch, in spans, that an exporter with partial success returns from ``take_outcome()``.

    ``lost`` may name lost spans of the batch, position → reason, for the ledger. ``messages`` has those of them of
    which a part arrived: position → messages that did not, which may be none.
    """

    exported: int = 0
    failed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)
    messages: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, spans: int, lost: Mapping[int, str], messages: Mapping[int, int] | None = None) -> Self:
        """Return the outcome of so many ``spans``; ``lost`` names every lost one, a failed one by ``EXPORT_FAILED``."""
        dropped = Counter(lost.values())
        failed = dropped.pop(EXPORT_FAILED, 0)
        return cls(exported=spans - len(lost), failed=failed, dropped=dict(dropped), lost=lost, messages=messages or {})

    @property
    def total(self) -> int:
        """The size of the batch it accounts for."""
        return self.exported + self.failed + sum(self.dropped.values())


def count_lost(stats: LaneStats) -> int:
    """Return how many spans will never arrive: dropped for any reason, or failed."""
    return stats["failed"] + sum(stats["dropped"].values())


# -- the queue -----------------------------------------------------------------------------------------------------
DropPolicy = Literal["newest", "oldest"]
Item = TypeVar("Item")

_CHECK_WORKER_EVERY: Final = 64
"""Refused items between two calls of ``wake_worker``: the queue may be full because no thread could start."""
_ALWAYS_REPORTED: Final = (QUEUE_FULL, ALREADY_SHUTDOWN, SHUTDOWN_TIMEOUT, TOO_LARGE)


class FlushMark(NamedTuple):
    """A position in the order of acceptance, and how many accepted items had been lost when it was taken."""

    position: int
    lost: int


class SpanQueue(Generic[Item]):
    """First in, first out, at most ``max_size`` waiting; items in flight take no room; ``batch_size`` are due at once.

    A re-entrant lock guards the account: a finalizer or a signal handler may end a span while the same thread is in
    here. Handlers run at calls, so counters that belong together change without a call between them.

    An item that finds room is appended without the lock (docs/rationale.md). Threads that pass the check together may
    exceed the bound, or come after the close: :meth:`_drop_surplus` drops the surplus before anything is counted.

    Full, ``drop_policy`` ``newest`` refuses an item, ``oldest`` evicts the one that has waited longest. ``note(reason,
    item, messages)`` is called under the lock for each lost item and only counts; ``messages`` is how many of the item,
    ``None`` for all. ``wake_worker`` is called without it.
    """

    def __init__(  # noqa: PLR0913 - settings by their names
        self,
        *,
        max_size: int,
        batch_size: int,
        clock: Clock,
        drop_policy: DropPolicy,
        note: Callable[[str, Item, int | None], None],
        wake_worker: Callable[[], object] | None,
    ) -> None:
        self._max_size = self._limit = max_size
        self._batch_size = batch_size
        self._now = clock.monotonic_ns
        self._drop_oldest = drop_policy == "oldest"
        self._note = note
        self._wake_worker = wake_worker
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[Item] = deque()
        self._oldest_ns = MonotonicNs(0)  # since when the oldest has waited, or earlier
        self._last_take = 0, MonotonicNs(0)  # the number of the next item then, and when
        self._in_flight: list[Item] = []
        self._first_in_flight = 0
        self.closed = self._abandoned = False
        self._never = max_size + 1
        self._wake_at = self._never if wake_worker is None else 1
        self._removed = 0  # accepted items that wait no longer: the number of the oldest that does
        self._flush_to = 0
        self._lost = 0  # of the accepted ones
        self._refused = self._exported = self._failed = 0
        self._dropped: defaultdict[str, int] = defaultdict(int, dict.fromkeys(_ALWAYS_REPORTED, 0))

    # -- the application's side ------------------------------------------------------------------------------------

    def offer(self, item: Item) -> bool:
        """Accept ``item`` or drop it under a reason; never blocks. Return whether it was accepted."""
        waiting = self._waiting
        if len(waiting) >= self._limit and not self._make_room(item):
            return False
        if not waiting:
            self._oldest_ns = self._now()
        waiting.append(item)
        if len(waiting) >= self._wake_at:
            self._wake()
        return True

    def _make_room(self, item: Item) -> bool:
        """Evict the oldest where that is the policy, else refuse ``item``; return whether there is room now."""
        with self._lock:
            if len(self._waiting) < self._limit:
                return True
            if self._drop_oldest and not self.closed:
                self._evict(QUEUE_FULL)
                return True
            self.refuse(ALREADY_SHUTDOWN if self.closed else QUEUE_FULL, item)
            is_unattended = self._refused % _CHECK_WORKER_EVERY == 0 and not self.closed
        if is_unattended and self._wake_worker is not None:
            self._wake_worker()
        return False

    def _evict(self, reason: str) -> None:
        evicted = self._waiting.popleft()
        self._removed += 1
        self._lost += 1
        self._drop(reason, evicted)

    def _wake(self) -> None:
        """Wake the worker, and again at twice as many: it may miss a call while it falls asleep, or fail to start."""
        with self._lock:
            self._wake_at = min(2 * len(self._waiting) + 1, self._never)
            self._changed.notify_all()
        if self._wake_worker is not None and not self.closed:
            self._wake_worker()

    def _drop_surplus(self) -> None:
        """Drop what threads appended together, or after the close, beyond the bound; needs the lock."""
        while len(self._waiting) > self._max_size:
            if self._drop_oldest:
                self._evict(QUEUE_FULL)
            else:
                self.refuse(QUEUE_FULL, self._waiting.pop())
        while self._abandoned and self._waiting:
            self.refuse(ALREADY_SHUTDOWN, self._waiting.pop())

    def refuse(self, reason: str, item: Item) -> None:
        """Count an item that was offered and dropped before it could wait."""
        with self._lock:
            self._refused += 1
            self._drop(reason, item)

    def _drop(self, reason: str, item: Item) -> None:
        self._dropped[reason] += 1
        self._note(reason, item, None)

    def stats(self) -> LaneStats:
        """Return all counters as of one instant."""
        with self._lock:
            self._drop_surplus()
            removed, refused, dropped = self._removed, self._refused, dict(self._dropped)
            waiting = len(self._waiting)  # once: other threads append meanwhile
            # Meanwhile a finalizer came in, or a thread appended to a full queue.
            if (removed, refused) != (self._removed, self._refused) or waiting > self._max_size:
                return self.stats()
            return LaneStats(
                offered=removed + waiting + refused,
                exported=self._exported,
                dropped=dropped,
                failed=self._failed,
                pending=waiting + len(self._in_flight),
            )

    @property
    def waiting(self) -> int:
        """How many wait now."""
        return len(self._waiting)

    @property
    def in_flight(self) -> int:
        """How many were taken and are not settled yet."""
        return len(self._in_flight)

    @property
    def has_batch(self) -> bool:
        """Return whether a full batch waits."""
        return len(self._waiting) >= self._batch_size

    # -- the worker's side -----------------------------------------------------------------------------------------

    def due_ns(self, now: MonotonicNs, *, linger_ns: int, since_ns: MonotonicNs | None = None) -> int | None:
        """Return in how many nanoseconds a batch is due (0: now), or ``None`` while nothing waits.

        A batch is due when it is full, when ``linger_ns`` have passed since the oldest item came (or since
        ``since_ns``), when a flush covers the oldest item, or when the queue is closed. Of items that a batch left
        behind only a bound is known: their batch may be due early, never late.
        """
        with self._lock:
            if not self._waiting:
                return None
            if self.has_batch or self._flush_to > self._removed or self.closed:
                return 0
            return max(0, linger_ns - (now - (self._oldest_ns if since_ns is None else since_ns)))

    def take(self, batches: int = 1) -> list[Item]:
        """Move the oldest, up to ``batches`` full batches, to in flight; :meth:`settle` must always follow."""
        with self._lock:
            if self._in_flight:  # Ctrl-C came before settle() could begin
                self.settle(None)
            self._drop_surplus()
            count = min(batches * self._batch_size, len(self._waiting))
            if count > self._batch_size:
                count -= count % self._batch_size
            taken: list[Item] = []
            try:
                for _ in range(count):
                    taken.append(self._waiting.popleft())  # noqa: PERF401 - it must be known after Ctrl-C
            finally:
                count = len(taken)
                self._first_in_flight = self._removed
                self._removed += count
                self._in_flight = taken
            came_before, at_ns = self._last_take
            if self._removed >= came_before:  # what is left came after the last take
                self._oldest_ns = at_ns
            self._last_take = self._removed + len(self._waiting), self._now()
            return taken

    def settle(self, outcome: ExportOutcome | None) -> None:
        """Account for what is in flight; ``outcome`` must cover it exactly. ``None``: all of it failed."""
        with self._lock:
            items = self._in_flight
            if self._abandoned and not items:  # counted by abandon_in_flight()
                return
            outcome = outcome or ExportOutcome(failed=len(items))
            exported, failed, lost = outcome.exported, outcome.failed, outcome.total - outcome.exported
            self._in_flight = []
            self._exported += exported
            self._failed += failed
            self._lost += lost
            for reason, count in outcome.dropped.items():
                self._dropped[reason] += count
            if lost:
                for position, reason in _losses(items, outcome):
                    self._note(reason, items[position], outcome.messages.get(position))
            self._changed.notify_all()

    def wait(self, timeout_s: float, *, wake_at: int = 1) -> None:
        """Sleep until a change or until ``wake_at`` items wait, at most ``timeout_s`` seconds; needs :meth:`hold`."""
        self._wake_at = wake_at
        if len(self._waiting) < wake_at:  # tested after the line above: an earlier item wakes no thread
            self._changed.wait(timeout_s)
        self._wake_at = self._never

    def worker_stopped(self) -> None:
        """Have the next item wake a worker: the last one has stopped."""
        with self._lock:
            self._wake_at = 1

    def hold(self) -> AbstractContextManager[bool]:
        """Return the lock, for a worker that must test and wait in one step."""
        return self._lock

    def notify(self) -> None:
        """Wake every thread that waits for a change."""
        with self._lock:
            self._changed.notify_all()

    # -- flush and shutdown ----------------------------------------------------------------------------------------

    def request_flush(self) -> FlushMark:
        """Make everything accepted so far due, and return the point to wait for."""
        with self._lock:
            self._drop_surplus()
            self._flush_to = self._removed + len(self._waiting)
            self._changed.notify_all()
            return FlushMark(self._flush_to, self._lost)

    def has_reached(self, mark: FlushMark) -> bool:
        """Return whether nothing accepted before ``mark`` waits or is in flight."""
        with self._lock:
            return self._removed >= mark.position and not (self._in_flight and self._first_in_flight < mark.position)

    def count_lost_since(self, mark: FlushMark) -> int:
        """Return how many accepted items were lost since ``mark``; refusals of later ones do not count."""
        with self._lock:
            return self._lost - mark.lost

    def close(self) -> None:
        """Refuse every later item, and make what waits due."""
        with self._lock:
            self.closed, self._limit = True, 0
            self._changed.notify_all()

    def wait_until(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """Wait until ``condition`` is true, at most ``timeout_s`` seconds."""
        with self._lock:
            self._changed.wait_for(condition, max(timeout_s, 0.0))

    def abandon(self) -> None:
        """Drop whatever still waits under ``shutdown_timeout``."""
        with self._lock:
            self._drop_surplus()
            self._abandoned, count = True, len(self._waiting)
            for _ in range(count):
                self._evict(SHUTDOWN_TIMEOUT)
            self._changed.notify_all()

    def abandon_in_flight(self) -> None:
        """Drop what an export still holds under ``shutdown_timeout``; its end counts nothing then."""
        with self._lock:
            items, self._in_flight = self._in_flight, []
            self._abandoned = True
            self._lost += len(items)
            for item in items:
                self._drop(SHUTDOWN_TIMEOUT, item)
            self._changed.notify_all()


def _losses(items: Sequence[object], outcome: ExportOutcome) -> Iterable[tuple[int, str]]:
    """Return position and reason of each lost item: as the exporter reported, else as many of the newest."""
    lost = outcome.lost
    if len(lost) != outcome.total - outcome.exported:
        reasons = [EXPORT_FAILED] * outcome.failed
        reasons += [reason for reason, count in outcome.dropped.items() for _ in range(count)]
        lost = dict(zip(range(len(items) - len(reasons), len(items)), reasons, strict=True))
    return [(position, reason) for position, reason in lost.items() if 0 <= position < len(items)]
