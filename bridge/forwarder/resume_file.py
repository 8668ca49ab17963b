"""Remember what was forwarded beyond the committed positions, so that a restart repeats no half of a listener call."""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.storage import committed
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from bridge.forwarder.pairing import Record
    from bridge.storage import AnyPath
    from otel_mqtrace.landing import LandedMessage


_UNSAFE_IN_NAMES: Final = re.compile(r"[^\w.-]")


def memory_name(group: str, source: str, kind: str = "") -> str:
    """Return the name, without suffix, of the memory of this ``group``, ``source`` and ``kind``."""
    whose = f"{source}\n{group}"
    return f"{_UNSAFE_IN_NAMES.sub('_', group)}-{kind}{zlib.crc32(whose.encode()):08x}"


def read_memory(file: AnyPath, parse: Callable[[Any], Any], *, hint: str) -> Any:
    """Return ``parse`` of the JSON in ``file``; ``None`` if the file does not exist.

    Raises:
        UsageError: it cannot be read or parsed; ``hint`` ends the line.
    """
    try:
        return parse(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{file} cannot be read ({error}); {hint}") from error


def write_memory(file: AnyPath, content: Any, *, hint: str = "", indent: int | None = None) -> None:
    """Write ``content`` as JSON so that a reader finds the old file or the new one, never half of it.

    Raises:
        UsageError: it cannot be written; ``hint`` ends the line.
    """
    separators = (",", ":") if indent is None else None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with committed(file) as unready, Path(unready).open("w", encoding="utf-8") as open_file:
            json.dump(content, open_file, indent=indent, separators=separators)
            open_file.flush()
            os.fsync(open_file.fileno())
    except OSError as error:
        raise UsageError(f"{file} cannot be written ({error.strerror or error}){hint}") from error


_VERSION: Final = 1
_Partition = tuple[str, "int | None"]
_Message = tuple[int, int]  # offset and arrival distinguish a message from another at its offset


@dataclass(slots=True)
class _Entry:
    """One partition. ``begins`` are the messages it may begin with again; ``pending`` is offset → waiting records."""

    next_offset: int
    begins: set[_Message] = field(default_factory=set)
    pending: dict[int, list[int]] = field(default_factory=dict)


class ResumeFile:
    """Remembers in ``file`` (``None``: not beyond this process) which records are settled although uncommitted.

    Raises:
        UsageError: the file cannot be read or written.
    """

    def __init__(self, file: AnyPath | None = None) -> None:
        self._file = file
        # what an earlier process left, until its messages were read again
        self._resumed: dict[_Partition, _Entry] = (
            file and read_memory(file, _entries_of, hint="remove it to go on by offsets alone")
        ) or {}
        self._written: dict[_Partition, _Entry] | None = None
        self._started: set[_Partition] = set()  # partitions of which this process has seen a message
        self._first: dict[_Partition, _Message] = {}  # the first message since the last commit; of a file the first
        self._next: dict[_Partition, int] = {}
        self._held: dict[_Partition, _Message] = {}  # the first message that was held at the last commit

    def remaining_records(self, message: LandedMessage) -> Container[int] | None:
        """Return the indexes of the records of ``message`` that are still to be taken: ``None`` stands for all."""
        offset, stored_ms = message.offset, message.arrival_ms
        if offset is None:
            return None
        partition = (message.source, message.partition)
        if partition not in self._started:
            self._started.add(partition)
            begun = self._resumed.get(partition)
            if begun is not None and (offset, stored_ms) not in begun.begins:  # it begins where it may not begin again
                del self._resumed[partition]
        self._first.setdefault(partition, (offset, stored_ms))
        self._next[partition] = max(offset + 1, self._next.get(partition, 0))
        entry = self._resumed.get(partition)
        if entry is None or offset >= entry.next_offset:
            self._resumed.pop(partition, None)
            return None
        return entry.pending.pop(offset, ())

    def remember(self, waiting: Iterable[Record]) -> None:
        """Write down what is settled once everything taken, but for ``waiting``, is delivered; then one may commit.

        Raises:
            UsageError: the file cannot be written.
        """
        if self._file is None:
            return
        held: dict[_Partition, _Entry] = {}
        for (place, _, stored_ms, _), index, *_ in waiting:
            if place.offset is not None:
                entry = held.setdefault((place.source, place.partition), _Entry(0))
                entry.pending.setdefault(place.offset, []).append(index)
                entry.begins.add((place.offset, stored_ms))
        entries = {
            partition: replace(entry, pending=dict(entry.pending))  # emptied as its messages are read again
            for partition, entry in self._resumed.items()
            if partition not in self._started
        }
        for partition in self._first.keys() | held.keys():
            entries[partition] = self._entry(partition, held.get(partition))
        if entries != self._written:
            partitions = [
                {
                    "source": source,
                    "partition": partition,
                    "next": entry.next_offset,
                    "begins": sorted(entry.begins),
                    "pending": sorted(entry.pending.items()),
                }
                for (source, partition), entry in entries.items()
            ]
            write_memory(self._file, {"version": _VERSION, "partitions": partitions})
            self._written = entries
        self._held = {partition: min(entry.begins) for partition, entry in held.items()}
        self._first = {each: first for each, first in self._first.items() if each[1] is None and each in held}

    def _entry(self, partition: _Partition, held: _Entry | None) -> _Entry:
        entry = _Entry(self._next[partition])
        entry.begins = {each[partition] for each in (self._first, self._held) if partition in each}
        if held is not None:
            entry.begins.add(min(held.begins))
            entry.pending |= held.pending
        resumed = self._resumed.get(partition)
        if resumed is not None:  # in the middle of what an earlier process had settled
            entry.next_offset = max(entry.next_offset, resumed.next_offset)
            entry.pending |= resumed.pending
        return entry


def _entries_of(content: Any) -> dict[_Partition, _Entry]:
    return {
        (each["source"], each["partition"]): _Entry(
            int(each["next"]),
            {(int(offset), int(arrival_ms)) for offset, arrival_ms in each["begins"]},
            {int(offset): list(map(int, indexes)) for offset, indexes in each["pending"]},
        )
        for each in content["partitions"]
    }
