"""What a run carries over: positions of pieces of input, and the events that the last run left open, each once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage import as_path, make_directory, open_parquet
from spark_jobs.columns import encode, is_true, take_rows
from spark_jobs.history.history import read_rows, write_rows
from spark_jobs.judging.columns import NullableInts, equals, flatten_sides
from spark_jobs.schemas import EVENT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.exchange.engine import Engine

POSITION: Final = ("side", "path", "record_index", "raw_hash")
"""The columns of ``EVENT`` that identify a piece of input."""

_PACKED: Final = pa.binary(16)
_INDEXES: Final = (1 << 32) + 1  # every 32-bit number, and null
_LEAST_INDEX: Final = -(1 << 31)


@dataclass(frozen=True, slots=True)
class Positions:
    """Distinct positions, numbered from 0, each packed into 16 bytes. A null equals a null."""

    path_codes: Mapping[str, int]
    packed: Column

    @classmethod
    def of(cls, parts: Iterable[Mapping[str, Column]]) -> tuple[Positions, Ints]:
        """Return the distinct positions among rows, and of each row, through all parts, the number of its position.

        ``parts`` are columns ``POSITION`` of some rows at a time.
        """
        codes: dict[str, int] = {}
        packed = [pa.array([], _PACKED)]
        for columns in parts:
            for path in encode(columns["path"]).words:
                codes.setdefault(path, len(codes) + 1)
            packed.append(_pack(columns, _code_paths(columns["path"], codes)))
        coded = pa.concat_arrays(packed).dictionary_encode()
        return cls(codes, coded.dictionary), np.asarray(coded.indices.cast(pa.int64()))

    def __len__(self) -> int:
        return len(self.packed)

    def has_path(self, paths: Column) -> Mask:
        """Return which rows come from a file of any of the positions: all others need not be read further."""
        return _code_paths(paths, self.path_codes) >= 0

    def find(self, columns: Mapping[str, Column]) -> Ints:
        """Return the number of each row's position, -1 where it is none of these; ``columns`` are ``POSITION``."""
        packed = _pack(columns, _code_paths(columns["path"], self.path_codes))
        found: Any = pc.index_in(packed, value_set=self.packed)
        return np.asarray(found.fill_null(-1).cast(pa.int64()))


def _code_paths(paths: Column, codes: Mapping[str, int]) -> Ints:
    """Return the code of each path: 0 for null, -1 for one without a code."""
    coded = encode(paths)
    return np.array([*(codes.get(word, -1) for word in coded.words), 0], np.int64)[coded.values]


def _pack(columns: Mapping[str, Column], path_codes: Ints) -> Column:
    """Return two numbers a row, as bytes; no two positions have both in common."""
    hashes, indexes = NullableInts.of(columns["raw_hash"]), NullableInts.of(columns["record_index"])
    index = np.where(indexes.known, indexes.values - _LEAST_INDEX + 1, 0)
    others = (path_codes * _INDEXES + index) * 4 + hashes.known * 2 + equals(columns["side"], "native")
    numbers: Any = np.stack([hashes.filled(0), others], axis=1)
    return pa.FixedSizeBinaryArray.from_buffers(_PACKED, len(numbers), [None, pa.py_buffer(numbers)])


_POSITION_AND_LINE: Final = (*POSITION, "line")


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOver:
    """The events that a run carries over; counts are per side.

    Attributes:
        files: parquet of ``EVENT``, to be packed beside the events just read.
        again: the carried files with events that this run reads again; pack tasks leave the fresh rows out
            (``drop_read_again``).
        counts: events left open.
        read_again: carried events among the fresh ones.
        by_position: carried spans whose only message id is its position.
        not_read_again: the first input, by path, with a carried event that is not among the fresh ones.
    """

    files: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    read_again: Mapping[str, int] = field(default_factory=dict)
    by_position: int = 0
    not_read_again: str | None = None


def carry_over_events(engine: Engine, carried: Sequence[str], fresh: Sequence[str], directory: str) -> CarriedOver:
    """Return the events that the last run left open (``carried``), apart from those among the ``fresh`` files.

    An event that is read again loses ``left_as``: it is judged as any other, and keeps the run that first saw it.

    Raises:
        UnreadableInputError: a carried file is damaged.
    """
    if not carried:
        return CarriedOver()
    tasks = max(1, engine.parallelism)
    parts = [tuple(fresh[number::tasks]) for number in range(min(tasks, len(fresh)))]
    found = engine.map(partial(_find_read_again, tuple(carried)), parts)
    read_again = sum((counts for counts, _ in found), Counter[str]())
    rows = np.unique(np.concatenate([np.empty(0, np.int64), *(rows for _, rows in found)]))
    make_directory(directory)
    files, absent, counts, by_position, before = [], list[str](), Counter[str](), 0, 0
    for number, path in enumerate(carried):
        events = read_rows(path, EVENT)
        counts.update(_count_sides(events))
        ids = flatten_sides(events.select(["side", "msg_id", "offset_msg_id"]))
        has_position_only = is_true(pc.equal(ids["msg_id"], ids["offset_msg_id"])) & equals(ids["side"], "otlp")
        by_position += int(has_position_only.sum())
        own = np.zeros(len(events), bool)
        own[rows[(rows >= before) & (rows < before + len(events))] - before] = True
        paths = flatten_sides(events.select(["path"]).filter(pa.array(~own)))["path"]
        absent.extend(encode(paths).words)
        left_as = pc.if_else(pa.array(own), pa.scalar(None, pa.string()), events["left_as"])
        files.append(str(as_path(directory) / f"carried-{number:05d}.parquet"))
        write_rows(events.set_column(EVENT.names.index("left_as"), EVENT.field("left_as"), left_as), files[-1])
        before += len(events)
    return CarriedOver(
        files=tuple(files),
        again=tuple(carried) if read_again else (),
        counts=counts,
        read_again=read_again,
        by_position=by_position,
        not_read_again=min(absent, default=None),
    )


