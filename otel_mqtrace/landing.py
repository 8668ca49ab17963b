"""A landing, raw trace messages on disk: its layout, its writer, and the recovery of unfinished parts."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import itertools
import json
import os
import secrets
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar

from otel_mqtrace._clock import LAST_MS, NS_PER_MS, SystemClock
from otel_mqtrace._errors import NO_ROOM, MissingExtraError, UsageError, describe_write_fix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import PurePath

    from typing_extensions import Self

    from otel_mqtrace._clock import Clock, MonotonicNs

    AnyPath = TypeVar("AnyPath", bound=PurePath)


# <landing>/native/_manifest.jsonl                                         one line per finished part
# <landing>/native/date=2026-11-21/part-<stamp>-<writer>-<n>.parquet       or .jsonl; date is the UTC day of arrival_ms
# <landing>/native/date=2026-11-21/.part-<stamp>-<writer>-<n>.….inprogress being written, and locked
NATIVE_DIRECTORY: Final = "native"
MANIFEST_NAME: Final = "_manifest.jsonl"
"""The underscore keeps Spark, and every reader with Hadoop's manners, from taking it for data."""
MANIFEST_DIRECTORY: Final = "_manifest"
"""Instead of that in a store, which appends to no file: an object of counts for each part."""
PARTS: Final = f"date=*/part-[0-9]*-{'[0-9a-f]' * 12}-[0-9]*.*"
"""The pattern of parts, below ``native``; of the files that others partition by date it matches none."""
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


def count_part(file: str, bodies: Iterable[tuple[int, int]]) -> LandedPart:
    """Return the counts of a part whose bodies arrived at these epoch milliseconds and have so many bytes."""
    counted = sorted(bodies)
    return LandedPart(
        file=file,
        messages=len(counted),
        body_bytes=sum(size for _, size in counted),
        first_arrival_ms=counted[0][0] if counted else 0,
        last_arrival_ms=counted[-1][0] if counted else 0,
    )


