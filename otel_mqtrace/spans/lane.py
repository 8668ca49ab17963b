"""One exporter's lane: its queue, its worker, the rule when a batch leaves, flush and shutdown.

There is one lane per exporter, so that a slow Collector never delays Kafka, nor the reverse (``docs/rationale.md``).
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import NS_PER_MS, MonotonicNs
from otel_mqtrace._errors import reraise_from_signal_handler
from otel_mqtrace._workers import Worker
from otel_mqtrace.spans.exporter_side import ExporterSide
from otel_mqtrace.spans.queue import WANTS_ERROR, FlushMark, SpanQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.spans.loss_ledger import Ledger
    from otel_mqtrace.spans.queue import LaneStats
    from otel_mqtrace.spans.settings import LaneSettings

_IDLE_S: Final = 1.0
"""Longest sleep of an idle worker; it also paces ``on_idle``."""
_GATHER_S: Final = 0.02
"""How long a full batch waits for others that may go with it: each export takes the interpreter's lock from callers."""


@dataclass(eq=False, slots=True)
class Flush:
    """One caller's flush of everything accepted before ``mark``; ``done`` is ``None`` until the result is known."""

    mark: FlushMark
    deadline: MonotonicNs
    done: bool | None = None


class Lane:
    """Everything between ``offer`` and one exporter, with the additions of :mod:`otel_mqtrace.spans.exporter_side`."""

    def __init__(
        self, exporter: SpanExporter, *, name: str, settings: LaneSettings, clock: Clock, ledger: Ledger
    ) -> None:
        self.name = name
        self.exporter = exporter
        self._side = ExporterSide(exporter, name=name, settings=settings)
        self.exports_starts = self._side.exports_starts
        self.takes_records = self._side.takes_records
        self.wants: Callable[[ReadableSpan], bool] | None = None if self._side.wants is None else self._is_wanted
        """Whether the exporter takes a span (``None``: every span); if it raises, the span is a counted loss."""
        self.exporter_type = self._side.component_type
        self.capacity = settings.max_queue_size
        self.on_exported: Callable[[int, bool], None] | None = None
        self._settings = settings
        self._linger_ns = int(settings.schedule_delay_millis * NS_PER_MS)
        self._clock = clock
        self._ledger = ledger
        self._close_by = MonotonicNs(0)
        self._begin()

    def _begin(self) -> None:
        """Start from nothing, as a new process does."""
        settings = self._settings
        self._losses = self._ledger.add_lane(side=self._side.ledger_side, component=self.name)
        self.queue: SpanQueue[ReadableSpan] = SpanQueue(
            max_size=settings.max_queue_size,
            batch_size=settings.max_export_batch_size,
            clock=self._clock,
            drop_policy=settings.drop_policy,
            note=self._losses.note,
            wake_worker=self._ensure_worker if settings.background else None,
        )
        self.offer: Callable[[ReadableSpan], bool] = self.queue.offer
        """Queue a span or count it as dropped: constant time, never raises, never blocks."""
        self._last_batch_ns = MonotonicNs(-self._linger_ns)  # the first span leaves at once under ``last_batch``
        self._worker = Worker(f"mqtrace {self.name}", self._work)
        self._exporting = threading.Lock()
        self._closing = threading.Lock()  # acquired once, by the thread that shuts the exporter down
        self._exporter_closed = threading.Event()
        self._flushes: list[Flush] = []  # guarded by the queue's lock

    # -- the application's thread ----------------------------------------------------------------------------------

    def _is_wanted(self, span: ReadableSpan) -> bool:
        try:
            return self._side.wants is None or self._side.wants(span)
        except Exception:  # noqa: BLE001 - a foreign exporter's mistake must not reach the application
            reraise_from_signal_handler()
            self.queue.refuse(WANTS_ERROR, span)
            return False

    def stats(self) -> LaneStats:
        """Return the lane's account as of one instant."""
        return self.queue.stats()

    # -- the worker --------------------------------------------------------------------------------------------------

    def run_once(self, now: MonotonicNs, *, until: MonotonicNs | None = None) -> int:
        """Export the batch that is due at ``now``, in one call; return how many spans that were.

        That is one batch, or several full ones for an exporter that takes them together. The exporter is never called
        twice at once; another thread's export is waited for, at most ``until``. Raises what the exporter
        raised unless it is an ``Exception``; the batch is counted as failed first.
        """
        with self._exclusive(until) as is_held:
            if not is_held or self._due_ns(now) != 0:
                return 0
            self._last_batch_ns = now
            outcome = None
            began_ns = self._clock.monotonic_ns()
            try:
                batch = self.queue.take(self._side.batches_at_once)
                outcome = self._side.export(batch)
            finally:
                self.queue.settle(outcome)
        if self.on_exported is not None:
            self.on_exported(self._clock.monotonic_ns() - began_ns, outcome.failed == 0)
        self.report_losses()
        return len(batch)

    def _due_ns(self, now: MonotonicNs) -> int | None:
        """Return in how many nanoseconds a batch leaves: it is full, has lingered, is to be flushed, or is the last.

        Under ``last_batch`` it lingers since the last batch left, so that after a quiet time a span leaves at once and
        alone (RocketMQ since 5.3.1), else since its oldest span came.
        """
        since_ns = self._last_batch_ns if self._settings.linger_from == "last_batch" else None
        return self.queue.due_ns(now, linger_ns=self._linger_ns, since_ns=since_ns)

    def _work(self) -> None:
        """Export until the lane is closed and empty, then shut the exporter down: no lane waits for another one's."""
        queue = self.queue
        try:
            while self._step(queue):
                pass
        finally:
            queue.worker_stopped()
        try:
            self.report_losses(last=True)  # a shutdown that timed out before the last batch has reported without it
        finally:
            with self._exporting:  # no export is running
                self._close_exporter()

    def _step(self, queue: SpanQueue[ReadableSpan]) -> bool:
        try:
            if queue.has_batch:
                self._gather(queue)
            elif not self._await_work(queue):
                return False
            if self._flushes:
                self._complete_flushes()
            self.run_once(self._clock.monotonic_ns())
        except BaseException as error:  # noqa: BLE001 - SystemExit from an exporter must not end the lane for good
            self._side.log_exception("export", error)
        return True

    def _gather(self, queue: SpanQueue[ReadableSpan]) -> None:
        """Wait a moment for as many spans as the exporter takes at once, unless a caller waits for what is there."""
        settings = self._settings
        # a full queue refuses spans and wakes no worker: half of it is enough to go
        at_once = min(self._side.batches_at_once * settings.max_export_batch_size, settings.max_queue_size // 2)
        with queue.hold():
            if not (queue.closed or self._flushes):
                queue.wait(_GATHER_S, wake_at=at_once)

    def _await_work(self, queue: SpanQueue[ReadableSpan]) -> bool:
        """Sleep until a batch or a flush may be due; return ``False`` when none ever will be."""
        with queue.hold():
            if self._reached_flushes():
                return True
            due_ns = self._due_ns(self._clock.monotonic_ns())
            if due_ns == 0:
                return True
            if due_ns is None and queue.closed:
                return False
            if due_ns is None:
                queue.wait(_IDLE_S)
            else:
                queue.wait(min(due_ns / 1e9, _IDLE_S), wake_at=self._settings.max_export_batch_size)
            is_idle = self._due_ns(self._clock.monotonic_ns()) is None and not self._reached_flushes()
        if is_idle:
            self.report_losses()
            with self._exporting:
                self._side.idle()
        return True

    def report_losses(self, *, last: bool = False) -> None:
        """Report what was lost since the last report; ``last``: no later one will follow."""
        self._losses.report(self.stats(), self._clock.monotonic_ns(), last=last)

    # -- flush -------------------------------------------------------------------------------------------------------

    def request_flush(self, deadline: MonotonicNs) -> Flush:
        """Request the export of accepted spans and the exporter's flush; return at once, before :meth:`await_flush`."""
        with self.queue.hold():
            if self.queue.closed:
                deadline = min(deadline, self._close_by)  # after that nothing is exported any more
            flush = Flush(self.queue.request_flush(), deadline)
            self._flushes.append(flush)
        self._ensure_worker()
        return flush

    def await_flush(self, flush: Flush) -> bool:
        """Wait for ``flush``; ``True`` only if all was exported in time, nothing lost, and the exporter flushed too.

        Without a worker the calling thread exports, and raises what the exporter raised unless it is an ``Exception``:
        it may be the application's own Ctrl-C.
        """
        queue, closed = self.queue, self._exporter_closed
        try:
            if self._worker.is_current:
                return False  # an exporter that flushes its own processor would wait for itself
            if self._has_to_work_here():
                self._export_here(lambda: queue.has_reached(flush.mark), flush.deadline)
                self._complete_flushes(flush.deadline)
            queue.wait_until(
                lambda: flush.done is not None or closed.is_set(), self._remaining_ms(flush.deadline) / 1e3
            )
            if flush.done is None and closed.is_set():  # the shutdown was the exporter's last flush
                return queue.has_reached(flush.mark) and not queue.count_lost_since(flush.mark)
            return flush.done is True
        finally:
            with queue.hold():
                if flush in self._flushes:  # not in a child that was forked meanwhile
                    self._flushes.remove(flush)

    def _reached_flushes(self) -> list[Flush]:
        """Return the flushes that only the exporter's own is missing to; needs the queue's lock."""
        return [flush for flush in self._flushes if flush.done is None and self.queue.has_reached(flush.mark)]

    def _complete_flushes(self, until: MonotonicNs | None = None) -> None:
        """Flush the exporter once for every flush that is reached."""
        with self._exclusive(until) as is_held:
            if not is_held:
                return
            with self.queue.hold():
                due = [(flush, self.queue.count_lost_since(flush.mark) == 0) for flush in self._reached_flushes()]
            if not due:
                return
            is_flushed = False
            try:
                is_flushed = self._side.flush(self._remaining_ms(max(flush.deadline for flush, _ in due)))
            finally:
                for flush, nothing_lost in due:
                    flush.done = is_flushed and nothing_lost
                self.queue.notify()

    @contextmanager
    def _exclusive(self, until: MonotonicNs | None) -> Iterator[bool]:
        """Be the only thread at the exporter; ``False`` when another one still was at ``until``.

        The worker waits as long as it takes. A caller may find an export that hangs, or interrupt its own from a signal
        handler: it has a deadline.
        """
        wait_s = -1 if until is None else min(self._remaining_ms(until) / 1e3, threading.TIMEOUT_MAX)
        if not self._exporting.acquire(timeout=wait_s):
            yield False
            return
        try:
            yield True
        finally:
            self._exporting.release()

    # -- shutdown and fork -------------------------------------------------------------------------------------------

    def close(self, deadline: MonotonicNs) -> None:
        """Refuse new spans and let the worker drain and then shut the exporter down; returns at once."""
        self._close_by = deadline
        self.queue.close()
        self._ensure_worker()

    def finish(self) -> None:
        """Wait for what :meth:`close` began, as long as it allowed, and count what is left as dropped.

        An exporter that is still exporting then is shut down in the middle of it, which may free it.
        """
        if self._has_to_work_here():
            self._export_here(lambda: self.stats()["pending"] == 0, self._close_by)
        if self._worker.running and not self._worker.is_current:
            self._exporter_closed.wait(self._remaining_ms(self._close_by) / 1e3)
        self.queue.abandon()
        self.report_losses(last=True)
        if not self._closing.locked():
            # On a separate thread: an exporter that hangs in there must not hang the application's exit.
            closer = Worker(f"mqtrace {self.name} shutdown", self._close_exporter)
            if not closer.ensure_running():
                self._close_exporter()
        self._exporter_closed.wait(self._remaining_ms(self._close_by) / 1e3)
        self._worker.join(self._remaining_ms(self._close_by) / 1e3)
        # With time left, the export that is unfinished called this shutdown itself, and goes on after it.
        if not self._remaining_ms(self._close_by):
            self.give_up()

    def give_up(self) -> None:
        """Count what waits or is in an export as dropped, and report it: nothing will be exported any more."""
        self.queue.abandon()
        self.queue.abandon_in_flight()
        self.report_losses(last=True)

    def after_fork(self) -> None:
        """Start over in a child: own locks, an empty queue, no thread yet; the exporter's ``after_fork`` is called."""
        was_closed = self.queue.closed
        self._begin()
        if was_closed:
            self.queue.close()
            self._closing.acquire()  # the parent's to close
            self._exporter_closed.set()
        self._side.after_fork()

    def _ensure_worker(self) -> bool:
        """Start the worker unless it runs; return ``False`` when the calling thread has to do the work."""
        if not self._settings.background or self._exporter_closed.is_set():
            return False
        return self._worker.ensure_running()

    def _has_to_work_here(self) -> bool:
        """Return whether no worker runs, so that the calling thread exports; never after the exporter's shutdown."""
        return not (self._exporter_closed.is_set() or self._ensure_worker())

    def _export_here(self, done: Callable[[], bool], deadline: MonotonicNs) -> None:
        while not done() and self._clock.monotonic_ns() < deadline:
            self.run_once(self._clock.monotonic_ns(), until=deadline)

    def _close_exporter(self) -> None:
        if not self._closing.acquire(blocking=False):
            return
        try:
            self._side.shutdown(self._remaining_ms(self._close_by))
        finally:
            self._exporter_closed.set()
            self.queue.notify()

    def _remaining_ms(self, deadline: MonotonicNs) -> float:
        return max(0.0, (deadline - self._clock.monotonic_ns()) / NS_PER_MS)