def _find_read_again(carried: Sequence[str], fresh: Sequence[str]) -> tuple[Counter[str], Ints]:
    """Return how many fresh events per side are carried as well, and the numbers of these carried rows."""
    positions = CarriedPositions.read(carried)
    counts, rows = Counter[str](), [np.empty(0, np.int64)]
    for path in fresh:
        file: Any = open_parquet(path, read_dictionary=["path", "side"])
        for group in range(file.metadata.num_row_groups):
            # Most row groups cost one column: nothing of their files is carried.
            paths = flatten_sides(file.read_row_group(group, columns=["path"], use_threads=False))["path"]
            if np.any(positions.positions.has_path(paths)):
                columns = [*_POSITION_AND_LINE, "bad"]
                table = file.read_row_group(group, columns=columns, use_threads=False)
                events = table.filter(table["bad"].is_null())
                fresh_rows, carried_rows = positions.match(events)
                counts.update(_count_sides(events.take(fresh_rows)))
                rows.append(carried_rows)
    return counts, np.concatenate(rows)


def _count_sides(events: pa.Table) -> Counter[str]:
    sides = encode(flatten_sides(events.select(["side"]))["side"])
    counts = np.bincount(sides.values, minlength=sides.room).tolist()
    return Counter({side: count for side, count in zip(sides.words, counts, strict=False) if count})


@dataclass(frozen=True, slots=True)
class CarriedPositions:
    """Where the carried events came from: of each row, in the order of its table, its position and its line."""

    positions: Positions
    numbers: Ints
    lines: NullableInts

    @classmethod
    def of(cls, carried: pa.Table) -> CarriedPositions:
        """Return the positions of carried ``EVENT`` rows."""
        columns = flatten_sides(carried.select(_POSITION_AND_LINE))
        positions, numbers = Positions.of([columns])
        return cls(positions, numbers, NullableInts.of(columns["line"]))

    @classmethod
    def read(cls, paths: Iterable[str]) -> CarriedPositions:
        """Return those of the events in some files; rows are numbered through the files in this order.

        Raises:
            UnreadableInputError: a file is damaged.
        """
        narrow = pa.schema([EVENT.field(name) for name in _POSITION_AND_LINE])
        return cls.of(pa.concat_tables([narrow.empty_table(), *(read_rows(path, narrow) for path in paths)]))

    def match(self, fresh: pa.Table) -> tuple[Ints, Ints]:
        """Return the fresh rows that are carried as well, and the carried rows that these are.

        Two rows are one piece of input where ``POSITION`` is equal, and the line where both have one: a file that grew
        beyond the size up to which lines are numbered has none any more.
        """
        columns = flatten_sides(fresh.select(_POSITION_AND_LINE))
        rows = np.flatnonzero(self.positions.has_path(columns["path"]))  # of most files nothing is carried
        narrow = {name: take_rows(column, rows) for name, column in columns.items()}
        numbers, lines = self.positions.find(narrow), NullableInts.of(narrow["line"])
        found = np.flatnonzero(_has_partner(numbers, lines, self.numbers, self.lines, len(self.positions)))
        again = _has_partner(self.numbers, self.lines, numbers[found], lines.take(found), len(self.positions))
        return rows[found], np.flatnonzero(again)


def drop_read_again(events: pa.Table, carried: CarriedPositions) -> pa.Table:
    """Return the fresh events without those that are carried over as well: each is judged once, as carried."""
    rows, _ = carried.match(events)
    kept = np.ones(len(events), bool)
    kept[rows] = False
    return events.filter(pa.array(kept)) if len(rows) else events


def _has_partner(number_of: Ints, line_of: NullableInts, numbers: Ints, lines: NullableInts, size: int) -> Mask:
    """Return which rows share a position (below ``size``; -1: none), and the line if both have one, with the others."""
    is_used, is_without_line = np.zeros(size + 1, bool), np.zeros(size + 1, bool)
    is_used[numbers[numbers >= 0]] = True
    is_without_line[numbers[(numbers >= 0) & ~lines.known]] = True
    _, lines_coded = np.unique(np.concatenate([line_of.values, lines.values]), return_inverse=True)
    pairs = np.concatenate([number_of, numbers]) * (len(lines_coded) + 1) + lines_coded
    same_line = np.isin(pairs[: len(number_of)], pairs[len(number_of) :][lines.known & (numbers >= 0)])
    # A position of -1 indexes the last element, which is never set.
    return is_used[number_of] & (~line_of.known | is_without_line[number_of] | same_line)
