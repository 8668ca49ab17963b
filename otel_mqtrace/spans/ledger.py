"""This module knows what was lost, for whom and when: the drop ledger that ``mqtrace reconcile --ledger`` reads.

Counts of messages, not of spans, by cause, service, group and ten-second bucket of the span's own time. One file per
process, ``ledger-<host>-<pid>-<hex>.json``, written beside and renamed, whole each time: no reader sees half a one.
Format: ``{"ledger_version": 1, "rows": [{side, component, service, instance, group, bucket_start_ms, bucket_ms, cause,
count}]}``; ``side`` is the side that lost.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace.spans.told import asking

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

    from otel_mqtrace._clock import Clock, MonotonicNs

__all__ = ["BUCKET_MS", "LEDGER_VERSION", "MAX_ROWS", "Ledger", "LossBook"]

_logger = logging.getLogger(__name__)
LEDGER_VERSION: Final = 1
BUCKET_MS: Final = 10_000
MAX_ROWS: Final = 10_000
"""Above it, losses of one cause share the row without service, instance and group; above twice that, also the bucket of
time 0: what is lost last is the count."""
_BUCKET_NS: Final = BUCKET_MS * 1_000_000
_SAVE_EVERY_NS: Final = 5_000_000_000
_LAST_WAIT_S: Final = 0.5


class _Key(NamedTuple):
    """What a loss is counted under; a plain tuple of these is built for each, and spelt out only when somebody asks."""

    cause: str
    ended: bool
    bucket: int
    resource_id: int
    group: object


class LossBook:
    """The losses of one lane. ``note`` is called under the lane's lock, from the application's thread too."""

    def __init__(self, *, side: str, component: str) -> None:
        self._side = side
        self._component = component
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        self._counts: defaultdict[tuple[Any, ...], int] = defaultdict(int)
        self._resources: dict[int, Resource] = {}
        self.changes = 0

    def note(self, cause: str, span: ReadableSpan) -> None:
        """Count the messages of ``span`` as lost by ``cause``; a span lost at its start is a component of its own."""
        self.changes += 1
        try:
            self._count(cause, span)
        except Exception:  # whatever was given for a span, it must not cost the lane its own account
            _logger.debug("a lost span is not in the ledger", exc_info=True)

    def _count(self, cause: str, span: ReadableSpan) -> None:
        ended_ns, resource, told = span.end_time, span.resource, asking(span)
        bucket = (ended_ns or span.start_time or 0) // _BUCKET_NS
        key = (cause, ended_ns is not None, bucket, id(resource), told(semconv.MQTRACE_GROUP_NAME))
        counts = self._counts
        if key not in counts:
            if len(counts) >= MAX_ROWS:
                key = (cause, ended_ns is not None, bucket if len(counts) < 2 * MAX_ROWS else 0, 0, None)
            else:
                self._resources[id(resource)] = resource  # kept, or its id could come to mean another one
        messages = told(semconv.MESSAGING_BATCH_MESSAGE_COUNT)
        lost = messages if isinstance(messages, int) and messages > 0 else 1
        counts[key] += lost  # no call between read and write: a signal handler could come in there

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the format, in the order they were first lost."""
        return [self._row(_Key(*key), count) for key, count in self._counts.copy().items()]

    def _row(self, key: _Key, count: int) -> dict[str, Any]:
        resource = self._resources.get(key.resource_id)
        said = getattr(resource, "attributes", None) or {}
        return {
            "side": self._side,
            "component": self._component if key.ended else f"{self._component} start",
            "service": _text(said.get("service.name")),
            "instance": _text(said.get("service.instance.id")) or self._process,
            "group": _text(key.group),
            "bucket_start_ms": key.bucket * BUCKET_MS,
            "bucket_ms": BUCKET_MS,
            "cause": key.cause,
            "count": count,
        }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


class Ledger:
    """The books of one processor's lanes and, given a directory, their file; never raises."""

    def __init__(self, directory: str | os.PathLike[str] | None, *, clock: Clock) -> None:
        self._directory = None if directory is None else Path(directory)
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._books: list[LossBook] = []
        self._saving = threading.Lock()
        self._saved = 0
        self._save_next_ns = 0
        self._complained = False
        # A container's process often has the name and number of the one before it, whose file must stay.
        self._name = f"ledger-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}.json"

    def book(self, *, side: str, component: str) -> LossBook:
        """Return a new book, part of this ledger from now on."""
        book = LossBook(side=side, component=component)
        self._books.append(book)
        return book

    def rows(self) -> list[dict[str, Any]]:
        """Return everything lost so far."""
        return [row for book in self._books for row in book.rows()]

    def document(self) -> dict[str, Any]:
        """Return the ledger as the format has it, for an endpoint of the application's own."""
        return {"ledger_version": LEDGER_VERSION, "rows": self.rows()}

    def save_due(self, now: MonotonicNs, *, last: bool = False) -> None:
        """Write the file when something new was lost: at most every five seconds, but at once for the ``last`` time."""
        changes = sum(book.changes for book in self._books)
        if self._directory is None or changes == self._saved or not (last or now >= self._save_next_ns):
            return
        # Another lane may be writing; at the last occasion what it has not seen any more must still be written.
        if not self._saving.acquire(timeout=_LAST_WAIT_S if last else 0.0):
            return
        try:
            self._write(self._directory)
            self._saved, self._save_next_ns = changes, now + _SAVE_EVERY_NS
        except Exception as problem:  # noqa: BLE001 - whatever it is, a shutdown of the application goes on
            self._save_next_ns = now + _SAVE_EVERY_NS
            if not self._complained:
                self._complained = True
                _logger.warning("mqtrace: the ledger of losses is not written: %s (said once)", problem)
        finally:
            self._saving.release()

    def after_fork(self) -> None:
        """Begin a ledger of the child's own; the lanes take new books."""
        self._begin()

    def _write(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / self._name
        beside = path.with_suffix(".part")
        try:
            beside.write_text(json.dumps(self.document()), encoding="utf-8")
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink(missing_ok=True)
            raise
