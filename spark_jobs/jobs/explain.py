"""Explain the verdicts that have no reason yet: questions to the whole run, reasons, and the rows written again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from bridge.storage import as_path, committed, list_files, open_parquet
from spark_jobs.exchange.packing import group_tasks
from spark_jobs.explain.evidence import TRAFFIC_COLUMNS, collect_evidence, collect_traffic, merge_evidence
from spark_jobs.explain.explainers import explain
from spark_jobs.explain.gaps import GAP_COLUMNS, find_neighbours
from spark_jobs.history.history import write_rows
from spark_jobs.history.lifecycle import ClosedPositions, assign_lifecycle, select_left_open
from spark_jobs.jobs.judge_tasks import CANDIDATES, Counted, merge_counted
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.exchange.engine import Engine
    from spark_jobs.exchange.packing import Piece
    from spark_jobs.explain.budgets import Budgets, Settled
    from spark_jobs.explain.evidence import Evidence, WantedKeys
    from spark_jobs.explain.explainers import Reasons
    from spark_jobs.explain.gaps import Neighbours
    from spark_jobs.jobs.judge_tasks import BucketPlan
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy

_EXPLAINED: Final = "explained-"
_TASK_ROWS: Final = 200
"""So many rows of the residue are worth a task: most files have some tens, and to count them takes 16 ms at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The inputs of the explanation.

    Attributes:
        policy: the run's policy.
        facts: of the whole input.
        traffic: row groups of the spans; the trace topic's own sends among them show ids.
        budgets: cover keys that no rule explains.
    """

    policy: Policy
    facts: Facts
    traffic: Sequence[Piece]
    budgets: Budgets


def explain_residue(engine: Engine, how: Explanation, plan: BucketPlan, residue: pa.Table, settled: Settled) -> Counted:
    """Write the residue, ``RESIDUE`` in the order of its files, with its reasons beside the settled verdicts."""
    files = _residue_files(plan)
    found = _find_reasons(engine, how, group_by_bucket([*list_files(plan.settled), *files]), residue)
    if how.budgets.is_wanted:
        found = how.budgets.spend(residue, found, settled)
    reasons = pa.table({"reason": found.reasons, "reason_detail": found.details})
    sizes = [open_parquet(file).metadata.num_rows for file in files]
    ends = np.cumsum(sizes).tolist()
    # Taken, as a slice is pickled with all the memory that it is a part of.
    parts = [
        (file, reasons.take(np.arange(end - size, end))) for file, size, end in zip(files, sizes, ends, strict=True)
    ]
    tasks = group_tasks(parts, lambda part: len(part[1]), _TASK_ROWS)
    merge = partial(merge_counted, plan.counting)
    return merge(engine.map(partial(_write_reasons, plan), tasks, merge=merge))


def _residue_files(plan: BucketPlan) -> list[str]:
    return [file for file in list_files(plan.residue) if not as_path(file).name.startswith(CANDIDATES)]


def group_by_bucket(files: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the files of each bucket: all verdicts of a message are in one of these."""
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(as_path(file).name.removeprefix(_EXPLAINED), []).append(file)
    return [tuple(each) for _, each in sorted(found.items())]


def _find_reasons(engine: Engine, how: Explanation, buckets: Sequence[tuple[str, ...]], residue: pa.Table) -> Reasons:
    """Return the reason of each row of the residue, before any budget is spent."""
    return explain(
        residue,
        policy=how.policy,
        facts=how.facts,
        collect=lambda wanted: engine.map(partial(_collect, wanted), [*buckets, *how.traffic], merge=merge_evidence),
        find_neighbours=lambda wanted: engine.map(partial(_find_neighbours, wanted), buckets),
    )


def _collect(wanted: WantedKeys, part: Any) -> Evidence:
    if isinstance(part, tuple):
        return collect_evidence(pa.concat_tables([_read(file, wanted.columns) for file in part]), wanted)
    file = open_parquet(part.path)
    table = file.read_row_group(part.group, columns=["scope", "topic", *TRAFFIC_COLUMNS], use_threads=False)
    traffic: Any = pc.equal(table["scope"], pa.scalar(Reason.TRACE_TRAFFIC.value))
    if part.trace_topics:
        traffic = pc.or_kleene(traffic, pc.is_in(table["topic"], pa.array(part.trace_topics, pa.string())))
    return collect_traffic(table.filter(traffic), wanted)


def _find_neighbours(wanted: pa.Table, files: tuple[str, ...]) -> Neighbours:
    return find_neighbours(pa.concat_tables([_read(file, GAP_COLUMNS) for file in files]), wanted)


def _read(file: str, columns: Sequence[str]) -> pa.Table:
    # read_table() would take the fields of a side out of it
    table: pa.Table = open_parquet(file).read(columns=list(columns), use_threads=False)
    return table


def _write_reasons(plan: BucketPlan, parts: Sequence[tuple[str, pa.Table]]) -> Counted:
    closed = ClosedPositions.read(plan.history.closed)
    verdicts = pa.concat_tables(_write_again(plan, closed, *part) for part in parts)
    return Counted.of(verdicts, plan.counting, plan.history)


def _write_again(plan: BucketPlan, closed: ClosedPositions | None, path: str, reasons: pa.Table) -> pa.Table:
    name = f"{_EXPLAINED}{as_path(path).name}"
    verdicts = open_parquet(path).read(use_threads=False).combine_chunks()
    found = {name: reasons[name] for name in ("reason", "reason_detail")}
    # The kernel took these keys for open ones; their age is found again.
    found["first_seen_run"] = _least_run(verdicts)
    for column_name, column in found.items():
        verdicts = verdicts.set_column(verdicts.column_names.index(column_name), column_name, column)
    verdicts = assign_lifecycle(verdicts, plan.runs, closed)
    with committed(str(as_path(plan.settled) / name)) as unready:
        parquet.write_table(verdicts, unready, compression="zstd", write_statistics=False)
    candidates = as_path(path).with_name(f"{CANDIDATES}{as_path(path).name}")
    if plan.history.events is not None and candidates.exists():
        left = select_left_open(open_parquet(candidates).read(use_threads=False), verdicts)
        if len(left):
            write_rows(left, str(as_path(plan.history.events) / name))
    return verdicts


def _least_run(verdicts: pa.Table) -> Any:
    runs = [pc.struct_field(verdicts[side], "first_seen_run") for side in ("native", "otlp")]
    return pc.min_element_wise(*runs).combine_chunks()
