"""The files of a landing: how a part is filled, and how one that a killed writer left is finished.

A living writer holds a lock on its file, which its death releases. So an unlocked part in progress is an orphan, and
the next writer gives it its final name: it often holds the start of the handler that crashed the process. JSON lines
only; an unfinished parquet file has no footer, and its messages were never committed.
"""

from __future__ import annotations

import base64
import json
import os
from typing import IO, TYPE_CHECKING, Any, Final, Protocol

from otel_mqtrace._errors import MissingExtraError
from otel_mqtrace.landing.layout import BODY_BASE64, FIELDS, IN_PROGRESS_SUFFIX, LandedPart, native_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from otel_mqtrace.landing.layout import LandedMessage

try:
    import fcntl
except ImportError:  # Windows: no advisory locks, hence no adoption
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "LOCKS",
    "PART_FORMATS",
    "JsonLinesPart",
    "ParquetPart",
    "Part",
    "adopt_orphans",
    "claim",
    "json_line",
    "landed_table",
]

LOCKS: Final = fcntl is not None
"""Whether the living can be told from the dead here; without, nothing is ever adopted."""


def claim(file: IO[bytes]) -> bool:
    """Lock ``file`` for this process's life, or until it is closed; ``False`` when another process holds it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def adopt_orphans(landing: Path) -> tuple[LandedPart, ...]:
    """Give every orphaned JSON-lines part its final name; return what they hold, a torn last line not counted.

    Empty ones are passed over: their writer may be just about to lock them.
    """
    if fcntl is None:
        return ()
    adopted = []
    for path in sorted(native_directory(landing).glob(f"date=*/.part-*.jsonl{IN_PROGRESS_SUFFIX}")):
        try:
            with path.open("rb") as file:
                if path.stat().st_size and claim(file):
                    adopted.append(_finish(path, file, native_directory(landing)))
        except (OSError, ValueError, KeyError):  # finished by another process in between, or not ours
            continue
    return tuple(adopted)


def _finish(path: Path, file: IO[bytes], native: Path) -> LandedPart:
    bodies_bytes: list[int] = []
    arrivals_ms: list[int] = []
    for line in file:
        if line.endswith(b"\n"):
            fields = json.loads(line)
            bodies_bytes.append(len(base64.b64decode(fields[BODY_BASE64])))
            arrivals_ms.append(fields["arrival_ms"])
    final = path.with_name(path.name.removeprefix(".").removesuffix(IN_PROGRESS_SUFFIX))
    path.rename(final)
    return LandedPart(
        file=final.relative_to(native).as_posix(),
        messages=len(bodies_bytes),
        body_bytes=sum(bodies_bytes),
        first_arrival_ms=min(arrivals_ms, default=0),
        last_arrival_ms=max(arrivals_ms, default=0),
    )


class Part(Protocol):
    """A file being filled, under a name that readers pass over."""

    def append(self, messages: Sequence[LandedMessage]) -> None:
        """Add all of ``messages`` at the end or, raising ``OSError``, none of them."""
        ...

    def finish(self, final: Path) -> None:
        """Make everything durable and name it ``final``; after an ``OSError`` it may be tried again."""
        ...

    def let_go(self) -> None:
        """Let the file go without writing another byte: nothing is in it, or the parent of this fork still owns it."""
        ...


class JsonLinesPart:
    """One JSON object per line. Unbuffered on purpose: a fork finds nothing to write twice, a crash loses no line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb", buffering=0)
        self._good_bytes = 0
        self._torn = False
        claim(self._file)  # no other process can hold it: it is new, and an empty file is left alone

    def append(self, messages: Sequence[LandedMessage]) -> None:
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

    def finish(self, final: Path) -> None:
        """Flush to the disk, rename, and only then close: closing releases the lock, and what is unlocked is dead."""
        self._cut()
        os.fsync(self._file.fileno())
        if not LOCKS:
            self._file.close()  # Windows renames no open file
        self._path.rename(final)
        self._file.close()

    def let_go(self) -> None:
        """Close this process's descriptor."""
        self._file.close()

    def _cut(self) -> None:
        """Remove what a failed write left, so that the next line does not continue a torn one."""
        if self._torn:
            self._file.seek(self._good_bytes)
            self._file.truncate()
            self._torn = False


def json_line(message: LandedMessage) -> bytes:
    """Return ``message`` as a line of a JSON-lines part."""
    fields: dict[str, Any] = {name: getattr(message, name) for name in FIELDS if name != "body"}
    head = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    # base64 needs no escapes: a scan for them would take longer than the encoding
    return b'%b,"%b":"%b"}\n' % (head[:-1], BODY_BASE64.encode(), base64.b64encode(message.body))


def landed_table(messages: Sequence[LandedMessage]) -> Any:
    """Return ``messages`` as a table with the schema of a parquet part.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional extra
    except ImportError as error:
        raise MissingExtraError("landing in parquet", "reconcile") from error
    columns: Any = (
        *(("source", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())),
        *(("arrival_ms", pa.int64()), ("keys", pa.string()), ("body", pa.binary())),
    )
    named = {name: [getattr(message, name) for message in messages] for name in FIELDS}
    return pa.table(named, schema=pa.schema(columns))


class ParquetPart:
    """One row group; the schema of the landing. In memory until it is finished: a parquet file half written is none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tables: list[Any] = [landed_table(())]

    def append(self, messages: Sequence[LandedMessage]) -> None:
        """Keep ``messages``, in columns."""
        self._tables.append(landed_table(messages))

    def finish(self, final: Path) -> None:
        """Write the file, flush it to the disk and rename it."""
        import pyarrow as pa  # noqa: PLC0415 - optional extra
        from pyarrow import parquet  # noqa: PLC0415 - optional extra

        parquet.write_table(pa.concat_tables(self._tables), self._path, compression="zstd")
        with self._path.open("rb") as written:
            os.fsync(written.fileno())
        self._path.rename(final)

    def let_go(self) -> None:
        """Forget the messages; there is no file yet."""
        self._tables.clear()


PART_FORMATS: Final[Mapping[str, Callable[[Path], Part]]] = {"jsonl": JsonLinesPart, "parquet": ParquetPart}
"""Suffix → how to fill a part of that format."""
