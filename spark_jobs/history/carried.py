"""What a run carries over: positions of pieces of input, and the events that the last run left open, each once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bridge.storage.paths import as_path, make_directory, open_parquet
from spark_jobs.columns import encode, hash_texts, is_known, map_values, mark, mix, take_rows
from spark_jobs.history.history import read_rows, write_rows
from spark_jobs.judging.columns import NullableInts, flatten_sides, identified_by_offset, is_any_of, is_equal
from spark_jobs.schemas import EVENT
from spark_jobs.sources.jaeger import name_fetched

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.exchange.engine import Engine

POSITION: Final = ("side", "path", "record_index", "raw_hash")
"""The columns of ``EVENT`` that identify a piece of input."""

_POSITION_AND_LINE: Final = (*POSITION, "line")


def hash_positions(columns: Mapping[str, Column]) -> npt.NDArray[np.uint64]:
    """Return a hash of each row's ``POSITION``, in which a null equals a null.

    Each run fetches the spans of a Jaeger into a new file: its name stands for its path.
    """
    texts = hash_texts(columns["side"]), hash_texts(map_values(columns["path"], _name_in_every_run, pa.string()))
    numbers = [NullableInts.of(columns[name]) for name in ("record_index", "raw_hash")]
    known = (one.known.astype(np.uint64) for one in numbers)
    return mix(*texts, *(one.filled(0).view(np.uint64) for one in numbers), *known)


def _name_in_every_run(path: str) -> str:
    return name_fetched(path) or path


def _read_lines(columns: Mapping[str, Column]) -> NullableInts:
    """Return the lines, unknown in a file fetched from Jaeger: a trace is on another line in the next one."""
    is_fetched = is_known(map_values(columns["path"], name_fetched, pa.string()))
    return NullableInts.of(columns["line"]).where(~is_fetched)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedOver:
    """The events that a run carries over; counts are per side.

    Attributes:
        files: parquet of ``EVENT``, to be packed beside the events just read.
        again: the carried files with events that this run reads again; pack tasks leave the fresh rows out
            (``drop_read_again``).
        counts: events left open.
        read_again: carried events among the fresh ones.
        by_place: carried spans whose only message id is its position.
    """

    files: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    read_again: Mapping[str, int] = field(default_factory=dict)
    by_place: int = 0


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
    files, counts, by_place, before = [], Counter[str](), 0, 0
    for number, path in enumerate(carried):
        events = read_rows(path, EVENT)
        ids = flatten_sides(events.select(["side", "msg_id", "offset_msg_id"]))
        counts.update(ids["side"].to_pylist())
        by_place += int((identified_by_offset(ids) & is_equal(ids["side"], "otlp")).sum())
        own = mark(len(events), rows[(rows >= before) & (rows < before + len(events))] - before)
        left_as = pc.if_else(pa.array(own), pa.scalar(None, pa.string()), events["left_as"])
        files.append(str(as_path(directory) / f"carried-{number:05d}.parquet"))
        write_rows(events.set_column(EVENT.names.index("left_as"), EVENT.field("left_as"), left_as), files[-1])
        before += len(events)
    return CarriedOver(
        files=tuple(files),
        again=tuple(carried) if read_again else (),
        counts=counts,
        read_again=read_again,
        by_place=by_place,
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
            if np.any(positions.has_path(paths)):
                columns = [*_POSITION_AND_LINE, "bad"]
                table = file.read_row_group(group, columns=columns, use_threads=False)
                events = table.filter(table["bad"].is_null())
                fresh_rows, carried_rows = positions.match(events)
                counts.update(events["side"].take(pa.array(fresh_rows)).to_pylist())
                rows.append(carried_rows)
    return counts, np.concatenate(rows)


@dataclass(frozen=True, slots=True)
class CarriedPositions:
    """Where the carried events came from: all their paths, and of each row, in order, its position and its line."""

    paths: frozenset[str]
    positions: npt.NDArray[np.uint64]
    lines: NullableInts

    @classmethod
    def of(cls, carried: pa.Table) -> CarriedPositions:
        """Return the positions of carried ``EVENT`` rows."""
        columns = flatten_sides(carried.select(_POSITION_AND_LINE))
        paths = frozenset(map(_name_in_every_run, encode(columns["path"]).words))
        return cls(paths, hash_positions(columns), _read_lines(columns))

    @classmethod
    def read(cls, paths: Iterable[str]) -> CarriedPositions:
        """Return those of the events in some files; rows are numbered through the files in this order.

        Raises:
            UnreadableInputError: a file is damaged.
        """
        narrow = pa.schema([EVENT.field(name) for name in _POSITION_AND_LINE])
        return cls.of(pa.concat_tables([narrow.empty_table(), *(read_rows(path, narrow) for path in paths)]))

    def has_path(self, paths: Column) -> Mask:
        """Return which rows come from a file of any carried event: all others need not be read further."""
        return is_any_of(map_values(paths, _name_in_every_run, pa.string()), self.paths)

    def match(self, fresh: pa.Table) -> tuple[Ints, Ints]:
        """Return the fresh rows that are carried as well, and the carried rows that these are.

        Two rows are one piece of input where ``POSITION`` is equal, and the line where both have one: a file that grew
        beyond the size up to which lines are numbered has none any more.
        """
        columns = flatten_sides(fresh.select(_POSITION_AND_LINE))
        rows = np.flatnonzero(self.has_path(columns["path"]))  # of most files nothing is carried
        narrow = {name: take_rows(column, rows) for name, column in columns.items()}
        positions, lines = hash_positions(narrow), _read_lines(narrow)
        found = np.flatnonzero(_has_partner(positions, lines, self.positions, self.lines))
        again = _has_partner(self.positions, self.lines, positions[found], lines.take(found))
        return rows[found], np.flatnonzero(again)


def drop_read_again(carried: CarriedPositions, events: pa.Table) -> pa.Table:
    """Return events without the fresh ones that are carried over as well: each is judged once, as carried."""
    rows, _ = carried.match(events)
    return events.filter(pa.array(~mark(len(events), rows) | is_known(events["first_seen_run"])))


def _has_partner(
    positions: npt.NDArray[np.uint64], lines: NullableInts, others: npt.NDArray[np.uint64], other_lines: NullableInts
) -> Mask:
    """Return which rows share a position with one of the others, and the line if both have one."""
    own, theirs = (mix(at, line.values.view(np.uint64)) for at, line in ((positions, lines), (others, other_lines)))
    same_line = lines.known & np.isin(own, theirs[other_lines.known])
    without_line = ~lines.known & np.isin(positions, others)
    found: Mask = same_line | without_line | np.isin(positions, others[~other_lines.known])
    return found
