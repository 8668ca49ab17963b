"""This module knows one exporter's lane: its queue, its worker, the rule when a batch leaves and how every batch ends.

One lane per exporter, so that a slow Collector never delays Kafka, nor the reverse (``docs/rationale.md``).
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import MonotonicNs
from otel_mqtrace.spans.exporter_side import ExporterSide
from otel_mqtrace.spans.flushes import Flush, Flushes
from otel_mqtrace.spans.losses import LossWatch
from otel_mqtrace.spans.queue import SpanQueue
from otel_mqtrace.spans.stats import WANTS_ERROR, ExportOutcome
from otel_mqtrace.spans.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.spans.ledger import Ledger
    from otel_mqtrace.spans.losses import OnDrop
    from otel_mqtrace.spans.settings import LaneSettings
    from otel_mqtrace.spans.stats import LaneStats

__all__ = ["Flush", "Lane"]

_logger = logging.getLogger(__name__)
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_IDLE_S: Final = 1.0
"""Longest sleep of an idle worker: bounds the delay if a finaliser ate a wake-up, and paces ``on_idle``."""


class _Alone:
    """A lock held within a block, for which it waits so long; what ``with`` gives says whether it came to be held."""

    __slots__ = ("_is_held", "_lock", "_wait_s")

    def __init__(self, lock: threading.Lock, wait_s: float) -> None:
        self._lock = lock
        self._wait_s = wait_s
        self._is_held = False

    def __enter__(self) -> bool:
        self._is_held = self._lock.acquire(timeout=self._wait_s)
        return self._is_held

    def __exit__(self, *_: object) -> None:
        if self._is_held:
            self._lock.release()


class Lane:
    """Everything between ``offer`` and one exporter.

    :mod:`otel_mqtrace.spans.exporter_side` lists what an exporter may add to OpenTelemetry's interface.
    """

    def __init__(  # noqa: PLR0913 - collaborators by their names
        self,
        exporter: SpanExporter,
        *,
        name: str,
        settings: LaneSettings,
        clock: Clock,
        ledger: Ledger | None = None,
        on_drop: OnDrop | None = None,
    ) -> None:
        self.name = name
        self.exporter = exporter
        self._side = ExporterSide(exporter, name=name, export_timeout_ms=settings.export_timeout_ms)
        self.exports_starts = self._side.exports_starts
        self.wants: Callable[[ReadableSpan], bool] | None = None if self._side.wants is None else self._wanted
        """Whether the exporter has any use for a span; one that raises loses it, counted. ``None``: it has for all."""
        self.exporter_type = self._side.component_type
        self.on_exported: Callable[[int, bool], None] | None = None
        self._settings = settings
        self._batch_size = settings.max_export_batch_size
        self._linger_ns = int(settings.schedule_delay_ms * _NS_PER_MS)
        self._clock = clock
        self._ledger = ledger
        self._on_drop = on_drop
        self._close_by = MonotonicNs(0)
        self._begin()

    def _begin(self) -> None:
        """Start from nothing, as a new process does."""
        ledger = self._ledger
        book = None if ledger is None else ledger.book(side=self._side.ledger_side, component=self.name)
        self._queue: SpanQueue[ReadableSpan] = SpanQueue(
            max_size=self._settings.max_queue_size,
            batch_size=self._batch_size,
            clock=self._clock,
            drop_policy=self._settings.drop_policy,
            note=None if book is None else book.note,
            rouse=self._ensure_worker if self._settings.background else None,
        )
        self.offer: Callable[[ReadableSpan], int] = self._queue.offer
        """Queue a span or count it as dropped: constant time, never raises, never waits for anybody."""
        self._left_ns = MonotonicNs(-self._linger_ns)  # nothing has left yet: what comes first has waited long enough
        self._worker = Worker(f"mqtrace {self.name}", self._work)
        self._exporting = threading.Lock()
        self._closing = threading.Lock()  # taken once, by whoever shuts the exporter down
        self._exporter_closed = threading.Event()
        self._losses = LossWatch(self.name, on_drop=self._on_drop, ledger=self._ledger)
        self._flushes = Flushes(self._queue, self._exporter_closed)

    # -- the application's thread ----------------------------------------------------------------------------------

    def _wanted(self, span: ReadableSpan) -> bool:
        try:
            return self._side.wants is None or self._side.wants(span)
        except Exception:  # noqa: BLE001 - a foreign exporter's mistake must not reach the application
            self._queue.refuse(WANTS_ERROR, span)
            return False

    def stats(self) -> LaneStats:
        """Return the lane's account as of one instant."""
        return self._queue.stats()

    @property
    def waiting(self) -> int:
        """How many spans are in the queue now: pending, but not in flight."""
        return self._queue.waiting

    @property
    def in_flight(self) -> int:
        """How many spans the exporter has in its hands now."""
        return self._queue.in_flight

    # -- the worker --------------------------------------------------------------------------------------------------

    def ready(self, now: MonotonicNs) -> bool:
        """Whether a batch leaves at ``now``: a full one waits, or one has lingered, or a flush asked, or closing.

        Lingered: the oldest span has waited for the delay or, under the rule ``last_batch``, the delay is over since
        the last batch left, so that after a quiet time a span leaves at once and alone (RocketMQ since 5.3.1).
        """
        return self._queue.has_batch or self._due_ns(now) == 0

    def run_once(self, now: MonotonicNs, *, until: MonotonicNs | None = None) -> int:
        """Export one batch if :meth:`ready`; return how many spans it had. The exporter is never called twice at once.

        Raises whatever the exporter raised that is no ``Exception`` (the batch is counted as failed first). Another
        thread's export is waited for, at most ``until``.
        """
        with self._alone(until) as alone:
            if alone is False or not self.ready(now):
                return 0
            self._left_ns = now
            batch = self._queue.take()
            outcome = None
            began_ns = self._clock.monotonic_ns()
            try:
                outcome = self._side.export(batch)
            finally:
                outcome = outcome or ExportOutcome(failed=len(batch))
                self._queue.settle(outcome)
        if self.on_exported is not None:
            self.on_exported(self._clock.monotonic_ns() - began_ns, outcome.failed == 0)
        if self._queue.lost_any:
            self._tell_losses()
        return len(batch)

    def _due_ns(self, now: MonotonicNs) -> int | None:
        return self._queue.due_ns(
            now,
            linger_ns=self._linger_ns,
            since_ns=self._left_ns if self._settings.linger_from == "last_batch" else None,
        )

    def _work(self) -> None:
        """Export until the lane is closed and empty, then shut the exporter down: no lane waits for another one's."""
        queue = self._queue
        try:
            self._side.stay_untraced()
            while self._step(queue):
                pass
        finally:
            queue.unattended()
        try:
            self._tell_losses(last=True)  # a shutdown that timed out before the last batch has told without it
        finally:
            with self._exporting:  # nobody is in the middle of an export
                self._close_exporter()

    def _step(self, queue: SpanQueue[ReadableSpan]) -> bool:
        """Wait for a batch and export it; return ``False`` when the lane is done."""
        try:
            if not (queue.has_batch or self._await_work(queue)):
                return False
            if self._flushes.asked:
                self._answer_flushes()
            self.run_once(self._clock.monotonic_ns())
        except BaseException:  # SystemExit from an exporter must not end the lane for good
            _logger.debug("%s raised in its lane", self.name, exc_info=True)
        return True

    def _await_work(self, queue: SpanQueue[ReadableSpan]) -> bool:
        """Sleep until a batch or a flush may be due; return ``False`` when none ever will be."""
        with queue.hold():
            if self._flushes.due():
                return True
            due_ns = self._due_ns(self._clock.monotonic_ns())
            if due_ns == 0:
                return True
            if due_ns is None and queue.closed:
                return False
            if due_ns is None:
                queue.wait(_IDLE_S)
            else:
                queue.wait(min(due_ns / _NS_PER_S, _IDLE_S), rouse_at=self._batch_size)
            idle = self._due_ns(self._clock.monotonic_ns()) is None and not self._flushes.due()
        if idle:
            self._idle()
        return True

    def _idle(self) -> None:
        self._tell_losses()
        if self._side.uses_idleness:
            with self._exporting:
                self._side.idle()

    def _tell_losses(self, *, last: bool = False) -> None:
        with self._side.as_before():
            self._losses.look(self.stats(), self._clock.monotonic_ns(), last=last)

    # -- flush, shutdown, fork ---------------------------------------------------------------------------------------

    def request_flush(self, deadline: MonotonicNs) -> Flush:
        """Have the worker export what was accepted until now and then flush the exporter; returns at once.

        :meth:`await_flush` must follow.
        """
        if self._queue.closed:
            deadline = min(deadline, self._close_by)  # later nothing can come of it
        flush = self._flushes.request(deadline)
        self._ensure_worker()
        return flush

    def await_flush(self, flush: Flush) -> bool:
        """Wait for ``flush``; ``True`` only if all was exported in time, nothing lost, and the exporter flushed too.

        Without a worker the calling thread does the work, and what the exporter raises that is no ``Exception`` passes:
        there it may as well be the application's own Ctrl-C.
        """
        try:
            if self._worker.is_current:
                return False  # an exporter that flushes its own processor would wait for itself
            if self._has_to_work_here():
                self._export_here(lambda: self._queue.reached(flush.mark), flush.deadline)
                self._answer_flushes(flush.deadline)
            return self._flushes.wait(flush, self._remaining_ms(flush.deadline) / 1e3)
        finally:
            self._flushes.forget(flush)

    def _answer_flushes(self, until: MonotonicNs | None = None) -> None:
        with self._alone(until) as alone:
            if alone is not False:
                self._flushes.answer(lambda deadline: self._side.flush(self._remaining_ms(deadline)))

    def _alone(self, until: MonotonicNs | None) -> AbstractContextManager[bool | None]:
        """Be the only one at the exporter; ``False`` when somebody else still was at ``until``.

        Ask for ``False`` itself: gevent's lock says ``None`` when it is held. A worker may wait as long as it takes. A
        caller without one may find an export that hangs, or interrupt its own from a signal handler: it has a deadline.
        """
        if until is None:
            return self._exporting
        return _Alone(self._exporting, min(self._remaining_ms(until) / 1e3, threading.TIMEOUT_MAX))

    def close(self, deadline: MonotonicNs) -> None:
        """Refuse new spans and let the worker drain and then shut the exporter down; returns at once."""
        self._close_by = deadline
        self._queue.close()
        self._ensure_worker()

    def finish(self) -> None:
        """Wait for what :meth:`close` began, as long as it allowed, and count what is left as dropped.

        An exporter that is still exporting then is told to shut down in the middle of it, which may free it.
        """
        if self._has_to_work_here():
            self._export_here(lambda: self.stats()["pending"] == 0, self._close_by)
        if self._worker.running and not self._worker.is_current:
            self._exporter_closed.wait(self._remaining_ms(self._close_by) / 1e3)
        self._queue.abandon()
        self._tell_losses(last=True)
        if not self._closing.locked():
            # On a thread of its own: an exporter that hangs in there must not hang the application's exit.
            closer = Worker(f"mqtrace {self.name} shutdown", self._close_exporter)
            if not closer.ensure_running():
                self._close_exporter()
        self._exporter_closed.wait(self._remaining_ms(self._close_by) / 1e3)
        self._worker.join(self._remaining_ms(self._close_by) / 1e3)

    def after_fork(self) -> None:
        """Begin anew in a child: its own locks, an empty queue, no thread yet; the exporter is told if it listens."""
        was_closed = self._queue.closed
        self._begin()
        if was_closed:
            self._queue.close()
            self._closing.acquire()  # the parent's to close
            self._exporter_closed.set()
        self._side.after_fork()

    def _ensure_worker(self) -> bool:
        """Start the worker if it does not live; return ``False`` when the calling thread has to do the work."""
        if not self._settings.background or self._exporter_closed.is_set():
            return False
        return self._worker.ensure_running()

    def _has_to_work_here(self) -> bool:
        """Whether the calling thread is all there is; for an exporter that was shut down nobody works any more."""
        return not (self._exporter_closed.is_set() or self._ensure_worker())

    def _export_here(self, done: Callable[[], bool], deadline: MonotonicNs) -> None:
        """Export in the calling thread, which has no worker to wait for."""
        while not done() and self._clock.monotonic_ns() < deadline:
            self.run_once(self._clock.monotonic_ns(), until=deadline)

    def _close_exporter(self) -> None:
        """Call ``exporter.shutdown``, once, with the time that is left if it takes one."""
        if not self._closing.acquire(blocking=False):
            return
        try:
            self._side.shutdown(self._remaining_ms(self._close_by))
        finally:
            self._exporter_closed.set()
            self._queue.wake()

    def _remaining_ms(self, deadline: MonotonicNs) -> float:
        return max(0.0, (deadline - self._clock.monotonic_ns()) / _NS_PER_MS)
