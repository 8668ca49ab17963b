"""Assign the lifecycle of keys over runs (new, still open, resolved, expired) and withdraw premature reasons.

A key is *open* while its other side, or the other half of its delivery, may still come, or when its loss has no reason.
A key is *covered* when a budget covers it: budgets count lost keys without naming them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.columns import fields_of, is_known, map_distinct, take_rows
from spark_jobs.history.carried import POSITION, hash_positions
from spark_jobs.history.history import read_groups
from spark_jobs.judging.columns import NullableInts, either, flatten_sides, is_any_of, is_equal
from spark_jobs.judging.counts import CARRIED_ON, find_last
from spark_jobs.schemas import EVENT, SIDE_FIELDS, VERDICT
from spark_jobs.taxonomy import CALLED_LOST, Lifecycle, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy


COVERED: Final = Reason.DROP_ATTRIBUTED.value
"""The reason of a key that a counted loss covers."""
_OPEN_REASONS: Final = frozenset({Reason.IN_FLIGHT.value, Reason.ABANDONED.value, Reason.UNEXPLAINED.value})
LEAVING_OPEN: Final = _OPEN_REASONS | {COVERED, Reason.HALF_RECORD.value}
"""The reasons with which a key may be left to the next run; PENDING has none and may be, too."""


class OpenKey(NamedTuple):
    """What decides about the lifecycle of one key."""

    status: str
    reason: str | None
    reason_detail: str | None
    is_on_both: bool
    is_known: bool
    was_closed: bool
    is_old: bool
    is_young: bool
    has_earlier_input: bool = False


class AssignedLifecycle(NamedTuple):
    """The reason as it stays, the lifecycle, and whether the key is left open or covered."""

    reason: str | None
    reason_detail: str | None
    lifecycle: str | None
    is_left: bool


_ASSIGNED: Final = pa.struct([*map(VERDICT.field, AssignedLifecycle._fields[:3]), pa.field("is_left", pa.bool_())])


def assign_lifecycle(
    verdicts: pa.Table, policy: Policy, facts: Facts, *, run: int | None, closed: pa.Table | None = None
) -> pa.Table:
    """Return ``VERDICT`` with ``lifecycle`` and ``first_seen_run``, the reasons being final.

    ``run`` is the number of this run, ``None`` without a history; ages count from the end of the data. An open key
    among those ``closed`` by earlier runs is open again, and UNEXPLAINED if its only reason is where this run's input
    begins and those runs had other input.
    """
    if not len(verdicts):
        return verdicts
    columns = flatten_sides(verdicts)
    first_seen, closed_run = NullableInts.of(columns["first_seen_run"]), find_closed_runs(columns, closed)
    last = find_last(columns)
    age = NullableInts.constant(facts.data_end_ms) - last
    is_young = np.ones(len(verdicts), bool) if facts.horizon_ms is None else last.exceeds(facts.horizon_ms)
    on_both = np.asarray(columns["on_native"]) & np.asarray(columns["on_otlp"])
    flags = [on_both, first_seen.known, closed_run.known, age.exceeds(policy.forget_after_ms), is_young]
    texts = [columns[name] for name in ("status", "reason", "reason_detail")]
    key_of = partial(OpenKey, has_earlier_input=facts.has_earlier_input)
    found = fields_of(
        map_distinct(lambda *key: decide_lifecycle(key_of(*key)), _ASSIGNED, *texts, *map(pa.array, flags))
    )
    is_left = np.asarray(found.pop("is_left"))
    first = first_seen.coalesce(closed_run.coalesce(NullableInts.constant(run)).where(is_left))
    for name, column in {**found, "first_seen_run": first.to_arrow(pa.int32())}.items():
        verdicts = verdicts.set_column(verdicts.column_names.index(name), name, column)
    return verdicts


def decide_lifecycle(key: OpenKey) -> AssignedLifecycle:
    """Return the lifecycle of one key."""
    is_taken_back = key.was_closed and not key.has_earlier_input and key.reason == Reason.LATE_BEYOND_RETENTION.value
    reason, detail = (Reason.UNEXPLAINED.value, None) if is_taken_back else (key.reason, key.reason_detail)
    is_open, is_covered = _is_open(key, reason), reason == COVERED
    lifecycle = _name_lifecycle(key, is_open=is_open, is_covered=is_covered)
    return AssignedLifecycle(reason, detail, lifecycle, is_open or (is_covered and not key.is_old))


def _is_open(key: OpenKey, reason: str | None) -> bool:
    """Return whether a key is still open: one-sided without a reason, or half recorded and unsettled."""
    alone = key.status in {Status.NATIVE_ONLY.value, Status.OTLP_ONLY.value}
    half = reason == Reason.HALF_RECORD.value and key.is_young
    return key.status == Status.PENDING.value or (alone and reason in _OPEN_REASONS) or half


def _name_lifecycle(key: OpenKey, *, is_open: bool, is_covered: bool) -> str | None:
    cases = (
        ((is_open or (key.is_known and is_covered)) and key.is_old, Lifecycle.EXPIRED),
        (is_open and key.is_known, Lifecycle.STILL_OPEN),
        (is_open and key.was_closed, Lifecycle.REGRESSED),
        (is_open, Lifecycle.NEW),
        (key.is_known and key.is_on_both, Lifecycle.RESOLVED),
        (key.is_known, Lifecycle.EXPLAINED),
    )
    return next((lifecycle.value for holds, lifecycle in cases if holds), None)


def read_closed(paths: Iterable[str]) -> pa.Table | None:
    """Return ``position`` (a hash) and ``first_seen_run`` of the rows of ``CLOSED``; ``None`` for no file.

    Raises:
        UnreadableInputError: a file is damaged.
    """
    narrow = pa.schema([CLOSED.field(name) for name in (*POSITION, "first_seen_run")])
    parts = [hash_closed(rows) for path in paths for rows in read_groups(path, narrow)]
    return pa.concat_tables(parts).combine_chunks() if parts else None


def hash_closed(closed: pa.Table) -> pa.Table:
    """Return ``CLOSED`` as :func:`read_closed` returns it."""
    columns = flatten_sides(closed)
    return pa.table({"position": pa.array(hash_positions(columns)), "first_seen_run": columns["first_seen_run"]})


def find_closed_runs(columns: Mapping[str, Column], closed: pa.Table | None) -> NullableInts:
    """Return for each one-sided key the run that had first reported it open, where an earlier run closed it.

    ``closed`` is of :func:`read_closed`; each position is there once.
    """
    if closed is None:
        return NullableInts.unknown(len(columns["status"]))
    known = flatten_sides(closed)
    on_native, on_otlp = np.asarray(columns["on_native"]), np.asarray(columns["on_otlp"])
    own = {name: either(columns, name) for name in POSITION[1:]}
    side = pa.array(np.where(on_native, "native", "otlp"), pa.string())
    places = pc.index_in(pa.array(hash_positions({"side": side, **own})), value_set=known["position"])
    return NullableInts.of(known["first_seen_run"].take(places)).where(on_native != on_otlp)


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


def keep_open_events(
    events: pa.Table, verdict_of: Ints, verdicts: pa.Table, part: Mask, *, offset: int = 0
) -> pa.Table:
    """Return ``CANDIDATE``: the events of all keys that may be left open once their reasons are final.

    ``verdict_of`` is the row of each event's verdict, -1 for none. ``part`` are those of ``verdicts`` that are written,
    in order, to a file that has ``offset`` rows before them.
    """
    columns = flatten_sides(verdicts.select(["status", "reason"]))
    is_open = is_equal(columns["status"], Status.PENDING.value) | is_any_of(columns["reason"], LEAVING_OPEN)
    rows = np.flatnonzero(np.append(is_open & part, False)[verdict_of])
    kept = events.take(rows)
    found: dict[str, Any] = {"verdict_row": (np.cumsum(part) - 1 + offset)[verdict_of[rows]]}
    for one in EVENT:
        found[one.name] = kept[one.name] if one.name in kept.column_names else pa.nulls(len(rows), one.type)
    return pa.table(found, schema=CANDIDATE)


def select_left_open(candidates: pa.Table, verdicts: pa.Table) -> pa.Table:
    """Return ``EVENT``: what the next run takes over, with the run that first reported its key and why that is left.

    What an earlier run called lost stays so while a run cannot judge it, as where a side is empty. Of ``verdicts`` this
    reads ``status``, ``reason``, ``lifecycle`` and ``first_seen_run``.
    """
    columns = flatten_sides(verdicts.select(["status", "reason", "lifecycle", "first_seen_run"]))
    verdict_rows = np.asarray(flatten_sides(candidates.select(["verdict_row"]))["verdict_row"])
    rows = np.flatnonzero(_is_left(columns)[verdict_rows])
    kept, verdict_rows = candidates.take(rows).select(EVENT.names), verdict_rows[rows]
    first_seen, left_as = (
        take_rows(column, verdict_rows)
        for column in (columns["first_seen_run"], pc.coalesce(columns["reason"], columns["status"]))
    )
    before = flatten_sides(kept.select(["left_as"]))["left_as"]
    stays_lost = is_equal(left_as, Status.PENDING.value) & is_any_of(before, CALLED_LOST)
    left_as = pc.if_else(pa.array(stays_lost), before, left_as)
    for name, column in (("first_seen_run", first_seen), ("left_as", left_as)):
        kept = kept.set_column(EVENT.names.index(name), EVENT.field(name), column)
    return kept


def _is_left(columns: Mapping[str, Column]) -> Mask:
    """Return which keys the next run waits for: the open ones, and young ones that a counted loss covers."""
    lifecycle = columns["lifecycle"]
    is_open = is_any_of(lifecycle, CARRIED_ON)
    is_covered = is_equal(columns["reason"], COVERED) & is_known(columns["first_seen_run"])
    return is_open | (is_covered & ~is_equal(lifecycle, Lifecycle.EXPIRED.value))


def find_closed(verdicts: pa.Table, *, since_ms: int) -> pa.Table:
    """Return ``CLOSED`` of the keys that were open when an earlier run ended and are so no longer.

    ``verdicts`` is ``VERDICT`` with lifecycles; what is older than ``since_ms`` is forgotten.
    """
    is_done = is_any_of(flatten_sides(verdicts.select(["lifecycle"]))["lifecycle"], _DONE)
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

    ``parts`` are ``CLOSED``, of this run's files and of earlier runs; what is older than ``since_ms`` is forgotten.
    """
    rows = pa.concat_tables([CLOSED.empty_table(), *(part.cast(CLOSED) for part in parts)])
    last = NullableInts.of(flatten_sides(rows.select(["last_ms"]))["last_ms"])
    recent = rows.filter(pa.array(~last.known | (last.values >= since_ms)))
    merged = recent.group_by(list(POSITION), use_threads=False).aggregate(
        [("line", "min"), ("first_seen_run", "min"), ("last_ms", "max")]
    )
    named = [name.removesuffix("_min").removesuffix("_max") for name in merged.column_names]
    return merged.rename_columns(named).select(CLOSED.names).cast(CLOSED)
