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

from spark_jobs.history.places import PLACE, Places
from spark_jobs.judging.ages import find_last
from spark_jobs.judging.columns import NullableInts, as_rows, encode, find_groups, flatten_sides, join_codes
from spark_jobs.taxonomy import Lifecycle, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.judging.columns import Column, Ints

__all__ = [
    "COVERED",
    "LEAVING_OPEN",
    "Answer",
    "ClosedPositions",
    "Key",
    "Runs",
    "assign_lifecycle",
    "decide_lifecycle",
    "find_closed_runs",
]

COVERED: Final = Reason.DROP_ATTRIBUTED.value
"""The reason of a key that a counted loss pays for."""
_OPEN_REASONS: Final = frozenset({Reason.IN_FLIGHT.value, Reason.ABANDONED.value, Reason.UNEXPLAINED.value})
LEAVING_OPEN: Final = _OPEN_REASONS | {COVERED, Reason.HALF_RECORD.value}
"""The reasons with which a key may be left to the next run; PENDING has none and may be, too."""
_OF_THIS_INPUT: Final = frozenset(
    {Reason.WRITER_SILENT.value, Reason.SHUTDOWN_WINDOW.value, Reason.LATE_BEYOND_RETENTION.value}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What a lifecycle depends on beside the verdict.

    Attributes:
        run: the number of this run; ``None`` without a history.
        data_end_ms: the end of the data; ages count from there.
        horizon_ms: until when the data is complete.
        forget_after_ms: open keys older than this are waited for no longer.
    """

    run: int | None
    data_end_ms: int | None
    horizon_ms: int | None
    forget_after_ms: int


@dataclass(frozen=True, slots=True)
class ClosedPositions:
    """Where the records came from that earlier runs closed, and the run that had first reported each open."""

    places: Places
    runs: NullableInts

    @classmethod
    def of(cls, parts: Iterable[pa.Table]) -> ClosedPositions:
        """Return the positions in parts of ``leaving.CLOSED``, each place in one of them only."""
        columns = [flatten_sides(part.select([*PLACE, "first_seen_run"])) for part in parts]
        places, numbers = Places.of(columns)
        runs = [NullableInts.of(one["first_seen_run"]) for one in columns]
        values, known = np.zeros(len(places), np.int64), np.zeros(len(places), bool)
        if runs:
            values[numbers] = np.concatenate([one.values for one in runs])
            known[numbers] = np.concatenate([one.known for one in runs])
        return cls(places, NullableInts(values, known))

    def __len__(self) -> int:
        return len(self.places)

    def find_run(self, columns: Mapping[str, Column]) -> NullableInts:
        """Return the run of the record at each place, null where none was closed; ``columns`` are ``PLACE``."""
        return self.runs.take(self.places.find(columns))


class Key(NamedTuple):
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


class Answer(NamedTuple):
    """The reason as it stays, the lifecycle, and whether the key is left open or covered."""

    reason: str | None
    reason_detail: str | None
    lifecycle: str | None
    is_left: bool


def assign_lifecycle(verdicts: pa.Table, runs: Runs, closed: ClosedPositions | None = None) -> pa.Table:
    """Return ``VERDICT`` with ``lifecycle`` and ``first_seen_run``, the reasons being final.

    What only this run's input seems to explain is no explanation of what an earlier run could not explain: its reason
    is UNEXPLAINED again.

    Args:
        verdicts: ``VERDICT``; a ``first_seen_run`` marks the rows that hold a carried event.
        runs: what lifecycles depend on beside the verdict.
        closed: what earlier runs closed: an open key found there is open again.
    """
    if not len(verdicts):
        return verdicts
    columns = flatten_sides(verdicts)
    first_seen, closed_run = NullableInts.of(columns["first_seen_run"]), find_closed_runs(columns, closed)
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
) -> tuple[list[Answer], Ints]:
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
        answers.append(decide_lifecycle(Key(*texts, *(bool(flag[row]) for flag in flags))))
    return answers, answer_of


def _replace(table: pa.Table, columns: Mapping[str, Any]) -> pa.Table:
    for name, column in columns.items():
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def decide_lifecycle(key: Key) -> Answer:
    """Return what one key comes to."""
    reason, detail = (Reason.UNEXPLAINED.value, None) if _is_taken_back(key) else (key.reason, key.reason_detail)
    is_open, is_covered = _is_open(key, reason), reason == COVERED
    lifecycle = _name_lifecycle(key, is_open=is_open, is_covered=is_covered)
    return Answer(reason, detail, lifecycle, is_open or (is_covered and not key.is_old))


def _is_taken_back(key: Key) -> bool:
    """Tell whether a key known before has its reason only because this run's input holds little around it.

    A file of today begins after an event of yesterday, and may hold nothing of its topic or its process. Where only
    the record was amiss yesterday, nothing of today's excuses it; where yesterday's run could not yet tell, that a
    process or a topic is gone for good is news.
    """
    lost = key.left_as in {Reason.UNEXPLAINED.value, COVERED} and key.reason in _OF_THIS_INPUT
    cut = (key.is_known or key.was_closed) and key.reason == Reason.LATE_BEYOND_RETENTION.value
    return lost or cut


def _is_open(key: Key, reason: str | None) -> bool:
    """Tell whether a key is waited for: one-sided for want of a better reason, or half recorded and not yet settled."""
    alone = key.status in {Status.NATIVE_ONLY.value, Status.OTLP_ONLY.value}
    half = reason == Reason.HALF_RECORD.value and key.is_young
    return key.status == Status.PENDING.value or (alone and reason in _OPEN_REASONS) or half


def _name_lifecycle(key: Key, *, is_open: bool, is_covered: bool) -> str | None:
    cases = (
        ((is_open or (key.is_known and is_covered)) and key.is_old, Lifecycle.EXPIRED),
        (is_open and key.is_known, Lifecycle.STILL_OPEN),
        (is_open and key.was_closed, Lifecycle.REGRESSED),
        (is_open, Lifecycle.NEW),
        (key.is_known and key.is_on_both, Lifecycle.RESOLVED),
        (key.is_known, Lifecycle.EXPLAINED),
    )
    return next((lifecycle.value for holds, lifecycle in cases if holds), None)


def find_closed_runs(columns: Mapping[str, Column], closed: ClosedPositions | None) -> NullableInts:
    """Return for each one-sided key the run that had first reported it open, where an earlier run closed it."""
    if closed is None or not len(closed):
        return NullableInts.constant(len(columns["status"]), None)
    on_native, on_otlp = np.asarray(columns["on_native"]), np.asarray(columns["on_otlp"])
    own = {name: pc.coalesce(columns[f"native.{name}"], columns[f"otlp.{name}"]) for name in PLACE[1:]}
    side = pa.array(np.where(on_native, "native", "otlp"), pa.string())
    return closed.find_run({"side": side, **own}).where(on_native != on_otlp)