def bodies_of_lines(lines: Iterable[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the arrival and the bytes of each body of a JSON-lines part, without damaged lines and a torn last one.

    Raises ``ValueError``, ``KeyError`` or ``TypeError`` for a damaged first line: the part may be another program's.
    """
    for number, line in enumerate(lines):
        try:
            if line.endswith(b"\n"):
                fields = json.loads(line)
                yield fields["arrival_ms"], len(base64.b64decode(fields[BODY_BASE64]))
        except (ValueError, KeyError, TypeError):
            if number == 0:
                raise


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


def _in_progress_path(part: Path) -> Path:
    """Return the name ``part`` has while it is being written, in the same directory so that renaming is atomic."""
    return part.with_name(f".{part.name}{IN_PROGRESS_SUFFIX}")


def finished_name(name: str) -> str:
    """Return the name that the part of :func:`_in_progress_path` ``name`` gets once it is complete."""
    return name.removeprefix(".").removesuffix(IN_PROGRESS_SUFFIX)


def claim(file: IO[bytes]) -> bool:
    """Lock ``file`` for this process's life, or until it is closed; ``False`` when another process holds it."""
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync_path(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk: a file is only safe when its name is."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _create_locked(path: Path) -> IO[bytes]:
    """Create ``path``, unbuffered, and lock it; again where another process removed it as an orphan in between."""
    while True:
        file = path.open("wb", buffering=0)
        with contextlib.suppress(OSError):  # a file system without locks, where nothing is ever adopted
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if path.exists():
            return file
        file.close()


def adopt_orphans(landing: Path) -> tuple[LandedPart, ...]:
    """Give every orphaned JSON-lines part its final name, and remove the orphans that hold nothing whole.

    An orphan is unlocked: its writer died. One of JSON lines often holds the start of the handler that crashed the
    process; the messages of an unfinished parquet file were never committed. Return what the adopted parts hold, a torn
    last line not counted.
    """
    adopted = []
    for path in sorted(native_directory(landing).glob(f"date=*/.part-*{IN_PROGRESS_SUFFIX}")):
        try:
            with path.open("rb") as file:
                if not claim(file):
                    continue
                if path.name.endswith(f".jsonl{IN_PROGRESS_SUFFIX}") and path.stat().st_size:
                    part = count_part(f"{path.parent.name}/{finished_name(path.name)}", bodies_of_lines(file))
                    path.rename(path.with_name(finished_name(path.name)))
                    adopted.append(part)
                else:
                    path.unlink()
        except (OSError, ValueError, KeyError, TypeError):  # finished by another process in between, or not ours
            continue
    return tuple(adopted)


class _Part(ABC):
    """A part being filled, under a name that readers pass over, and the counts of what it holds."""

    def __init__(self, final: Path, opened_ns: MonotonicNs) -> None:
        self.opened_ns = opened_ns
        self.messages = self.body_bytes = 0
        self.path = _in_progress_path(final)
        self._final = final
        self._arrivals_ms: list[int] = []  # first and last only

    def append(self, messages: Sequence[LandedMessage]) -> None:
        """Add all ``messages`` or, raising, none."""
        self._add(messages)
        self.messages += len(messages)
        self.body_bytes += sum(len(message.body) for message in messages)
        seen_ms = [*self._arrivals_ms, *(message.arrival_ms for message in messages)]
        self._arrivals_ms = [min(seen_ms), max(seen_ms)]

    def finish(self) -> LandedPart:
        """Flush to the disk, give the file its final name, flush that, and return its counts."""
        self._close()
        for directory in itertools.islice(self._final.parents, 3):  # of the day, native, and the landing
            with contextlib.suppress(OSError):  # some file systems cannot
                sync_path(directory)
        return LandedPart(
            file=f"{self._final.parent.name}/{self._final.name}",
            messages=self.messages,
            body_bytes=self.body_bytes,
            first_arrival_ms=self._arrivals_ms[0],
            last_arrival_ms=self._arrivals_ms[-1],
        )

    @abstractmethod
    def _add(self, messages: Sequence[LandedMessage]) -> None: ...
    @abstractmethod
    def _close(self) -> None: ...
    @abstractmethod
    def is_removed(self) -> bool: ...
    @abstractmethod
    def release(self) -> None: ...


class _JsonLinesPart(_Part):
    """One JSON object per line. Unbuffered on purpose: a fork finds nothing to write twice, a crash loses no line."""

    def __init__(self, final: Path, opened_ns: MonotonicNs) -> None:
        super().__init__(final, opened_ns)
        self._file = _create_locked(self.path)
        self._good_bytes = 0
        self._torn = False

    def _add(self, messages: Sequence[LandedMessage]) -> None:
        """Add ``messages`` in one write, so that a crash tears at most the last line; take a failed write back."""
        self._cut()
        lines = b"".join(map(json_line, messages))
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError:
            self._torn = True
            self._cut()
            raise
        self._good_bytes += len(lines)

    def _close(self) -> None:
        """Flush to the disk, rename, and only then close: closing releases the lock that keeps others away."""
        self._cut()
        os.fsync(self._file.fileno())
        self.path.rename(self._final)
        self._file.close()

    def is_removed(self) -> bool:
        """Return whether another program removed or moved the file: it cannot be finished under its name."""
        try:
            self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return True
        return False

    def release(self) -> None:
        """Close the file without writing another byte: nothing is in it, or the parent of this fork still owns it."""
        self._file.close()

    def _cut(self) -> None:
        """Remove what a failed write left, so that the next line does not continue a torn one."""
        if self._torn:
            self._file.seek(self._good_bytes)
            self._file.truncate()
            self._torn = False


_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def json_line(message: LandedMessage) -> bytes:
    """Return ``message`` as a line of a JSON-lines part."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in FIELDS if name != "body"}
    head = _to_json(fields).encode("utf-8", "replace")
    # base64 needs no escapes: a scan for them would take longer than the encoding, as would ``%`` on 100 kB
    return b"".join((head[:-1], b',"', BODY_BASE64.encode(), b'":"', base64.b64encode(message.body), b'"}\n'))


def landed_table(messages: Sequence[LandedMessage]) -> Any:
    """Return ``messages`` as a table with the schema of a parquet part.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional extra
    except ImportError as error:
        raise MissingExtraError("landing in parquet (unlike --landing-format jsonl)", "reconcile") from error
    columns: Any = (
        *(("source", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
        *(("arrival_ms", pa.int64()), ("keys", pa.string()), ("body", pa.binary())),
    )
    named = {name: [getattr(message, name) for message in messages] for name in FIELDS}
    return pa.table(named, schema=pa.schema(columns))


class _ParquetPart(_Part):
    """One row group; the schema of the landing. In memory until it is finished: half a parquet file cannot be read."""

    def __init__(self, final: Path, opened_ns: MonotonicNs) -> None:
        super().__init__(final, opened_ns)
        self._tables: list[Any] = [landed_table(())]

    def _add(self, messages: Sequence[LandedMessage]) -> None:
        self._tables.append(landed_table(messages))

    def _close(self) -> None:
        """Write the file, flush it to the disk, rename it, and only then release its lock."""
        import pyarrow as pa  # noqa: PLC0415 - optional extra
        from pyarrow import parquet  # noqa: PLC0415 - optional extra

        with _create_locked(self.path) as file:
            table = pa.concat_tables(self._tables)
            parquet.write_table(table, self.path.absolute(), compression="zstd")  # it replaces a first ~
            os.fsync(file.fileno())
            self.path.rename(self._final)

    def is_removed(self) -> bool:
        return False  # there is none yet

    def release(self) -> None:
        self._tables.clear()


_PART_FORMATS: Final[Mapping[str, type[_Part]]] = {"jsonl": _JsonLinesPart, "parquet": _ParquetPart}
"""Suffix → a part of that format."""


_MOST_DAYS: Final = 64  # a process may have 1024 open files


class LandingWriter:
    """Writes one landing. Any number of writers, processes and forks may share a directory: no two parts share a name.

    With its first part, a writer also finishes those of killed writers. Messages stay with the writer until their part
    is finished, so that the next attempt repeats a failed one. ``format`` is ``jsonl`` (standard library) or
    ``parquet`` (the ``reconcile`` extra). A part is due at ``max_part_bytes`` of bodies or ``max_part_age_ms``; larger
    parts mean fewer files, shown later. Not thread-safe.
    """

    def __init__(
        self,
        landing: str | Path,
        *,
        format: str = "jsonl",  # noqa: A002 - the users' word
        max_part_bytes: int = 64 * 1024 * 1024,
        max_part_age_ms: float = 10_000,
        clock: Clock | None = None,
    ) -> None:
        if format not in _PART_FORMATS:
            raise UsageError(f"unknown landing format {format!r}: choose one of {', '.join(_PART_FORMATS)}")
        self.landing = Path(landing)
        self._suffix = format
        self._max_part_bytes = max_part_bytes
        self._max_part_age_ns = int(max_part_age_ms * NS_PER_MS)
        self._clock = clock or SystemClock()
        self._open: dict[str, _Part] = {}
        self._adopted = False
        self._manifest = manifest_path(self.landing)
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
        with self._writing_errors():
            for date, of_day in days.items():
                self._append(date, of_day)

    @property
    def due(self) -> bool:
        """Return whether a part is full or old, or more days are open than there should be files."""
        return len(self._open) > _MOST_DAYS or any(map(self._is_due, self._open.values()))

    def finish(self) -> tuple[LandedPart, ...]:
        """Finish every open part: from here on readers see all that was written. Return the parts finished now.

        Raises:
            UsageError: a part cannot be finished; it stays open for the next attempt.
        """
        return self._finish(list(self._open))

    def finish_due(self) -> tuple[LandedPart, ...]:
        """Finish the parts that are full or old, as :meth:`finish` does."""
        return self._finish([date for date, part in self._open.items() if self._is_due(part)])

    def drop_removed(self) -> int:
        """Drop the open parts whose files another program removed or moved; return how many messages they held."""
        removed = {date: part for date, part in self._open.items() if part.is_removed()}
        for date, part in removed.items():
            part.release()
            del self._open[date]
        return sum(part.messages for part in removed.values())

    def after_fork(self) -> None:
        """In a child: leave the parent's parts to the parent and begin with a name of one's own."""
        for part in self._open.values():
            part.release()
        self._open.clear()
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def _append(self, date: str, messages: Sequence[LandedMessage]) -> None:
        if date in self._open:
            self._open[date].append(messages)
            return
        part = self._start(date)
        try:
            part.append(messages)
        except BaseException:
            # Removed before its lock is released: what is unlocked may be adopted.
            part.path.unlink(missing_ok=True)
            part.release()
            raise
        self._open[date] = part  # so no part is ever without messages

    def _start(self, date: str) -> _Part:
        directory = native_directory(self.landing) / f"date={date}"
        directory.mkdir(parents=True, exist_ok=True)
        if not self._adopted:
            self._adopted = True
            for orphan in adopt_orphans(self.landing):
                self._list_in_manifest(orphan)
        stamp_ms = self._clock.wall_ns() // NS_PER_MS
        final = directory / f"part-{stamp_ms}-{self._writer_id}-{next(self._ordinals)}.{self._suffix}"
        return _PART_FORMATS[self._suffix](final, self._clock.monotonic_ns())

    def _is_due(self, part: _Part) -> bool:
        age_ns = self._clock.monotonic_ns() - part.opened_ns
        return part.body_bytes >= self._max_part_bytes or age_ns >= self._max_part_age_ns

    def _finish(self, dates: Iterable[str]) -> tuple[LandedPart, ...]:
        finished = []
        with self._writing_errors():
            for date in dates:
                finished.append(self._open[date].finish())
                del self._open[date]
                self._list_in_manifest(finished[-1])
        return tuple(finished)

    @contextlib.contextmanager
    def _writing_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise not_writable(self.landing, error) from error

    def _list_in_manifest(self, part: LandedPart) -> None:
        """Append one line in one write: lines of several processes do not mix. Readers open what is not listed."""
        line = json.dumps(asdict(part), separators=(",", ":")).encode() + b"\n"
        # a full disk, another user's manifest: the part itself is complete
        with contextlib.suppress(OSError), self._manifest.open("ab", buffering=0) as manifest:
            manifest.write(line)


def not_writable(landing: object, error: OSError) -> UsageError:
    """Return what to raise when the system or a store refuses what is written to ``landing``."""
    is_full = error.errno in NO_ROOM  # pyarrow's own text wraps the system's
    reason = os.strerror(error.errno or 0).lower() if is_full else error.strerror or str(error)
    # the reason of a store names the fix itself
    fix = f"; {describe_write_fix(error, 'choose another directory')}" if is_full or isinstance(landing, Path) else ""
    return UsageError(f"cannot write to the landing {landing}: {reason}{fix}")
