"""Take over what the last run left open, and find which of it this run has read again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.history.places import PLACE, Places
from spark_jobs.judging.columns import NullableInts, encode, equals, flatten_sides, is_true, take_rows
from spark_jobs.schemas import EVENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_jobs.judging.columns import Ints, Mask

__all__ = [
    "PLACE_AND_LINE",
    "CarriedPlaces",
    "ReadAgain",
    "count_events",
    "count_waiting_by_place",
    "drop_read_again",
    "find_read_again",
    "forget_reasons",
    "merge_read_again",
]

PLACE_AND_LINE: Final = (*PLACE, "line")
"""The columns of ``EVENT`` by which a carried event and one just read are the same piece of input."""


@dataclass(frozen=True, slots=True)
class CarriedPlaces:
    """Where the carried events came from: of each row, in the order of its table, its place and its line."""

    places: Places
    numbers: Ints
    lines: NullableInts

    @classmethod
    def of(cls, carried: pa.Table) -> CarriedPlaces:
        """Return the places of carried events; of the columns of ``EVENT`` only ``PLACE_AND_LINE`` is read."""
        columns = flatten_sides(carried.select(PLACE_AND_LINE))
        places, numbers = Places.of([columns])
        return cls(places, numbers, NullableInts.of(columns["line"]))

    def __len__(self) -> int:
        return len(self.numbers)


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """What was read again: how many fresh events per side, and the numbers of the carried rows, sorted."""

    fresh: Counter[str] = field(default_factory=Counter)
    carried: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def __bool__(self) -> bool:
        return bool(self.fresh)


def find_read_again(fresh: pa.Table, carried: CarriedPlaces) -> ReadAgain:
    """Return what some fresh events and the carried ones have in common.

    Two rows are one piece of input where ``PLACE`` is equal, and the line where both have one: a file that grew beyond
    the size up to which lines are numbered has none any more.

    Args:
        fresh: columns ``PLACE_AND_LINE`` of events just read.
        carried: the events that the last run left open.
    """
    again = _match(fresh, carried)
    if not len(again.rows):
        return ReadAgain()
    is_matched = _has_partner(carried.numbers, carried.lines, again.places, again.lines, len(carried.places))
    return ReadAgain(count_events(fresh.take(again.rows)), np.flatnonzero(is_matched))


def drop_read_again(events: pa.Table, carried: CarriedPlaces) -> pa.Table:
    """Return the fresh events without those that are carried over as well: each is judged once, as carried."""
    again = _match(events, carried)
    if not len(again.rows):
        return events
    kept = np.ones(len(events), bool)
    kept[again.rows] = False
    return events.filter(pa.array(kept))


def forget_reasons(carried: pa.Table, rows: Ints) -> pa.Table:
    """Return carried events, ``left_as`` null in these rows: what is read again is judged as any other event.

    Args:
        carried: ``EVENT``.
        rows: numbers of rows of ``carried``.
    """
    read_again = np.zeros(len(carried), bool)
    read_again[rows] = True
    left_as = pc.if_else(pa.array(read_again), pa.scalar(None, pa.string()), carried["left_as"])
    return carried.set_column(carried.column_names.index("left_as"), EVENT.field("left_as"), left_as)


def merge_read_again(parts: Iterable[ReadAgain]) -> ReadAgain:
    """Return what the parts have found together."""
    found = list(parts)
    total: Counter[str] = Counter()
    for part in found:
        total.update(part.fresh)
    rows = [part.carried for part in found]
    return ReadAgain(total, np.unique(np.concatenate(rows)) if rows else np.empty(0, np.int64))


def count_events(carried: pa.Table) -> Counter[str]:
    """Return how many events there are per side."""
    sides = encode(flatten_sides(carried.select(["side"]))["side"])
    counts = np.bincount(sides.values, minlength=sides.room).tolist()
    return Counter({side: count for side, count in zip(sides.words, counts, strict=False) if count})


def count_waiting_by_place(carried: pa.Table) -> int:
    """Return how many spans have no other id than the place of their message on a Kafka topic."""
    columns = flatten_sides(carried.select(["side", "msg_id", "offset_msg_id"]))
    by_place = is_true(pc.equal(columns["msg_id"], columns["offset_msg_id"])) & equals(columns["side"], "otlp")
    return int(by_place.sum())


class _Matched(NamedTuple):
    """Rows of fresh events that are carried as well, and the place (in ``CarriedPlaces``) and line of each."""

    rows: Ints
    places: Ints
    lines: NullableInts


def _match(fresh: pa.Table, carried: CarriedPlaces) -> _Matched:
    columns = flatten_sides(fresh.select(PLACE_AND_LINE))
    rows = np.flatnonzero(carried.places.has_path(columns["path"]))  # of most files nothing is carried
    narrow = {name: take_rows(column, rows) for name, column in columns.items()}
    places, lines = carried.places.find(narrow), NullableInts.of(narrow["line"])
    found = np.flatnonzero(_has_partner(places, lines, carried.numbers, carried.lines, len(carried.places)))
    return _Matched(rows[found], places[found], lines.take(found))


def _has_partner(place_of: Ints, line_of: NullableInts, places: Ints, lines: NullableInts, size: int) -> Mask:
    """Tell which of some rows share a place, and the line where both have one, with any of the others.

    Args:
        place_of: the place of each row, below ``size``; -1 for none.
        line_of: the line of each row.
        places: the place of each of the others, likewise.
        lines: the line of each of the others.
        size: how many places there are.
    """
    is_used, is_without_line = np.zeros(size + 1, bool), np.zeros(size + 1, bool)
    is_used[places[places >= 0]] = True
    is_without_line[places[(places >= 0) & ~lines.known]] = True
    _, lines_coded = np.unique(np.concatenate([line_of.values, lines.values]), return_inverse=True)
    pairs = np.concatenate([place_of, places]) * (len(lines_coded) + 1) + lines_coded
    same_line = np.isin(pairs[: len(place_of)], pairs[len(place_of) :][lines.known & (places >= 0)])
    # A place of -1 indexes the last element, which is never set.
    return is_used[place_of] & (~line_of.known | is_without_line[place_of] | same_line)
