"""What becomes of a key over runs: new, still open, resolved, expired; and which reasons do not count across runs.

A key is *open* while something of it may still come (its other side, the other half of its delivery), or when its loss
has no reason. A key is *covered* when a budget pays for it: budgets tell how many keys are lost and not which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.judging.ages import find_last
from spark_jobs.judging.columns import NullableInts, as_rows, encode, find_groups, flatten_sides, join_codes
from spark_jobs.taxonomy import Lifecycle, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spark_jobs.judging.columns import Column, Ints

__all__ = ["Runs", "assign_lifecycle"]

_OPEN_REASONS: Final = frozenset({Reason.IN_FLIGHT.value, Reason.ABANDONED.value, Reason.UNEXPLAINED.value})
_COVERED: Final = Reason.DROP_ATTRIBUTED.value
_OF_THIS_INPUT: Final = frozenset(
    {Reason.WRITER_SILENT.value, Reason.SHUTDOWN_WINDOW.value, Reason.LATE_BEYOND_RETENTION.value}
)
_PLACE: Final = ("path", "record_index", "raw_hash")


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What a lifecycle depends on beside the verdict.

    Attributes:
        run: the number of this run; ``None`` without a history.
        data_end_ms: the end of the data; ages count from there.
        horizon_ms: until when the data is complete.
        forget_after_ms: open keys older than this are waited for no longer.
        closed: of each record that earlier runs closed ``side, path, record_index, raw_hash, first_seen_run``.
    """

    run: int | None
    data_end_ms: int | None
    horizon_ms: int | None
    forget_after_ms: int
    closed: pa.Table | None = None


class _Key(NamedTuple):
    """What decides about the lifecycle of one key."""

    status: str
    reason: str | None
    reason_detail: str | None
    left_as: str | None
    is_on_both: bool
    is_known: bool
    was_closed: bool
    is_old: bool
    is_young: bool


class _Answer(NamedTuple):
    """The reason as it stays, the lifecycle, and whether the key is left open or covered."""

    reason: str | None
    reason_detail: str | None
    lifecycle: str | None
    is_left: bool


def assign_lifecycle(verdicts: pa.Table, runs: Runs) -> pa.Table:
    """Return ``VERDICT`` with ``lifecycle`` and ``first_seen_run``, the reasons being final.

    What only this run's input seems to explain is no explanation of what an earlier run could not explain: its reason
    is UNEXPLAINED again. The ``first_seen_run`` given tells which rows hold a carried event.
    """
    if not len(verdicts):
        return verdicts
    columns = flatten_sides(verdicts)
    first_seen, closed_run = NullableInts.of(columns["first_seen_run"]), _find_closed(columns, runs.closed)
    answers, answer_of = _answer(columns, first_seen, closed_run, runs)
    is_left = np.array([answer.is_left for answer in answers])[answer_of]
    this_run = NullableInts.constant(len(verdicts), runs.run)
    found = {
        name: pa.array([getattr(answer, name) for answer in answers], pa.string()).take(as_rows(answer_of))
        for name in ("reason", "reason_detail", "lifecycle")
    }
    first = first_seen.coalesce(closed_run.coalesce(this_run).where(is_left))
    return _replace(verdicts, {**found, "first_seen_run": first.to_arrow(pa.int32())})


