"""Days that follow each other on one history: events are judged, and what is left open is carried into the next day."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from spark_jobs.history.carried import CarriedPositions, carry_over_events, drop_read_again
from spark_jobs.history.history import open_history, read_rows, write_rows
from spark_jobs.history.leaving import (
    CLOSED,
    find_closed,
    keep_open_events,
    merge_closed,
    number_within,
    select_left_open,
)
from spark_jobs.history.lifecycle import ClosedPositions, Runs, assign_lifecycle
from spark_jobs.judging.columns import equals, flatten_sides
from spark_jobs.judging.kernel import judge
from spark_jobs.policy.policy import read_policy
from spark_jobs.schemas import EVENT, NORMALISED
from tests.support.events import publish
from tests.support.kernel_runs import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spark_jobs.drops import CountedDrop
    from spark_jobs.history.carried import CarriedOver
    from spark_jobs.judging.plan import Plan

MINUTE_MS, DAY_MS = 60_000, 86_400_000


@dataclass(frozen=True)
class Day:
    """The verdicts of a day, what it carried over, and the events that it left open."""

    rows: list[dict[str, Any]]
    carried: CarriedOver
    left: list[dict[str, Any]]

    @property
    def verdicts(self) -> dict[str, dict[str, Any]]:
        """By message id; of a message with several, one that is or was open before others."""
        return {row["msg_id"]: row for row in sorted(self.rows, key=lambda row: row["lifecycle"] is not None)}

    @property
    def lifecycle_of(self) -> dict[str, tuple[str, int]]:
        """The lifecycle of each key that is or was open, and the run that first reported it."""
        found = {msg_id: (row["lifecycle"], row["first_seen_run"]) for msg_id, row in self.verdicts.items()}
        return {msg_id: value for msg_id, value in found.items() if value[0]}

    @property
    def lifecycles(self) -> Counter[str]:
        return Counter(row["lifecycle"] for row in self.rows if row["lifecycle"])

    @property
    def reasons(self) -> Counter[str]:
        return Counter(row["reason"] for row in self.rows if row["reason"])


class Here:
    """Runs every task at once, in this process."""

    name = "here"
    parallelism = 2

    def map(self, function, tasks):
        return [function(task) for task in tasks]


def both(msg_id: str, at_ms: int, **fields: Any) -> list[dict[str, Any]]:
    """Return a send that both sides recorded."""
    return [publish(side, msg_id, at_ms=at_ms, **fields) for side in ("native", "otlp")]


def run_day(
    root: Path,
    events: list[dict[str, Any]],
    *,
    explain: Callable[[dict[str, Any]], tuple[str, str] | None] = lambda _: None,
    used: tuple[CountedDrop, ...] = (),
    commits: bool = True,
    **policy: Any,
) -> Day:
    """Judge ``events`` on the history below ``root``.

    Args:
        root: where the history is.
        events: rows of ``EVENT``, just read.
        explain: returns reason and detail of a residue row, or ``None``.
        used: the counted losses that were spent on keys.
        commits: whether the run ends well.
        policy: attributes of the policy.
    """
    rules = replace(read_policy(None), **policy)
    with open_history(root / "history") as past:
        work = root / f"work-{past.run}-{commits}"
        work.mkdir(parents=True)
        plan = plan_of(events, rules)
        runs = Runs(
            run=past.run,
            data_end_ms=plan.data_end_ms,
            horizon_ms=plan.horizon_ms,
            forget_after_ms=rules.forget_after_ms,
        )
        fresh = str(work / "fresh.parquet")
        parquet.write_table(pa.Table.from_pylist([{**row, "bad": None} for row in events], schema=NORMALISED), fresh)
        carried = carry_over_events(Here(), past.carried_files(), [fresh], str(work / "carried"))
        rows = _name_by_position(_events_to_judge(fresh, carried))
        verdicts, left = _judge(rows, plan, runs, ClosedPositions.read(past.closed_files()), explain)
        directory = past.make_events_directory()
        if len(left):
            write_rows(left, f"{directory}/part-00000.parquet")
        since_ms = (plan.data_end_ms or 0) - rules.forget_after_ms
        closed = [find_closed(verdicts, since_ms=since_ms), *(read_rows(path, CLOSED) for path in past.closed_files())]
        past.keep_closed(merge_closed(closed, since_ms=since_ms))
        past.keep_used_drops(used)
        if commits:
            past.commit({"run": past.run})
        return Day(verdicts.to_pylist(), carried, left.to_pylist())


def _events_to_judge(fresh: str, carried: CarriedOver) -> pa.Table:
    events = parquet.read_table(fresh).select(EVENT.names)
    if carried.again:
        events = drop_read_again(events, CarriedPositions.read(carried.again))
    return pa.concat_tables([events, *(read_rows(path, EVENT) for path in carried.files)])


def _name_by_position(events: pa.Table) -> pa.Table:
    """Give spans that only know the position of their message the id that a native send names for it."""
    rows = events.to_pylist()
    sends = [row for row in rows if row["side"] == "native" and row["kind"] == "publish"]
    ids = {row["offset_msg_id"]: row["msg_id"] for row in sends}
    for row in rows:
        if row["side"] == "otlp" and row["msg_id"] == row["offset_msg_id"]:
            row["msg_id"] = ids.get(row["msg_id"], row["msg_id"])
    return pa.Table.from_pylist(rows, schema=EVENT)


def _judge(
    events: pa.Table,
    plan: Plan,
    runs: Runs,
    closed: Any,
    explain: Callable[[dict[str, Any]], tuple[str, str] | None],
) -> tuple[pa.Table, pa.Table]:
    """Return the verdicts and the events left open, as a run makes them: settled keys first, the residue after."""
    judged = judge(events, plan)
    is_residue = equals(flatten_sides(judged.verdicts)["reason"], "UNEXPLAINED")
    final, left = [], []
    for part in (~is_residue, is_residue):
        verdicts = judged.verdicts.filter(pa.array(part))
        candidates = keep_open_events(judged.events, number_within(judged.verdict_of, part), verdicts)
        if part is is_residue:
            verdicts = _explain(verdicts, explain)
        final.append(assign_lifecycle(verdicts, runs, closed))
        left.append(select_left_open(candidates, final[-1]))
    return pa.concat_tables(final), pa.concat_tables(left)


def _explain(residue: pa.Table, explain: Callable[[dict[str, Any]], tuple[str, str] | None]) -> pa.Table:
    found = [explain(row) or (row["reason"], row["reason_detail"]) for row in residue.to_pylist()]
    for number, name in enumerate(("reason", "reason_detail")):
        column = pa.array([one[number] for one in found], pa.string())
        residue = residue.set_column(residue.column_names.index(name), name, column)
    return residue
