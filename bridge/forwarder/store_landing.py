"""Write a landing into a store: a part is one upload, there whole or not at all."""

from __future__ import annotations

import base64
import itertools
import json
import secrets
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.storage import open_parquet, sorted_glob
from otel_mqtrace._clock import NS_PER_MS, SystemClock
from otel_mqtrace._errors import UsageError
from otel_mqtrace.landing import (
    BODY_BASE64,
    MANIFEST_DIRECTORY,
    NATIVE_DIRECTORY,
    PART_FORMATS,
    LandedPart,
    LandingWriter,
    date_of,
    json_line,
    landed_table,
    not_writable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bridge.storage import AnyPath, StorePath
    from otel_mqtrace.landing import LandedMessage


_ABANDONED_NS: Final = 3_600_000_000_000
_MOST_AGE_NS: Final = 10_000_000_000
_MOST_BYTES: Final = 64 << 20
_DAYS_LOOKED_AT: Final = 7


def open_landing(landing: AnyPath, format: str) -> LandingWriter | StoreLanding:  # noqa: A002 - the users' word
    """Return what writes a landing, on this machine or in a store."""
    return LandingWriter(landing, format=format) if isinstance(landing, Path) else StoreLanding(landing, format=format)


class StoreLanding:
    """Writes one landing; any number of writers may share it. Messages are held in memory until their part is due.

    The first part also completes a killed writer's: parts without counts get them, half-written files of more than an
    hour are removed; their messages were never committed and will be read again. ``format`` is ``jsonl`` or
    ``parquet``. A part is due at 64 MiB of bodies or ten seconds after its first message. Not thread-safe.
    """

    def __init__(self, landing: StorePath, *, format: str) -> None:  # noqa: A002 - the users' word
        if format not in PART_FORMATS:
            raise UsageError(f"unknown landing format {format!r}: choose one of {', '.join(PART_FORMATS)}")
        self._landing, self._native = landing, landing / NATIVE_DIRECTORY
        self._suffix = format
        self._clock = SystemClock()
        self._held: dict[str, list[LandedMessage]] = {}
        self._held_bytes = 0
        self._since_ns: int | None = None
        self._writer_id, self._ordinals = secrets.token_hex(6), itertools.count()
        self._is_recovered = False
        try:
            landing.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise not_writable(self._landing, error) from error

    def write(self, messages: Sequence[LandedMessage]) -> None:
        """Hold ``messages`` for the parts of their days."""
        for message in messages:
            self._held.setdefault(date_of(message.arrival_ms), []).append(message)
            self._held_bytes += len(message.body)
        if messages and self._since_ns is None:
            self._since_ns = self._clock.monotonic_ns()

    @property
    def due(self) -> bool:
        """Return whether enough is held, or long enough."""
        if self._since_ns is None:
            return False
        is_old = self._clock.monotonic_ns() - self._since_ns >= _MOST_AGE_NS
        return is_old or self._held_bytes >= _MOST_BYTES

    def finish(self) -> tuple[LandedPart, ...]:
        """Upload everything held: from here on readers see it. Return the parts.

        Raises:
            UsageError: the store did not take a part; what it did not take is held for the next attempt.
        """
        try:
            if self._held and not self._is_recovered:
                self._recover()
            parts = tuple(map(self._upload, sorted(self._held)))
        except OSError as error:
            raise not_writable(self._landing, error) from error
        self._held_bytes, self._since_ns = 0, None
        return parts

    def _upload(self, date: str) -> LandedPart:
        messages = self._held[date]
        stamp_ms = self._clock.wall_ns() // NS_PER_MS
        path = (
            self._native / f"date={date}" / f"part-{stamp_ms}-{self._writer_id}-{next(self._ordinals)}.{self._suffix}"
        )
        path.write_bytes(_packed(messages, self._suffix))
        del self._held[date]
        arrivals_ms = [message.arrival_ms for message in messages]
        return self._write_manifest(path, arrivals_ms, sum(len(message.body) for message in messages))

    def _write_manifest(self, path: AnyPath, arrivals_ms: Sequence[int], body_bytes: int) -> LandedPart:
        part = LandedPart(
            file=path.relative_to(self._native).as_posix(),
            messages=len(arrivals_ms),
            body_bytes=body_bytes,
            first_arrival_ms=min(arrivals_ms, default=0),
            last_arrival_ms=max(arrivals_ms, default=0),
        )
        counts = self._native / MANIFEST_DIRECTORY / f"{path.parent.name}-{path.name}.json"
        counts.write_text(json.dumps(asdict(part), separators=(",", ":")))
        return part

    def _recover(self) -> None:
        """Complete the latest days of the landing."""
        counted = {path.name for path in sorted_glob(self._native / MANIFEST_DIRECTORY, "*.json")}
        for day in sorted_glob(self._native, "date=*")[-_DAYS_LOOKED_AT:]:
            for path in sorted_glob(day, "part-*"):
                if f"{path.parent.name}-{path.name}.json" not in counted:
                    bodies = list(_bodies_of(path))
                    self._write_manifest(
                        path, [arrival_ms for arrival_ms, _ in bodies], sum(size for _, size in bodies)
                    )
            for path in sorted_glob(day, ".part-*"):
                if self._clock.wall_ns() - path.stat().st_mtime_ns > _ABANDONED_NS:
                    path.unlink(missing_ok=True)
        self._is_recovered = True


def _packed(messages: Sequence[LandedMessage], suffix: str) -> Any:
    if suffix == "jsonl":
        return b"".join(map(json_line, messages))
    from pyarrow import parquet  # noqa: PLC0415 - optional extra

    buffer = BytesIO()
    parquet.write_table(landed_table(messages), buffer, compression="zstd")
    return buffer.getbuffer()


def _bodies_of(path: AnyPath) -> Iterator[tuple[int, int]]:
    if path.suffix == ".parquet":
        rows = open_parquet(path).read(columns=["arrival_ms", "body"])
        yield from ((row["arrival_ms"], len(row["body"])) for row in rows.to_pylist())
        return
    for line in map(json.loads, path.read_bytes().splitlines()):
        yield line["arrival_ms"], len(base64.b64decode(line[BODY_BASE64]))
