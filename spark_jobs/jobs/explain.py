"""Explain the verdicts that have no reason yet: ask the whole run, weigh the answers, write the rows again."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import functions as F

from spark_jobs.explain.answers import merge_answers
from spark_jobs.explain.explainers import explain, find_evidence, find_gap_questions
from spark_jobs.explain.gaps import GAP_COLUMNS, find_neighbours, is_in_gap
from spark_jobs.explain.questions import TRAFFIC_COLUMNS, answer, answer_traffic, wanted_questions
from spark_jobs.history.lifecycle import assign_lifecycle
from spark_jobs.jobs.judge_tasks import Counted, count_file
from spark_jobs.sources.files import spark_path, spark_target
from spark_jobs.spark_schemas import VERDICT
from spark_jobs.storage import committed, list_files
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.exchange.packing import Piece
    from spark_jobs.exchange.spark import SparkEngine
    from spark_jobs.explain.answers import Answers
    from spark_jobs.explain.questions import Questions
    from spark_jobs.history.lifecycle import Runs
    from spark_jobs.jobs.judge_tasks import BucketPlan
    from spark_jobs.judging.counts import CountPlan
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy

__all__ = ["VERDICTS", "Explanation", "explain_residue"]

VERDICTS: Final = "verdicts"
"""The directory of the verdicts' parquet files under ``out``."""
_ASKED_ROWS: Final = 100_000
"""So many rows ask at once: their answers are held in the driver, some 20 keys a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the residue is explained by.

    Attributes:
        policy: what the run tolerates.
        facts: what is known of the whole input.
        traffic: the row groups of the spans; the trace topic's own sends among them tell ids.
        finish: what is done to verdicts whose reason is final, row by row.
        last: the budgets, given the explained residue, already written, and the settled verdicts; ``None`` for none.
    """

    policy: Policy
    facts: Facts
    traffic: Sequence[Piece]
    finish: Callable[[DataFrame], DataFrame]
    last: Callable[[DataFrame, DataFrame], DataFrame] | None = None


def explain_residue(
    spark: SparkSession, engine: SparkEngine, how: Explanation, plan: BucketPlan, residue: pa.Table
) -> list[Counted]:
    """Write the residue with its reasons beside the settled verdicts and return what it comes to.

    Args:
        spark: the session of the run.
        engine: runs the tasks.
        how: what the residue is explained by.
        plan: where both parts of the verdicts lie.
        residue: ``RESIDUE``, the rows of the residue's files, in the order of their names.
    """
    files = list_files(plan.residue)
    found = _find_reasons(engine, how, _buckets(plan), residue)
    sizes = [parquet.ParquetFile(file).metadata.num_rows for file in files]
    ends = np.cumsum(sizes).tolist()
    parts = [
        (file, found.slice(end - size, size).combine_chunks())
        for file, size, end in zip(files, sizes, ends, strict=True)
    ]
    if how.last is None:
        return engine.map(partial(_write_reasons, plan.settled, plan.runs, plan.counting), parts)
    target = Path(plan.residue).with_name("explained")
    target.mkdir()
    engine.map(partial(_write_reasons, str(target), plan.runs, plan.counting), parts)
    return _spend(spark, how, plan, target)


def _buckets(plan: BucketPlan) -> list[tuple[str, ...]]:
    """Return the files of each bucket: all rows of a message are in one of these."""
    found: dict[str, list[str]] = {}
    for directory in (plan.settled, plan.residue):
        for file in list_files(directory):
            found.setdefault(Path(file).name, []).append(file)
    return [tuple(files) for _, files in sorted(found.items())]


def _find_reasons(
    engine: SparkEngine, how: Explanation, buckets: Sequence[tuple[str, ...]], residue: pa.Table
) -> pa.Table:
    """Return ``reason`` and ``reason_detail`` of each row of the residue."""
    evidence = []
    for begin in range(0, len(residue), _ASKED_ROWS):
        rows = residue.slice(begin, _ASKED_ROWS)
        questions = wanted_questions(rows, how.policy)
        answers = engine.map(partial(_answer, questions), [*buckets, *how.traffic])
        evidence.append(find_evidence(rows, merge_answers(answers), policy=how.policy, facts=how.facts))
    asked = find_gap_questions(residue, evidence)
    gaps = None
    if len(asked):
        gaps = asked, is_in_gap(engine.map(partial(_find_neighbours, asked), buckets), len(asked))
    reasons = explain(residue, evidence, gaps, policy=how.policy)
    return pa.table({"reason": reasons.reasons, "reason_detail": reasons.details})


def _answer(questions: Questions, part: Any) -> Answers:
    """Return what the files of a bucket, or a row group of spans, answer."""
    if isinstance(part, tuple):
        return merge_answers([answer(_read(file, questions.columns), questions) for file in part])
    file = parquet.ParquetFile(part.path)
    table = file.read_row_group(part.group, columns=["scope", "topic", *TRAFFIC_COLUMNS], use_threads=False)
    traffic: Any = pc.equal(table["scope"], pa.scalar(Reason.TRACE_TRAFFIC.value))
    if part.trace_topics:
        traffic = pc.or_kleene(traffic, pc.is_in(table["topic"], pa.array(part.trace_topics, pa.string())))
    return answer_traffic(table.filter(traffic), questions)


def _find_neighbours(asked: pa.Table, files: tuple[str, ...]) -> Any:
    return find_neighbours(pa.concat_tables([_read(file, GAP_COLUMNS) for file in files]), asked)


def _read(file: str, columns: Sequence[str]) -> pa.Table:
    # read_table() would take the fields of a side out of it
    return parquet.ParquetFile(file).read(columns=list(columns), use_threads=False)


def _write_reasons(target: str, runs: Runs, counting: CountPlan, part: tuple[str, pa.Table]) -> Counted:
    """Write a file of the residue again, each row with its reason and lifecycle, and count it."""
    path, reasons = part
    verdicts = parquet.read_table(path, use_threads=False).combine_chunks()
    found = {name: reasons[name] for name in ("reason", "reason_detail")}
    # The kernel took these keys for open ones; what was said of their age is said again.
    found["first_seen_run"] = _least_run(verdicts)
    for name, column in found.items():
        verdicts = verdicts.set_column(verdicts.column_names.index(name), name, column)
    verdicts = assign_lifecycle(verdicts, runs)
    with committed(str(Path(target) / f"explained-{Path(path).name}")) as unready:
        parquet.write_table(verdicts, unready, compression="zstd", write_statistics=False)
    return Counted.of(verdicts, counting)


def _least_run(verdicts: pa.Table) -> Any:
    runs = [pc.struct_field(verdicts[side], "first_seen_run") for side in ("native", "otlp")]
    return pc.min_element_wise(*runs).combine_chunks()


def _spend(spark: SparkSession, how: Explanation, plan: BucketPlan, explained: Path) -> list[Counted]:
    """Let the budgets pay for what is still open, and put the result beside the settled verdicts."""
    if how.last is None:
        return []
    paid = how.last(_frame(spark, explained), _frame(spark, Path(plan.settled)))
    since = F.least(*(F.col(side)["first_seen_run"] for side in ("native", "otlp")))
    target = explained.with_name("paid")
    how.finish(paid.withColumn("first_seen_run", since)).write.parquet(spark_target(target.absolute()))
    counted: list[Counted] = []
    for file in sorted(target.glob("*.parquet")):
        counted += count_file(str(file), plan.counting)
        file.rename(Path(plan.settled) / file.name)
    return counted


def _frame(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.read.schema(VERDICT).parquet(spark_path(directory))
