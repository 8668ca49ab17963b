"""The writer of a landing: parts are written under a hidden name, renamed when complete, and listed in the manifest."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError
from otel_mqtrace.landing.layout import (
    LandedPart,
    date_of,
    in_progress_path,
    manifest_path,
    native_directory,
    part_directory,
)
from otel_mqtrace.landing.parts import PART_FORMATS, adopt_orphans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from otel_mqtrace._clock import Clock, MonotonicNs
    from otel_mqtrace.landing.layout import LandedMessage
    from otel_mqtrace.landing.parts import Part

__all__ = ["LandingWriter"]

_NS_PER_MS: Final = 1_000_000


@dataclass
class _OpenPart:
    path: Path
    part: Part
    opened_ns: MonotonicNs
    messages: int = 0
    body_bytes: int = 0
    arrivals_ms: list[int] = field(default_factory=list)  # first and last only

    def append(self, messages: Sequence[LandedMessage]) -> None:
        self.part.append(messages)
        self.messages += len(messages)
        self.body_bytes += sum(len(message.body) for message in messages)
        seen_ms = [*self.arrivals_ms, *(message.arrival_ms for message in messages)]
        self.arrivals_ms = [min(seen_ms), max(seen_ms)]


class LandingWriter:
    """Writes one landing. Any number of writers, processes and forks may share a directory: no two parts share a name.

    With its first part, a writer also finishes those that killed writers left behind. What was written stays with the
    writer until its part is finished: a finishing that failed is tried again by the next one.

    Args:
        landing: The landing's root; ``native/`` is made below it at the first message.
        format: ``jsonl`` (standard library) or ``parquet`` (the ``spark`` extra).
        max_part_bytes: A part is due once its bodies reach this; larger parts mean fewer files, shown later.
        max_part_age_ms: A part is due once it is this old.
        clock: Time.

    Not thread-safe: one thread writes.
    """

    def __init__(
        self,
        landing: str | Path,
        *,
        format: str = "jsonl",  # noqa: A002 - the word users know
        max_part_bytes: int = 64 * 1024 * 1024,
        max_part_age_ms: float = 10_000,
        clock: Clock | None = None,
    ) -> None:
        if format not in PART_FORMATS:
            raise UsageError(f"unknown landing format {format!r}: choose one of {', '.join(PART_FORMATS)}")
        self.landing = Path(landing)
        self._suffix = format
        self._max_part_bytes = max_part_bytes
        self._max_part_age_ns = int(max_part_age_ms * _NS_PER_MS)
        self._clock = clock or SystemClock()
        self._open: dict[str, _OpenPart] = {}
        self._adopted = False
        self._begin()

    def _begin(self) -> None:
        self._writer_id = secrets.token_hex(6)
        self._ordinals = itertools.count()

    def write(self, messages: Sequence[LandedMessage]) -> None:
        """Append ``messages`` to the open parts of their days.

        Raises:
            UsageError: the directory cannot be made or written; nothing of the day that failed was written.
        """
        days: dict[str, list[LandedMessage]] = {}
        for message in messages:
            days.setdefault(date_of(message.arrival_ms), []).append(message)
        with self._told():
            for date, of_day in days.items():
                self._append(date, of_day)

    @property
    def due(self) -> bool:
        """Whether a part is full or old."""
        return any(map(self._is_due, self._open.values()))

    def finish(self) -> tuple[LandedPart, ...]:
        """Finish every open part: from here on readers see all that was written. Return the parts finished now.

        Raises:
            UsageError: a part cannot be finished; it stays open for the next attempt.
        """
        return self._finish_those(lambda _: True)

    def finish_due(self) -> tuple[LandedPart, ...]:
        """Finish the parts that are full or old, as :meth:`finish` does."""
        return self._finish_those(self._is_due)

    def after_fork(self) -> None:
        """In a child: leave the parent's parts to the parent and begin with a name of one's own."""
        for part in self._open.values():
            part.part.let_go()
        self._open.clear()
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def _append(self, date: str, messages: Sequence[LandedMessage]) -> None:
        current = self._open.get(date)
        if current is not None:
            current.append(messages)
            return
        current = self._start(date)
        try:
            current.append(messages)
        except BaseException:
            # Removed before it is let go: what is unlocked may be adopted.
            in_progress_path(current.path).unlink(missing_ok=True)
            current.part.let_go()
            raise
        self._open[date] = current  # so no part is ever without messages

    def _start(self, date: str) -> _OpenPart:
        directory = part_directory(self.landing, date)
        directory.mkdir(parents=True, exist_ok=True)
        if not self._adopted:
            self._adopted = True
            for orphan in adopt_orphans(self.landing):
                self._tell(orphan)
        stamp_ms = self._clock.wall_ns() // _NS_PER_MS
        path = directory / f"part-{stamp_ms}-{self._writer_id}-{next(self._ordinals)}.{self._suffix}"
        part = PART_FORMATS[self._suffix](in_progress_path(path))
        return _OpenPart(path=path, part=part, opened_ns=self._clock.monotonic_ns())

    def _is_due(self, part: _OpenPart) -> bool:
        age_ns = self._clock.monotonic_ns() - part.opened_ns
        return part.body_bytes >= self._max_part_bytes or age_ns >= self._max_part_age_ns

    def _finish_those(self, chosen: Callable[[_OpenPart], bool]) -> tuple[LandedPart, ...]:
        dates = [date for date, part in self._open.items() if chosen(part)]
        with self._told():
            return tuple(map(self._finish, dates))

    def _finish(self, date: str) -> LandedPart:
        part = self._open[date]
        part.part.finish(part.path)
        del self._open[date]
        landed = LandedPart(
            file=part.path.relative_to(native_directory(self.landing)).as_posix(),
            messages=part.messages,
            body_bytes=part.body_bytes,
            first_arrival_ms=part.arrivals_ms[0],
            last_arrival_ms=part.arrivals_ms[-1],
        )
        self._tell(landed)
        return landed

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UsageError(f"cannot write to the landing {self.landing}: {error.strerror or error}") from error

    def _tell(self, part: LandedPart) -> None:
        """Append one line in one write: lines of several processes do not mix."""
        line = json.dumps(asdict(part), separators=(",", ":")).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(manifest_path(self.landing), flags, 0o644)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)
