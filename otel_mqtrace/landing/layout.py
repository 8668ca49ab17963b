"""The layout of a landing: directories, file names and fields of raw trace messages on disk.

::

    <landing>/native/_manifest.jsonl                    one line per finished part
    <landing>/native/date=2026-11-21/part-<stamp>-<writer>-<n>.parquet | .jsonl
    <landing>/native/date=2026-11-21/.part-….inprogress being written, locked; readers skip names with a dot

``date`` is the UTC day of ``arrival_ms``. A part never changes once it has its name. Shared with the Spark jobs'
sources; standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final, TypeVar

from otel_mqtrace._clock import LAST_MS

if TYPE_CHECKING:
    from pathlib import Path, PurePath

    AnyPath = TypeVar("AnyPath", bound=PurePath)

NATIVE_DIRECTORY: Final = "native"
MANIFEST_NAME: Final = "_manifest.jsonl"
"""The underscore keeps Spark, and every reader with Hadoop's manners, from taking it for data."""
IN_PROGRESS_SUFFIX: Final = ".inprogress"
FIELDS: Final = ("source", "partition", "offset", "arrival_ms", "keys", "body")
"""Columns of a parquet part, in order; a JSON line has the same fields with ``body_base64`` for ``body``."""
BODY_BASE64: Final = "body_base64"


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedMessage:
    """One trace message as it is landed.

    ``source`` is the trace topic; ``partition`` and ``offset`` are ``None`` when no broker gave them; ``arrival_ms`` is
    epoch milliseconds (the broker's timestamp, else when it was landed); ``keys`` is the key set joined by one space;
    ``body`` is the message's value, byte for byte.
    """

    source: str
    arrival_ms: int
    body: bytes
    keys: str | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LandedPart:
    """One finished part: where it is, relative to ``native/``, and what it holds."""

    file: str
    messages: int
    body_bytes: int
    first_arrival_ms: int
    last_arrival_ms: int


def native_directory(landing: AnyPath) -> AnyPath:
    """Return where the native side of ``landing`` lies."""
    return landing / NATIVE_DIRECTORY


def manifest_path(landing: Path) -> Path:
    """Return the manifest: JSON lines of :class:`LandedPart`, appended as parts are finished."""
    return native_directory(landing) / MANIFEST_NAME


def date_of(arrival_ms: int) -> str:
    """Return the UTC day of ``arrival_ms`` as ``YYYY-MM-DD``; the nearest there is of a time that no calendar has.

    Where producers stamp their messages themselves, some stamp microseconds.
    """
    stamp_ms = min(max(arrival_ms, 0), LAST_MS)
    return datetime.fromtimestamp(stamp_ms // 1000, tz=timezone.utc).date().isoformat()


def part_directory(landing: Path, date: str) -> Path:
    """Return the directory of one day's parts."""
    return native_directory(landing) / f"date={date}"


def in_progress_path(part: Path) -> Path:
    """Return the name ``part`` has while it is being written, in the same directory so that renaming is atomic."""
    return part.with_name(f".{part.name}{IN_PROGRESS_SUFFIX}")


def finished_name(name: str) -> str:
    """Return the name that the part of :func:`in_progress_path` ``name`` gets once it is complete."""
    return name.removeprefix(".").removesuffix(IN_PROGRESS_SUFFIX)
