"""Search landings and files: the days and parts of the time range, line by line, row by row.

Parts that are still being written are read as well, as far as their lines are whole: the last seconds, and the begin of
a handler that took its process along, are there and nowhere else.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import expand_files
from bridge.codec.framing import Body, Framing, find_framing, may_hold_bodies, read_landed, refuse_spans
from bridge.otlp.detect import refuse_unlanded
from bridge.page.wording import plural
from bridge.query.matching import may_mention, needles_of
from bridge.query.search import Archive
from bridge.storage.paths import as_path, sorted_glob
from otel_mqtrace._errors import UnreadableInputError, UsageError
from otel_mqtrace.landing import (
    IN_PROGRESS_SUFFIX,
    MANIFEST_DIRECTORY,
    MANIFEST_NAME,
    NATIVE_DIRECTORY,
    PARTS,
    LandedMessage,
    date_of,
    finished_name,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from bridge.storage.paths import AnyPath


_DATE: Final = "date="
_GROWING: Final = f"{_DATE}*/.part-*{IN_PROGRESS_SUFFIX}"
_SUFFIXES: Final = (".jsonl", ".parquet")  # of a landing's parts
_FIELDS: Final[dict[str, tuple[str, type, Any]]] = {
    "source": ("topic", str, ""),
    "partition": ("queue_id", int, None),
    "offset": ("queue_offset", int, None),
    "arrival_ms": ("store_ms", int, 0),
    "keys": ("keys", str, None),
}
"""Field of a landing: its name in a dump of a RocketMQ topic, its type, and its value where neither has that type."""


class FilesArchive(Archive):
    """The trace messages of files whose arrival lies in a range.

    ``paths`` are landings, other directories, files and globs.

    Raises:
        UsageError: nothing is there, or a directory has no such file.
    """

    decoder = "mqtrace decode"

    def __init__(self, paths: Sequence[str | AnyPath], **scan: Any) -> None:
        self._paths = tuple(dict.fromkeys(map(as_path, paths)))
        super().__init__(", ".join(map(str, self._paths)), **scan)
        self._parts = self._list_parts()

    def find_messages(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        """Yield the messages that may contain one of ``texts``.

        Raises:
            UnreadableInputError: no part holds a message, and some cannot be read or listed.
            MissingExtraError: pyarrow is missing for Parquet parts.
        """
        needles = needles_of(texts, self.charset)
        self._begin(sum(_size_bytes(part) for part in self._parts))
        is_readable, timeless = not (self._parts or self.searched.remarks), 0
        for part in self._parts:
            size_bytes = _size_bytes(part)
            for message in self._read(part):
                is_readable = True
                if message.arrival_ms in self._arrivals:
                    self._count_message(message)
                    if may_mention(message, needles):
                        yield message
                elif not message.arrival_ms:
                    timeless += 1
            self._advance(size_bytes)
        if timeless:
            self._remark(f"{plural(timeless, 'trace message')} without a time of arrival: leave out --begin and --end")
        remarks = self.searched.remarks
        if remarks and not is_readable:
            raise UnreadableInputError(f"nothing to search in {self._where}: {remarks[0]}")

    def _read(self, part: AnyPath) -> Iterator[LandedMessage]:
        """Yield the messages of ``part``, under its new name if it was finished meanwhile; a remark names an error."""
        growing = part.name.endswith(IN_PROGRESS_SUFFIX)
        try:
            with part.open("rb") as stream:
                refuse_unlanded(stream.peek(), part)
                refuse_spans(stream.peek(), part)
                framing = Framing.PARQUET if find_framing(stream) is Framing.PARQUET else Framing.JSONL_BASE64
                for item in read_landed(stream, framing, name=part.name):
                    if isinstance(item, Body):
                        yield _message_of(item, part.name)
                    elif not (growing and stream.peek(1) == b""):  # there its writer is in the middle of a line
                        reason = f"{item.field}: {item.reason}" if item.field else item.reason
                        self._remark(f"{part.name}, line {item.row}: not a landed message ({reason})")
        except FileNotFoundError:
            if growing:
                yield from self._read(part.with_name(finished_name(part.name)))
        except OSError as error:
            self._remark(f"{part.name} could not be read: {error.strerror or error}")
        except UnreadableInputError as error:
            self._remark(str(error))

    def _list_parts(self) -> list[AnyPath]:
        """Return the parts of each landing that are of the range, and the files."""
        parts: dict[AnyPath, AnyPath] = {}  # where it is → as it was named
        for path in self._paths:
            native = _native_of(path)
            if native is not None:
                found = self._parts_of(native)
            else:
                files, is_file = expand_files(str(path))
                found = [path] if is_file else [file for file in files if may_hold_bodies(file)]
                if not found:
                    raise UsageError(f"{path} holds no landing and no file of native bodies: name another directory")
            for part in found:
                parts.setdefault(part.resolve(), part)
        return list(parts.values())

    def _parts_of(self, native: AnyPath) -> list[AnyPath]:
        """Return the parts of a landing.

        Those in progress are listed first: a part finished in between is listed twice, and repeats are dropped by their
        positions; the other way round it would be missed.
        """
        days = [day for day in self._list(native, f"{_DATE}*") if self._is_of_range(day)]
        growing = [part for day in days for part in self._list(day, f".part-*.jsonl{IN_PROGRESS_SUFFIX}")]
        done = [part for day in days for part in self._list(day, "part-*") if part.suffix in _SUFFIXES]
        outside = self._outside_of_range(native)
        return [*growing, *(part for part in done if f"{part.parent.name}/{part.name}" not in outside)]

    def _list(self, directory: AnyPath, pattern: str) -> list[AnyPath]:
        """Return what lies in ``directory`` and matches; a remark names a directory that cannot be listed."""
        try:
            if isinstance(directory, Path):
                os.scandir(directory).close()  # Path.glob() passes over a directory that it must not read
            return sorted_glob(directory, pattern)
        except OSError as error:
            self._remark(f"{directory} could not be read: {error.strerror or error}")
            return []

    def _is_of_range(self, day: AnyPath) -> bool:
        date, begin_ms, end_ms = day.name.removeprefix(_DATE), self._arrivals.begin_ms, self._arrivals.end_ms
        late = begin_ms is not None and date < date_of(begin_ms)
        return not late and not (end_ms is not None and date > date_of(end_ms))

    def _outside_of_range(self, native: AnyPath) -> frozenset[str]:
        """Return the parts that need not be opened, as the manifest has them; a bad line excludes nothing."""
        outside = set()
        try:
            lines = (native / MANIFEST_NAME).read_bytes().splitlines()
        except OSError:  # no manifest: every part is opened
            return frozenset()
        for line in lines:
            try:
                item = json.loads(line)
                if not self._arrivals.overlaps(item["first_arrival_ms"], item["last_arrival_ms"]):
                    outside.add(item["file"])
            except (ValueError, KeyError, TypeError):  # its part is opened
                continue
        return frozenset(outside)


def _native_of(path: AnyPath) -> AnyPath | None:
    """Return the ``native`` directory of a landing, which may be named itself; ``None`` for all else.

    Others, too, name a directory ``native``, or partition by date: then it holds files and no part.
    """
    native = path / NATIVE_DIRECTORY
    try:
        for each in (native, path):
            counted = ((each / name).exists() for name in (MANIFEST_NAME, MANIFEST_DIRECTORY))
            parts = (any(each.glob(pattern)) for pattern in (PARTS, _GROWING))
            if each.is_dir() and (any(counted) or any(parts)):
                return each
        return native if native.is_dir() and all(file.name[0] in "._" for file in native.glob("**/*.*")) else None
    except OSError:  # listing it reports the error
        return None


def _size_bytes(part: AnyPath) -> int:
    try:
        return part.stat().st_size
    except OSError:  # finished and renamed meanwhile; only the bar needs it
        return 0


def _message_of(item: Body, name: str) -> LandedMessage:
    """Return the message; a field that another program left out or wrote as another type is not there."""
    fields: dict[str, Any] = {
        field: next((given for key in (field, in_dumps) if type(given := item.beside.get(key)) is kind), default)
        for field, (in_dumps, kind, default) in _FIELDS.items()
    }
    if not fields["source"]:
        fields |= {"source": name, "offset": item.row}
    return LandedMessage(**fields, body=item.body)
