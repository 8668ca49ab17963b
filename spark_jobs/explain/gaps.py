"""Gaps in a consumer group's line of messages: where the one just before or after is missing too.

That is how an outage looks, whatever trace was switched off for. The line is the group's messages of one hour, in the
order of their first deliveries. Tasks have all deliveries of their messages: each returns the nearest neighbours that
it has, and the nearest of all are chosen from these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.judging.columns import (
    NullableInts,
    encode,
    equals,
    find_groups,
    flatten_sides,
    is_known,
    is_true,
    join_codes,
    least_per_group,
    rank_words,
)
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.judging.columns import Ints, Mask

__all__ = ["DELIVERIES", "GAP_COLUMNS", "Neighbours", "find_neighbours", "is_in_gap"]

GAP_COLUMNS: Final = ["kind", "msg_id", "group", "event_ms", "native.start_ms"]
"""The columns of ``VERDICT`` that ``find_neighbours`` reads; of ``native`` any field, to tell where it is absent."""

_TEXT: Final[Any] = pa.string()
DELIVERIES: Final = pa.schema({"group": _TEXT, "msg_id": _TEXT, "at_ms": pa.int64()})
"""Messages of groups whose neighbours are wanted, each once; ``at_ms`` is the first believable time of a delivery."""

_LINE_MS: Final = 3_600_000
_NO_TIME: Final = -1


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Of each wanted delivery the nearest message on one side of its line; all arrays have a place for each.

    Attributes:
        found: whether there is one.
        at_ms: its time.
        msg_ids: its id.
        recorded: whether any of its deliveries in this group has a native record.
    """

    found: Mask
    at_ms: Ints
    msg_ids: npt.NDArray[Any]
    recorded: Mask


def find_neighbours(verdicts: pa.Table, wanted: pa.Table) -> tuple[Neighbours, Neighbours]:
    """Return the nearest messages before and after each wanted one, among those of ``verdicts``.

    Args:
        verdicts: ``VERDICT`` with at least ``GAP_COLUMNS``: all rows of each message that has any.
        wanted: ``DELIVERIES``.
    """
    line = _Line(_messages_of(verdicts, wanted), wanted)
    return line.find(backwards=False), line.find(backwards=True)


def _messages_of(verdicts: pa.Table, wanted: pa.Table) -> pa.Table:
    """Return ``DELIVERIES`` and ``recorded`` of the groups that are wanted."""
    columns = flatten_sides(verdicts.select(["kind", "msg_id", "group", "event_ms", "native"]))
    groups = pc.unique(wanted["group"])
    is_concerned = equals(columns["kind"], Kind.CONSUME.value) & is_known(columns["msg_id"])
    rows = np.flatnonzero(is_concerned & is_true(pc.is_in(columns["group"], value_set=groups)))
    group, message = (columns[name].take(pa.array(rows)) for name in ("group", "msg_id"))
    codes = [encode(column) for column in (group, message)]
    examples, number = find_groups(join_codes(*((each.values, each.room) for each in codes)))
    at_ms = least_per_group(number, len(examples), NullableInts.of(columns["event_ms"]).take(rows).believable())
    recorded = np.zeros(len(examples), bool)
    np.logical_or.at(recorded, number, is_true(columns["on_native"])[rows])
    chosen = pa.array(examples)
    arrays = [group.take(chosen), message.take(chosen), at_ms.to_arrow(), pa.array(recorded)]
    return pa.table(arrays, schema=DELIVERIES.append(pa.field("recorded", pa.bool_())))


class _Line:
    """The messages of a task and the wanted ones in one order: by group, hour, time and id."""

    def __init__(self, messages: pa.Table, wanted: pa.Table) -> None:
        columns = flatten_sides(pa.concat_tables([messages.select(DELIVERIES.names), wanted]))
        groups, ids = encode(columns["group"]), encode(columns["msg_id"])
        at_ms = NullableInts.of(columns["at_ms"])
        hours = np.where(at_ms.known, at_ms.values // _LINE_MS, _NO_TIME)
        self._lines = join_codes((groups.values, groups.room), (hours + 1, int(hours.max(initial=0)) + 2))
        self._times = at_ms.filled(0)
        self._ranks = rank_words(ids.words)[ids.values]
        self._ids = np.array([*ids.words, None], object)[ids.values]
        self._recorded = np.append(is_true(flatten_sides(messages)["recorded"]), np.zeros(len(wanted), bool))
        self._is_wanted = np.arange(len(self._lines)) >= len(messages)

    def find(self, *, backwards: bool) -> Neighbours:
        """Return the nearest message before each wanted one; ``backwards`` the nearest after it."""
        # A wanted message meets itself among the others, at its own place, and must come to stand before it.
        itself = self._is_wanted if backwards else ~self._is_wanted
        order = np.lexsort((itself, self._ranks, self._times, self._lines))
        if backwards:
            order = order[::-1]
        places = np.where(self._is_wanted[order], -1, np.arange(len(order)))
        last = np.maximum.accumulate(places) if len(order) else places
        nearest = np.empty(len(order), np.int64)
        nearest[order] = np.where(last >= 0, order[last], -1)
        nearest = nearest[self._is_wanted]
        found = (nearest >= 0) & (self._lines[nearest] == self._lines[self._is_wanted])
        return Neighbours(found, self._times[nearest], self._ids[nearest], self._recorded[nearest])


def is_in_gap(parts: Sequence[tuple[Neighbours, Neighbours]], wanted: int) -> Mask:
    """Tell which of ``wanted`` unrecorded messages have a neighbour that is not recorded either.

    Args:
        parts: what ``find_neighbours`` returned for each part of the run, about the same messages.
        wanted: how many there are.
    """
    unrecorded = np.zeros(wanted, bool)
    for place, is_nearer in ((0, np.greater), (1, np.less)):
        best: Neighbours | None = None
        for part in parts:
            best = part[place] if best is None else _nearer(best, part[place], is_nearer)
        if best is not None:
            unrecorded |= best.found & ~best.recorded
    return unrecorded


def _nearer(one: Neighbours, other: Neighbours, is_nearer: Any) -> Neighbours:
    is_between = is_nearer(other.at_ms, one.at_ms)
    is_tied = other.found & one.found & (other.at_ms == one.at_ms)
    is_between[is_tied] = is_nearer(other.msg_ids[is_tied], one.msg_ids[is_tied]).astype(bool)
    chosen = other.found & (~one.found | is_between)
    return Neighbours(
        one.found | other.found,
        np.where(chosen, other.at_ms, one.at_ms),
        np.where(chosen, other.msg_ids, one.msg_ids),
        np.where(chosen, other.recorded, one.recorded),
    )
