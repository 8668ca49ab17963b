"""Search a landing: the days and parts of the time range, line by line, row by row.

Parts that are still being written are read as well, as far as their lines are whole: the last seconds, and the begin of
a handler that took its process along, are there and nowhere else.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import data_files
from bridge.query.archives.scan import ALWAYS, ArrivalRange, ScanProgress
from bridge.query.criteria import mentioned, needles_of
from bridge.storage import open_parquet, sorted_glob
from otel_mqtrace._errors import MissingExtraError, UnreadableInputError, UsageError
from otel_mqtrace.landing.layout import (
    BODY_BASE64,
    FIELDS,
    IN_PROGRESS_SUFFIX,
    MANIFEST_NAME,
    NATIVE_DIRECTORY,
    LandedMessage,
    date_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from bridge.query.search import Searched
    from bridge.storage import AnyPath

__all__ = ["FilesArchive", "LandingArchive", "is_landing"]


_DATE: Final = "date="
_ROWS_AT_A_TIME: Final = 256
_IN_DUMPS: Final = {
    "source": "topic",
    "partition": "queue_id",
    "offset": "queue_offset",
    "arrival_ms": "store_ms",
}
_DEFAULTS: Final = {"source": "", "arrival_ms": 0}
"""What a line without the field has: 0 is an unknown arrival."""
_KINDS: Final[dict[str, tuple[type, ...]]] = {
    "source": (str,),
    "partition": (int, type(None)),
    "offset": (int, type(None)),
    "arrival_ms": (int,),
    "keys": (str, type(None)),
}


class LandingArchive:
    """The trace messages of one landing whose arrival lies in a range.

    Args:
        directory: The landing, or its ``native`` directory.
        arrivals: Which messages to read.
        on_progress: Called now and then with how many bytes of how many were read.

    Raises:
        UsageError: there is no landing in ``directory``.
    """

    def __init__(
        self,
        directory: AnyPath,
        *,
        arrivals: ArrivalRange = ALWAYS,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        try:
            self._native = _native_of(directory)
        except OSError as error:
            raise UsageError(f"--landing {directory} cannot be read: {error.strerror or error}") from error
        self._arrivals = arrivals
        self._progress = ScanProgress(str(directory), on_progress)

    @property
    def searched(self) -> Searched:
        """What the last pass read, and the files and lines that it could not."""
        return self._progress.searched()

    def mentioning(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        """Yield the messages that can speak of one of ``texts``.

        Raises:
            MissingExtraError: there are Parquet parts, and no pyarrow to read them.
        """
        needles = needles_of(texts)
        parts = self.parts()
        self._progress.begin(sum(_size_bytes(part) for part in parts))
        for part in parts:
            size_bytes = _size_bytes(part)
            for message in self._read(part):
                if message.arrival_ms in self._arrivals:
                    self._progress.saw(message)
                    if mentioned(message, needles):
                        yield message
            self._progress.advance(size_bytes)

    def _read(self, part: AnyPath) -> Iterator[LandedMessage]:
        """Yield what ``part`` holds, under its new name if it was finished meanwhile; a remark tells what ended it."""
        try:
            yield from _READERS[_format(part)](part, self._progress.remark)
        except FileNotFoundError:
            if _finished(part) != part:
                yield from self._read(_finished(part))
        except (OSError, UnreadableInputError) as error:
            self._progress.remark(f"{part.name} could not be read: {error}")

    def parts(self) -> list[AnyPath]:
        """Return the parts of the range.

        Those in progress are listed first: one that is finished in between is listed twice, and its messages are told
        apart by their places; the other way round it would be missed.
        """
        days = [day for day in sorted_glob(self._native, f"{_DATE}*") if self._is_of_range(day)]
        growing = [part for day in days for part in sorted_glob(day, f".part-*.jsonl{IN_PROGRESS_SUFFIX}")]
        done = [part for day in days for part in sorted_glob(day, "part-*") if part.suffix in _READERS]
        outside = self._outside_of_range()
        return [*growing, *(part for part in done if f"{part.parent.name}/{part.name}" not in outside)]

    def _is_of_range(self, day: AnyPath) -> bool:
        date, begin_ms, end_ms = day.name.removeprefix(_DATE), self._arrivals.begin_ms, self._arrivals.end_ms
        late = begin_ms is not None and date < date_of(begin_ms)
        return not late and not (end_ms is not None and date > date_of(end_ms))

    def _outside_of_range(self) -> frozenset[str]:
        """Return the parts that need not be opened, as the manifest has them; a bad line excludes nothing."""
        outside = set()
        try:
            lines = (self._native / MANIFEST_NAME).read_bytes().splitlines()
        except OSError:
            return frozenset()
        for line in lines:
            try:
                item = json.loads(line)
                if not self._arrivals.overlaps(item["first_arrival_ms"], item["last_arrival_ms"]):
                    outside.add(item["file"])
            except (ValueError, KeyError, TypeError):
                continue
        return frozenset(outside)


class FilesArchive(LandingArchive):
    """The trace messages of files: JSON lines with ``body_base64``, or Parquet with a column ``body``.

    Args:
        paths: Files, landings, or directories, of which every such file is read.
        arrivals: Which messages to read.
        on_progress: Called now and then with how many bytes of how many were read.

    Raises:
        UsageError: a path does not exist.
    """

    def __init__(
        self,
        paths: Sequence[AnyPath],
        *,
        arrivals: ArrivalRange = ALWAYS,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        missing = next((path for path in paths if not path.exists()), None)
        if missing is not None:
            raise UsageError(f"{missing}: no such file or directory; give landings, directories or files")
        self._paths = tuple(dict.fromkeys(paths))
        self._arrivals = arrivals
        self._progress = ScanProgress(", ".join(map(str, self._paths)), on_progress)

    def parts(self) -> list[AnyPath]:
        """Return the parts of each landing, and the files."""
        parts: dict[AnyPath, None] = {}
        for path in self._paths:
            if not path.is_dir():
                found = [path]
            elif is_landing(path):
                found = LandingArchive(path, arrivals=self._arrivals).parts()
            else:
                found = [file for file in data_files(path) if file.suffix in _READERS]
            parts |= dict.fromkeys(found)
        return list(parts)


def is_landing(directory: AnyPath) -> bool:
    """Return whether ``directory`` is a landing, or the ``native`` directory of one."""
    return directory.is_dir() and ((directory / NATIVE_DIRECTORY).is_dir() or any(directory.glob(f"{_DATE}*")))


def _native_of(directory: AnyPath) -> AnyPath:
    if not directory.is_dir():
        raise UsageError(
            f"--landing {directory} is not a directory: give the one that mqtrace forward or the exporter fills"
        )
    inside = directory / NATIVE_DIRECTORY
    if inside.is_dir():
        return inside
    if directory.name == NATIVE_DIRECTORY or any(directory.glob(f"{_DATE}*")):
        return directory
    raise UsageError(f"--landing {directory} holds no landing: there is no {NATIVE_DIRECTORY}/ in it")


def _finished(part: AnyPath) -> AnyPath:
    """Return the name that a part in progress has got in the meantime."""
    return part.with_name(part.name.removeprefix(".").removesuffix(IN_PROGRESS_SUFFIX))


def _format(part: AnyPath) -> str:
    return part.suffix if part.suffix in _READERS else ".jsonl"


def _size_bytes(part: AnyPath) -> int:
    try:
        return part.stat().st_size
    except OSError:
        return 0


def _json_lines(part: AnyPath, remark: Callable[[str], None]) -> Iterator[LandedMessage]:
    with part.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.endswith(b"\n") and part.name.endswith(IN_PROGRESS_SUFFIX):
                return  # the writer is in the middle of it
            message = _message_of(line)
            if message is None:
                remark(f"{part.name}, line {number}: no landed message")
            else:
                yield message if message.source else replace(message, source=part.name, offset=number)


def _message_of(line: bytes) -> LandedMessage | None:
    try:
        item = json.loads(line)
        body = base64.b64decode(item[BODY_BASE64], validate=True)
        fields = {name: _field(item, name) for name in FIELDS if name != "body"}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return _checked(fields, body)


def _field(item: dict[str, Any], name: str) -> Any:
    """Return a field of a landing, or the one of a dump of a RocketMQ topic that means the same."""
    return item.get(name, item.get(_IN_DUMPS.get(name, name), _DEFAULTS.get(name)))


def _checked(fields: dict[str, Any], body: Any) -> LandedMessage | None:
    """Return the message if every field is of its kind: others may have written into the directory."""
    good = all(isinstance(fields[name], kinds) for name, kinds in _KINDS.items()) and isinstance(body, bytes)
    return LandedMessage(**fields, body=body) if good else None


def _parquet(part: AnyPath, remark: Callable[[str], None]) -> Iterator[LandedMessage]:
    try:
        import pyarrow as pa  # noqa: PLC0415 - optional extra
    except ImportError as error:
        raise MissingExtraError(f"reading {part.name}", "reconcile") from error
    try:
        file: Any = open_parquet(part)
        for batch in file.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=list(FIELDS)):
            for row in batch.to_pylist():
                message = _checked(row, row.pop("body", None))
                if message is None:
                    remark(f"{part.name}: a row that is no landed message")
                else:
                    yield message
    except (pa.ArrowException, KeyError) as error:
        raise UnreadableInputError(f"not a Parquet part of a landing ({error})") from error


_READERS: Final[dict[str, Callable[[AnyPath, Callable[[str], None]], Iterator[LandedMessage]]]] = {
    ".jsonl": _json_lines,
    ".parquet": _parquet,
}
