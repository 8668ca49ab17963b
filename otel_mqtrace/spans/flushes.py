"""This module knows who waits for a flush of one lane, what each of them waits for, and when they may be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from otel_mqtrace._clock import MonotonicNs
    from otel_mqtrace.spans.queue import FlushMark, SpanQueue

__all__ = ["Flush", "Flushes"]


@dataclass(eq=False, slots=True)
class Flush:
    """One caller's wish that all accepted before ``mark`` is out by ``deadline``; ``done`` is ``None`` until known."""

    mark: FlushMark
    deadline: MonotonicNs
    done: bool | None = None


class Flushes:
    """The flushes of one lane, guarded by its queue's lock; ``closed`` says that its exporter was shut down."""

    def __init__(self, queue: SpanQueue[Any], closed: threading.Event) -> None:
        self._queue = queue
        self._closed = closed
        self._waiting: list[Flush] = []

    def request(self, deadline: MonotonicNs) -> Flush:
        """Make everything accepted so far due, and remember who waits for it; :meth:`forget` must follow."""
        with self._queue.hold():
            flush = Flush(self._queue.request_flush(), deadline)
            self._waiting.append(flush)
        return flush

    @property
    def asked(self) -> bool:
        """Whether anybody waits for one."""
        return bool(self._waiting)

    def due(self) -> list[Flush]:
        """Return the flushes that only the exporter's own is missing to; needs the queue's lock."""
        return [flush for flush in self._waiting if flush.done is None and self._queue.reached(flush.mark)]

    def answer(self, flush_exporter: Callable[[MonotonicNs], bool]) -> None:
        """Flush the exporter, once for all who wait for it, and tell them how it went."""
        with self._queue.hold():
            due = [(flush, self._queue.lost_since(flush.mark) == 0) for flush in self.due()]
        if not due:
            return
        flushed = False
        try:
            flushed = flush_exporter(max(flush.deadline for flush, _ in due))
        finally:
            for flush, nothing_lost in due:
                flush.done = flushed and nothing_lost
            self._queue.wake()

    def wait(self, flush: Flush, timeout_s: float) -> bool:
        """Wait until ``flush`` is answered; ``True`` only if all of it was exported and the exporter flushed."""
        with self._queue.hold():
            self._queue.wait_until(lambda: flush.done is not None or self._closed.is_set(), timeout_s)
            if flush.done is None and self._closed.is_set():  # and so flushed for the last time
                return self._queue.reached(flush.mark) and not self._queue.lost_since(flush.mark)
            return flush.done is True

    def forget(self, flush: Flush) -> None:
        """Nobody waits for it any more."""
        with self._queue.hold():
            if flush in self._waiting:
                self._waiting.remove(flush)
