"""Slots: how one-sided keys become a few counts for a budget, and which keys of a count it covers.

A *slot* is everything that tells one lost key from another as far as a budget can: the side that lost, service, group,
process, time. Within a slot the earliest keys are covered first, and of equal times those with the least hash. The
order of rows decides nothing.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from spark_jobs.explain.budgets.allocation import CELL_MS, Loss
from spark_jobs.explain.budgets.spark_hash import spark_hash
from spark_jobs.explain.residue import own_field
from spark_jobs.judging.columns import LATEST, NullableInts, apply_to_distinct, equals, is_true
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from spark_jobs.explain.budgets.allocation import Covered
    from spark_jobs.judging.columns import Column, Ints, Mask

__all__ = ["MOST_SLOTS", "Slot", "Slotted", "choose_covered", "count_losses", "find_slots", "make_slots"]

MOST_SLOTS: Final = 50_000
"""The keys of slots beyond the largest ones stay unexplained, which is the stricter word."""

_END: Final = "end of "  # put before the name of a slot, which is a JSON object
_MOST_STRETCHES: Final = 200  # of more, the cells between the first and the last one are told apart as well
_ID_DIGITS: Final = (32, 56)  # RocketMQ's unique ids, with an address of IPv4 or IPv6
_TAIL_DIGITS: Final = 24  # process id and what follows it
# A line end behind the digits is no difference: Java's $ stands before one, too.
_HEX: Final = re.compile(r"[0-9A-Fa-f]+(?:\r\n|[\n\r\u0085\u2028\u2029])?")
_HASHED: Final = ("kind", "msg_id", "group", "attempt_id", "native.raw_hash", "otlp.raw_hash", "event_ms")
_CONTROL: Final = {code: f"\\u{code:04X}" for code in range(0x20)}
_ESCAPED: Final = str.maketrans(
    {**_CONTROL, 8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r", ord('"'): r"\"", ord("\\"): r"\\"}
)


class Slot(NamedTuple):
    """What a budget tells of a lost key; ``None`` is unknown. ``cell`` is its time in ``CELL_MS``."""

    lost: str
    service: str | None
    group: str | None
    process: str | None
    cell: int | None

    @property
    def name(self) -> str:
        """The slot as a JSON object without nulls: slots of equal rank are ordered by it."""
        named = zip(("lost", "service", "grp", "process", "cell"), self, strict=True)
        return "{" + ",".join(f'"{name}":{_to_json(value)}' for name, value in named if value is not None) + "}"


def _to_json(value: str | int) -> str:
    return json.dumps(value) if isinstance(value, int) else f'"{value.translate(_ESCAPED)}"'


@dataclass(frozen=True, slots=True)
class Slotted:
    """Rows by slot.

    Attributes:
        slots: the distinct ones.
        slot_of: of each row the place of its slot.
        when_ms: when each event was over, as far as it is believable.
    """

    slots: Sequence[Slot]
    slot_of: Ints
    when_ms: NullableInts


def find_slots(rows: Mapping[str, Column], near: Sequence[range] = ()) -> Slotted:
    """Return the slots of residue rows.

    Args:
        rows: columns of ``RESIDUE``.
        near: the cells that a budget tells apart; the time of any other key is no part of its slot.
    """
    lost = pa.array(np.where(is_true(rows["on_native"]), "otlp", "native"))
    columns = {name: own_field(rows, name) for name in ("service", "group_name", "start_ms", "end_ms")}
    return make_slots(lost, rows, columns, near)


def make_slots(lost: Column, rows: Mapping[str, Column], own: Mapping[str, Column], near: Sequence[range]) -> Slotted:
    """Return the slots of rows.

    Args:
        lost: the side that lost each row.
        rows: ``kind``, ``msg_id`` and ``attempt_id`` of each.
        own: ``service``, ``group_name``, ``start_ms`` and ``end_ms`` of the other side's record.
        near: as for ``find_slots``.
    """
    when_ms = NullableInts.of(own["end_ms"]).believable().coalesce(NullableInts.of(own["start_ms"]).believable())
    cells = when_ms.values // CELL_MS
    cell = NullableInts(cells, when_ms.known & _is_inside(cells, near)).to_arrow()
    slots, slot_of = apply_to_distinct(Slot, lost, own["service"], own["group_name"], _process(rows), cell)
    return Slotted(slots, slot_of, when_ms)


def _is_inside(cells: Ints, near: Sequence[range]) -> Mask:
    stretches = near if len(near) <= _MOST_STRETCHES else [range(near[0].start, near[-1].stop)]
    inside = np.zeros(len(cells), bool)
    for stretch in stretches:
        inside |= (cells >= stretch.start) & (cells < stretch.stop)
    return inside


def _process(rows: Mapping[str, Column]) -> Column:
    """Return the process id in the id that the losing process made: a send's message id, a delivery's attempt id."""
    made: list[str | None] = [None] * len(rows["kind"])
    for kind, name in ((Kind.PUBLISH, "msg_id"), (Kind.CONSUME, "attempt_id")):
        chosen = np.flatnonzero(equals(rows["kind"], kind.value))
        for row, text in zip(chosen.tolist(), rows[name].take(pa.array(chosen)).to_pylist(), strict=True):
            made[row] = _process_in(text)
    return pa.array(made, pa.string())


def _process_in(made: str | None) -> str | None:
    if made is None or len(made) not in _ID_DIGITS or not _HEX.fullmatch(made):
        return None
    begin = len(made) - _TAIL_DIGITS
    return made[begin : begin + 4].upper()


def count_losses(
    slotted: Slotted, is_open: Mask, ends: Mapping[Slot, int], homes: Mapping[str | None, frozenset[str]]
) -> list[Loss]:
    """Return the largest ``MOST_SLOTS`` slots of the open keys as losses.

    Args:
        slotted: the residue.
        is_open: which of its rows have no reason.
        ends: deliveries by slot whose native end alone is lost. They come first: what pays for them is spent.
        homes: the services that spans show for a native record's group.
    """
    counts = np.bincount(slotted.slot_of[is_open], minlength=len(slotted.slots)).tolist()
    found = [(1, -count, slot.name, slot) for slot, count in zip(slotted.slots, counts, strict=True) if count]
    found += [(0, -count, _END + slot.name, slot) for slot, count in ends.items()]
    return [
        Loss(
            slot=name,
            side=slot.lost,
            count=-count,
            services=homes.get(slot.group) if slot.service is None else frozenset({slot.service}),
            group=slot.group,
            process=slot.process,
            cell=slot.cell,
            known=not rank,
        )
        for rank, count, name, slot in sorted(found, key=lambda each: each[:3])[:MOST_SLOTS]
    ]


def choose_covered(
    rows: Mapping[str, Column], slotted: Slotted, is_open: Mask, covered: Sequence[Covered]
) -> list[tuple[int, str]]:
    """Return the rows that are covered, each with the cause.

    Args:
        rows: columns of ``RESIDUE``.
        slotted: their slots, as they were counted.
        is_open: which rows have no reason.
        covered: how many keys of which slot.
    """
    causes: defaultdict[str, list[Covered]] = defaultdict(list)
    for each in covered:
        causes[each.slot].append(each)
    wanted = {place: causes[slot.name] for place, slot in enumerate(slotted.slots) if slot.name in causes}
    chosen = np.flatnonzero(is_open & np.isin(slotted.slot_of, list(wanted)))
    when_ms, slot_of = slotted.when_ms.take(chosen), slotted.slot_of[chosen]
    order = chosen[np.lexsort((when_ms.filled(LATEST), ~when_ms.known, slot_of))]
    found: list[tuple[int, str]] = []
    for members in np.split(order, np.flatnonzero(np.diff(slotted.slot_of[order])) + 1):
        if len(members):
            found += _share(rows, slotted.when_ms, members.tolist(), wanted[int(slotted.slot_of[members[0]])])
    return found


def _share(
    rows: Mapping[str, Column], when_ms: NullableInts, members: list[int], covered: Sequence[Covered]
) -> Iterator[tuple[int, str]]:
    """Yield the covered ones of a slot's rows, which are in order but for equal times."""
    bounds = list(accumulate(each.count for each in covered))
    times = [int(when_ms.values[row]) if when_ms.known[row] else None for row in members]
    for bound in bounds:
        if 0 < bound < len(members) and times[bound - 1] == times[bound]:
            begin, end = times.index(times[bound]), len(times) - times[::-1].index(times[bound])
            members[begin:end] = sorted(members[begin:end], key=lambda row: _hash_row(rows, row))
    for each, begin, end in zip(covered, [0, *bounds], bounds, strict=False):
        for row in members[begin:end]:
            yield row, each.cause


def _hash_row(rows: Mapping[str, Column], row: int) -> int:
    return spark_hash(*(rows[name][row].as_py() for name in _HASHED))