def _answer(
    columns: Mapping[str, Column], first_seen: NullableInts, closed_run: NullableInts, runs: Runs
) -> tuple[list[_Answer], Ints]:
    """Decide once per distinct key; return the answers, and of each row which is its own."""
    rows, last = len(first_seen.values), find_last(columns)
    age = NullableInts.constant(rows, runs.data_end_ms) - last
    young = np.ones(rows, bool) if runs.horizon_ms is None else last.exceeds(runs.horizon_ms)
    left_as = pc.coalesce(columns["native.left_as"], columns["otlp.left_as"])
    words = [encode(column) for column in (*(columns[name] for name in ("status", "reason", "reason_detail")), left_as)]
    on_both = np.asarray(columns["on_native"]) & np.asarray(columns["on_otlp"])
    flags = [on_both, first_seen.known, closed_run.known, age.exceeds(runs.forget_after_ms), young]
    codes = join_codes(*((one.values, one.room) for one in words), *((flag.astype(np.int64), 2) for flag in flags))
    examples, answer_of = find_groups(codes)
    answers = []
    for row in examples.tolist():
        texts = ([*one.words, None][one.values[row]] for one in words)
        answers.append(_decide(_Key(*texts, *(bool(flag[row]) for flag in flags))))
    return answers, answer_of


def _replace(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def _decide(key: _Key) -> _Answer:
    reason, detail = (Reason.UNEXPLAINED.value, None) if _is_taken_back(key) else (key.reason, key.reason_detail)
    is_open, is_covered = _is_open(key, reason), reason == _COVERED
    lifecycle = _name_lifecycle(key, is_open=is_open, is_covered=is_covered)
    return _Answer(reason, detail, lifecycle, is_open or (is_covered and not key.is_old))


def _is_taken_back(key: _Key) -> bool:
    """Tell whether a key known before has its reason only because this run's input holds little around it.

    A file of today begins after an event of yesterday, and may hold nothing of its topic or its process. Where only
    the record was amiss yesterday, nothing of today's excuses it; where yesterday's run could not yet tell, that a
    process or a topic is gone for good is news.
    """
    lost = key.left_as in {Reason.UNEXPLAINED.value, _COVERED} and key.reason in _OF_THIS_INPUT
    cut = (key.is_known or key.was_closed) and key.reason == Reason.LATE_BEYOND_RETENTION.value
    return lost or cut


def _is_open(key: _Key, reason: str | None) -> bool:
    """Tell whether a key is waited for: one-sided for want of a better reason, or half recorded and not yet settled."""
    alone = key.status in {Status.NATIVE_ONLY.value, Status.OTLP_ONLY.value}
    half = reason == Reason.HALF_RECORD.value and key.is_young
    return key.status == Status.PENDING.value or (alone and reason in _OPEN_REASONS) or half


def _name_lifecycle(key: _Key, *, is_open: bool, is_covered: bool) -> str | None:
    cases = (
        ((is_open or (key.is_known and is_covered)) and key.is_old, Lifecycle.EXPIRED),
        (is_open and key.is_known, Lifecycle.STILL_OPEN),
        (is_open and key.was_closed, Lifecycle.REGRESSED),
        (is_open, Lifecycle.NEW),
        (key.is_known and key.is_on_both, Lifecycle.RESOLVED),
        (key.is_known, Lifecycle.EXPLAINED),
    )
    return next((lifecycle.value for holds, lifecycle in cases if holds), None)


def _find_closed(columns: Mapping[str, Column], closed: pa.Table | None) -> NullableInts:
    """Return for each one-sided key the run that had first reported it open, where an earlier run closed it."""
    rows = len(columns["status"])
    if closed is None or not len(closed):
        return NullableInts.constant(rows, None)
    places = _join_place(*(closed[name].combine_chunks() for name in ("side", *_PLACE)))
    on_native, on_otlp = np.asarray(columns["on_native"]), np.asarray(columns["on_otlp"])
    side = pa.array(np.where(on_native, "native", "otlp"), pa.string())
    own = [pc.coalesce(columns[f"native.{name}"], columns[f"otlp.{name}"]) for name in _PLACE]
    at = NullableInts.of(pc.index_in(_join_place(side, *own), places)).where(on_native != on_otlp)
    return NullableInts.of(closed["first_seen_run"].combine_chunks()).take(at.filled(-1))


def _join_place(*parts: Column) -> Column:
    return pc.binary_join_element_wise(*(part.cast(pa.string()).fill_null("") for part in parts), "\x00")
