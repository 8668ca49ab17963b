"""Remember what was forwarded beyond the committed positions, so that a restart repeats no half of a listener call."""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from bridge.forwarder.pairing import Position
from bridge.storage.paths import replace_text
from otel_mqtrace._errors import DAMAGE, UsageError, describe_damage, describe_reason, describe_write_fix

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from bridge.forwarder.pairing import Record
    from bridge.storage.paths import AnyPath
    from otel_mqtrace.landing import LandedMessage


CANNOT_WRITE: Final = "give --state a DIR that can be written"
_UNSAFE_IN_NAMES: Final = re.compile(r"[^\w.-]")


def state_name(group: str, source: str, kind: str = "") -> str:
    """Return the name, without suffix, of the state file of this ``group``, ``source`` and ``kind``."""
    whose = zlib.crc32(group.encode(), zlib.crc32(f"{source}\n".encode()))  # an error of encode() names one of them
    return f"{_UNSAFE_IN_NAMES.sub('_', group)}-{kind}{whose:08x}"


def read_state(file: AnyPath, parse: Callable[[Any], Any], *, hint: str) -> Any:
    """Return ``parse`` of the JSON in ``file``; ``None`` if the file does not exist.

    Raises:
        UsageError: it cannot be read or parsed; ``hint`` ends the line.
    """
    try:
        return parse(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except DAMAGE as error:
        raise UsageError(f"{file} cannot be read ({describe_damage(error)}); {hint}") from error


def write_state(file: AnyPath, content: Any) -> None:
    """Write ``content`` as JSON so that a reader finds the old file or the new one, never half of it.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(file, json.dumps(content, separators=(",", ":")))  # json.dump takes three times as long
    except OSError as error:
        raise not_written(file, error) from error


def not_written(place: AnyPath, error: OSError, elsewhere: str = CANNOT_WRITE) -> UsageError:
    """Return what to raise when ``place`` cannot be written; ``elsewhere`` is the fix unless the disk is full."""
    fix = describe_write_fix(error, elsewhere)
    return UsageError(f"{place} cannot be written ({describe_reason(error)}); {fix}")


_VERSION: Final = 1
_Partition = tuple[str, "int | None"]
_Message = tuple[int, int]  # offset and arrival distinguish a message from another at its offset


@dataclass(slots=True)
class _Entry:
    """One partition. ``begins`` are the messages it may begin with again; ``pending`` is offset → waiting records."""

    next_offset: int
    begins: set[_Message] = field(default_factory=set)
    pending: dict[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    """What this process has seen of one partition.

    ``resumed`` is what an earlier process left, until its messages were read again. ``first`` is the first message
    since the last commit. While commits leave the position where it is, ``first`` stays: until the end of a file, and
    until the end of what is ``resumed``. ``held`` is the first message that was held at the last commit.
    """

    resumed: _Entry | None
    next_offset: int = 0
    first: _Message | None = None
    held: _Message | None = None

    def as_entry(self, held: _Entry | None) -> _Entry:
        """Return what is written down, with the records that are ``held``."""
        begins = {each for each in (self.first, self.held) if each is not None}
        entry = _Entry(self.next_offset, begins)
        if held is not None:
            entry.begins.add(min(held.begins))
            entry.pending |= held.pending
        if self.resumed is not None:  # in the middle of what an earlier process had settled
            entry.next_offset = max(entry.next_offset, self.resumed.next_offset)
            entry.pending |= self.resumed.pending
        return entry


class ResumeFile:
    """Remembers in ``file`` (``None``: not beyond this process) which records are settled although uncommitted.

    Raises:
        UsageError: the file cannot be read or written.
    """

    def __init__(self, file: AnyPath | None = None) -> None:
        self._file = file
        # what an earlier process left of partitions of which this one has seen nothing
        self._resumed: dict[_Partition, _Entry] = (
            file and read_state(file, _from_json, hint="remove it to go on by offsets alone")
        ) or {}
        self._written: dict[_Partition, _Entry] | None = None
        self._states: dict[_Partition, _State] = {}
        self._unfinished: _Partition | None = None  # of which messages were read last: of a file more may follow

    def remaining_records(self, message: LandedMessage) -> Container[int] | None:
        """Return the indexes of the records of ``message`` that are still to be taken: ``None`` stands for all."""
        offset, partition = message.offset, (message.source, message.partition)
        if offset is None:
            return None
        place = (offset, message.arrival_ms)
        self._unfinished = partition
        state = self._states.get(partition)
        if state is None:
            resumed = self._resumed.pop(partition, None)
            if resumed is not None:  # emptied as its messages are read again, if it begins where it may
                resumed = replace(resumed, pending=dict(resumed.pending)) if place in resumed.begins else None
            state = self._states[partition] = _State(resumed)
        state.first = state.first or place
        state.next_offset = max(offset + 1, state.next_offset)
        if state.resumed is None or offset >= state.resumed.next_offset:
            state.resumed = None
            return None
        left: Container[int] = state.resumed.pending.pop(offset, ())
        if offset + 1 == state.resumed.next_offset:
            state.resumed = None
        return left

    def end_pass(self) -> None:
        """Note that the source was read to its end: no file goes on, and no more is left of an earlier process."""
        self._unfinished = None
        for state in self._states.values():
            state.resumed = None

    def unsettled(self) -> set[Position]:
        """Return the positions before which a commit must stay: what an earlier process settled was not all read yet.

        A commit in the middle of it would void what is remembered of the rest.
        """
        return {
            Position(*partition, state.first[0])
            for partition, state in self._states.items()
            if state.resumed is not None and state.first is not None
        }

    def remember(self, waiting: Iterable[Record]) -> None:
        """Write down what is settled once everything taken, but for ``waiting``, is delivered; then one may commit.

        Call it once more after the last commit: what is committed is then forgotten, and forwarded again if the user
        moves the positions back.

        Raises:
            UsageError: the file cannot be written.
        """
        if self._file is None:
            return
        held, entries = _find_held(waiting), dict(self._resumed)
        for partition, state in self._states.items():
            if state.first is not None or state.held is not None or partition in held:
                entries[partition] = state.as_entry(held.get(partition))
        if entries != self._written:
            write_state(self._file, _to_json(entries))
            self._written = entries
        for partition, state in self._states.items():
            state.held = min(held[partition].begins) if partition in held else None
            # A file is read again whole if a record of it waits, or its rest has not come yet.
            is_moving = partition[1] is not None or (partition not in held and partition != self._unfinished)
            if is_moving and state.resumed is None:
                state.first = None


def _find_held(waiting: Iterable[Record]) -> dict[_Partition, _Entry]:
    """Return the records that wait and the messages that they begin with, by partition."""
    held: dict[_Partition, _Entry] = {}
    for (position, _, stored_ms, _), index, *_ in waiting:
        if position.offset is not None:
            entry = held.setdefault((position.source, position.partition), _Entry(0))
            entry.pending.setdefault(position.offset, []).append(index)
            entry.begins.add((position.offset, stored_ms))
    return held


def _to_json(entries: dict[_Partition, _Entry]) -> Any:
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
    return {"version": _VERSION, "partitions": partitions}


def _from_json(content: Any) -> dict[_Partition, _Entry]:
    return {
        (each["source"], each["partition"]): _Entry(
            int(each["next"]),
            {(int(offset), int(arrival_ms)) for offset, arrival_ms in each["begins"]},
            {int(offset): list(map(int, indexes)) for offset, indexes in each["pending"]},
        )
        for each in content["partitions"]
    }
