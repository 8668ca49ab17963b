"""Select what is left to the next run: the events of open keys, and the positions of what was open once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import is_known, is_true, take_rows
from spark_jobs.history.carried import POSITION
from spark_jobs.history.lifecycle import COVERED, LEAVING_OPEN
from spark_jobs.judging.columns import NullableInts, equals, flatten_sides
from spark_jobs.judging.counts import CARRIED_ON, find_last
from spark_jobs.schemas import EVENT, SIDE_FIELDS
from spark_jobs.taxonomy import Lifecycle, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.columns import Column, Ints, Mask

CANDIDATE: Final = EVENT.append(pa.field("verdict_row", pa.int64()))
"""An event that may be left open, and the row of its verdict in the table or file that the verdicts are written to."""

CLOSED: Final = pa.schema(
    {
        **{name: SIDE_FIELDS.get(name, pa.string()) for name in (*POSITION, "line")},
        "first_seen_run": pa.int32(),
        "last_ms": pa.int64(),
    }
)
"""The origin of a record of a key that was closed; ``last_ms`` is the key's latest time."""

_DONE: Final = (Lifecycle.RESOLVED.value, Lifecycle.EXPLAINED.value)
_SIDES: Final = ("native", "otlp")


def number_within(verdict_of: Ints, part: Mask, *, offset: int = 0) -> Ints:
    """Return the row of each event's verdict within a file that has ``offset`` rows before; -1 for all others.

    ``verdict_of`` is the row of each event's verdict, -1 for none; ``part`` are the verdicts written, in order.
    """
    numbers = np.append(np.where(part, np.cumsum(part) - 1 + offset, -1), -1)
    return numbers[verdict_of]


def keep_open_events(events: pa.Table, verdict_of: Ints, verdicts: pa.Table, *, offset: int = 0) -> pa.Table:
    """Return ``CANDIDATE``: the events of all keys that may be left open once their reasons are final.

    ``verdict_of`` is the row of each event's verdict in the file, -1 where it has none in it; ``offset`` are the rows
    before ``verdicts``.
    """
    columns = flatten_sides(verdicts.select(["status", "reason"]))
    is_open = equals(columns["status"], Status.PENDING.value)
    is_open |= is_true(pc.is_in(columns["reason"], pa.array(sorted(LEAVING_OPEN))))
    rows = np.flatnonzero(np.append(is_open, False)[np.where(verdict_of < 0, -1, verdict_of - offset)])
    kept = events.take(rows)
    found: dict[str, Any] = {"verdict_row": verdict_of[rows]}
    for field in EVENT:
        lacks = field.name not in kept.column_names
        found[field.name] = pa.nulls(len(rows), field.type) if lacks else kept[field.name].cast(field.type)
    return pa.table(found, schema=CANDIDATE)


def select_left_open(candidates: pa.Table, verdicts: pa.Table) -> pa.Table:
    """Return ``EVENT``: what the next run takes over, with the run that first reported its key and why that is left.

    Of ``verdicts`` it reads ``status``, ``reason``, ``lifecycle`` and ``first_seen_run``.
    """
    columns = flatten_sides(verdicts.select(["status", "reason", "lifecycle", "first_seen_run"]))
    verdict_rows = np.asarray(flatten_sides(candidates.select(["verdict_row"]))["verdict_row"])
    rows = np.flatnonzero(_is_left(columns)[verdict_rows])
    kept, verdict_rows = candidates.take(rows).select(EVENT.names), verdict_rows[rows]
    left_as = pc.coalesce(columns["reason"], columns["status"])
    for name, column in (("first_seen_run", columns["first_seen_run"]), ("left_as", left_as)):
        kept = kept.set_column(EVENT.names.index(name), EVENT.field(name), take_rows(column, verdict_rows))
    return kept


def _is_left(columns: Mapping[str, Column]) -> Mask:
    """Return which keys the next run waits for: the open ones, and young ones that a counted loss covers."""
    lifecycle = columns["lifecycle"]
    is_open = is_true(pc.is_in(lifecycle, pa.array(sorted(CARRIED_ON))))
    is_covered = equals(columns["reason"], COVERED) & is_known(columns["first_seen_run"])
    return is_open | (is_covered & ~equals(lifecycle, Lifecycle.EXPIRED.value))


def find_closed(verdicts: pa.Table, *, since_ms: int) -> pa.Table:
    """Return ``CLOSED`` of the keys that were open when an earlier run ended and are so no longer.

    Args:
        verdicts: ``VERDICT`` with lifecycles.
        since_ms: what is older is forgotten.
    """
    is_done = is_true(pc.is_in(flatten_sides(verdicts.select(["lifecycle"]))["lifecycle"], pa.array(_DONE)))
    columns = flatten_sides(verdicts.select(["first_seen_run", *_SIDES]).filter(pa.array(is_done)))
    parts = []
    for side in _SIDES:
        found: dict[str, Any] = {name: columns[f"{side}.{name}"] for name in (*POSITION[1:], "line")}
        found["side"] = pa.repeat(side, int(is_done.sum()))
        found["first_seen_run"] = columns["first_seen_run"]
        found["last_ms"] = find_last(columns).to_arrow()
        parts.append(pa.table(found).select(CLOSED.names).filter(columns[f"on_{side}"]))
    return merge_closed(parts, since_ms=since_ms)


def merge_closed(parts: Iterable[pa.Table], *, since_ms: int) -> pa.Table:
    """Return one row a position: its first line, the run that first reported it, its key's latest time.

    Args:
        parts: ``CLOSED``, of this run's files and of earlier runs.
        since_ms: what is older is forgotten.
    """
    rows = pa.concat_tables([CLOSED.empty_table(), *(part.cast(CLOSED) for part in parts)])
    last = NullableInts.of(flatten_sides(rows.select(["last_ms"]))["last_ms"])
    recent = rows.filter(pa.array(~last.known | (last.values >= since_ms)))
    merged = recent.group_by(list(POSITION), use_threads=False).aggregate(
        [("line", "min"), ("first_seen_run", "min"), ("last_ms", "max")]
    )
    named = [name.removesuffix("_min").removesuffix("_max") for name in merged.column_names]
    return merged.rename_columns(named).select(CLOSED.names).cast(CLOSED)
