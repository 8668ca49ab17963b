"""Write a landing into a store: a part is one upload, there whole or not at all."""

from __future__ import annotations

import json
import shutil
import weakref
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Final

from bridge.storage.paths import DamagedInputError, naming_damage, open_parquet, sorted_glob
from otel_mqtrace._clock import SystemClock
from otel_mqtrace.landing import (
    MANIFEST_DIRECTORY,
    LandedPart,
    LandingWriter,
    bodies_of_lines,
    count_part,
    native_directory,
    not_writable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bridge.storage.paths import AnyPath, StorePath
    from otel_mqtrace.landing import LandedMessage


_ABANDONED_NS: Final = 3_600_000_000_000
_DAYS_LOOKED_AT: Final = 7


def open_landing(landing: AnyPath, format: str) -> Landing:  # noqa: A002 - the users' word
    """Return what writes a landing, on this machine or in a store."""
    return LandingWriter(landing, format=format) if isinstance(landing, Path) else StoreLanding(landing, format=format)


class StoreLanding:
    """Writes one landing; any number of writers may share it. A part is filled on this machine and uploaded when due.

    The first part also completes a killed writer's: parts without counts get them, half-written files of more than an
    hour are removed; their messages were never committed and will be read again. ``format`` is ``jsonl`` or
    ``parquet``. Not thread-safe.
    """

    def __init__(self, landing: StorePath, *, format: str) -> None:  # noqa: A002 - the users' word
        self._landing, self._native = landing, native_directory(landing)
        self._here = Path(mkdtemp(prefix="mqtrace-landing-"))
        weakref.finalize(self, shutil.rmtree, self._here, ignore_errors=True)
        self._writer = LandingWriter(self._here, format=format)
        self._finished: list[LandedPart] = []  # that the store has not taken yet
        self._is_recovered = False
        try:
            landing.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_writable(self._landing, error) from error

    def write(self, messages: Sequence[LandedMessage]) -> None:
        """Append ``messages`` to the parts of their days, as :class:`LandingWriter` does."""
        self._writer.write(messages)

    @property
    def due(self) -> bool:
        """Return whether a part is full or old."""
        return self._writer.due

    def finish(self) -> tuple[LandedPart, ...]:
        """Upload everything written: from here on readers see it. Return the parts.

        Raises:
            UsageError: the store did not take a part; what it did not take is kept for the next attempt.
        """
        self._finished += self._writer.finish()
        taken = []
        try:
            if self._finished and not self._is_recovered:
                self._recover()
            while self._finished:
                part = self._finished[0]
                file = native_directory(self._here) / part.file
                (self._native / part.file).write_bytes(file.read_bytes())
                self._write_manifest(part)
                file.unlink()
                taken.append(self._finished.pop(0))
        except OSError as error:
            raise not_writable(self._landing, error) from error
        return tuple(taken)

    def _write_manifest(self, part: LandedPart) -> None:
        counts = self._native / MANIFEST_DIRECTORY / f"{part.file.replace('/', '-')}.json"
        counts.write_text(json.dumps(asdict(part), separators=(",", ":")))

    def _recover(self) -> None:
        """Complete the latest days of the landing."""
        counted = {path.name for path in sorted_glob(self._native / MANIFEST_DIRECTORY, "*.json")}
        for day in sorted_glob(self._native, "date=*")[-_DAYS_LOOKED_AT:]:
            for path in sorted_glob(day, "part-*"):
                if f"{path.parent.name}-{path.name}.json" not in counted:
                    # not ours, or damaged: its readers name it
                    with suppress(ValueError, KeyError, TypeError, DamagedInputError):
                        part = count_part(path.relative_to(self._native).as_posix(), _bodies_of(path))
                        self._write_manifest(part)
            for path in sorted_glob(day, ".part-*"):
                if SystemClock().wall_ns() - path.stat().st_mtime_ns > _ABANDONED_NS:
                    path.unlink(missing_ok=True)
        self._is_recovered = True


Landing = LandingWriter | StoreLanding


def _bodies_of(path: AnyPath) -> Iterator[tuple[int, int]]:
    if path.suffix == ".parquet":
        with naming_damage(path):
            rows = open_parquet(path).read(columns=["arrival_ms", "body"]).to_pylist()
        return ((row["arrival_ms"], len(row["body"])) for row in rows)
    return bodies_of_lines(path.read_bytes().splitlines(keepends=True))
