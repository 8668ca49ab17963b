"""This module knows how verdicts are written in two passes: all keys at once, then the few without a reason again.

The keyed pass writes settled keys and the residue apart. Where there is no residue that was all. Otherwise only the
residue is explained and written a second time, and the files of the two are laid together as the run's verdicts.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from spark_jobs.reconcile.residue import explained, is_residue
from spark_jobs.schemas import VERDICT
from spark_jobs.sources.files import spark_path, spark_target
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy

__all__ = ["VERDICTS", "Explanation", "written_verdicts"]

VERDICTS: Final = "verdicts"
"""The directory of the verdicts' parquet files under ``out``."""

_FLAG: Final = "is_residue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What the second pass goes by.

    Attributes:
        policy: what the run tolerates.
        facts: what is known of the whole input.
        spans: ``EVENT`` of the spans; the trace topic's own sends among them tell ids.
        finish: what is done to verdicts whose reason is final, row by row.
        last: what is asked last, of the explained residue, already written, and the settled verdicts; ``None`` for
            nothing.
        unwritten: ``VERDICT`` of settled keys that are not among the verdicts and yet bear witness, or ``None``.
    """

    policy: Policy
    facts: Facts
    spans: DataFrame
    finish: Callable[[DataFrame], DataFrame]
    last: Callable[[DataFrame, DataFrame], DataFrame] | None = None
    unwritten: DataFrame | None = None


def written_verdicts(found: DataFrame, how: Explanation, *, out: Path, work: Path) -> DataFrame:
    """Write the verdicts under ``out``, each with its final reason, and return them read back.

    Args:
        found: ``VERDICT`` of the keyed pass.
        how: what the residue is explained by.
        out: the directory of the run's output; what an earlier run left there is replaced in the end.
        work: a directory on the same file system, for what is not finished.
    """
    judged, final = work / "judged", out / VERDICTS
    asking = Observation("residue")
    flagged = how.finish(found).withColumn(_FLAG, is_residue()).observe(asking, F.count_if(_FLAG).alias("rows"))
    flagged.write.partitionBy(_FLAG).parquet(spark_target(judged.absolute()))
    parts = {flag: judged / f"{_FLAG}={str(flag).lower()}" for flag in (False, True)}
    parts[False].mkdir(exist_ok=True)
    if parts[True].exists():
        _move_into(parts[False], _explained(found.sparkSession, how, parts, work, asking.get["rows"]))
    if final.exists():
        shutil.rmtree(final)
    parts[False].rename(final)
    return _read(found.sparkSession, final)


def _explained(spark: SparkSession, how: Explanation, parts: Mapping[bool, Path], work: Path, asking: int) -> Path:
    """Write the residue with its reasons and return where."""
    settled, residue = (_read(spark, parts[flag]) for flag in (False, True))
    settled = settled if how.unwritten is None else settled.unionByName(how.unwritten)
    traffic = how.spans.where(F.col("scope") == Reason.TRACE_TRAFFIC.value)
    everything = settled.unionByName(residue)
    rows = explained(residue, everything, traffic, policy=how.policy, facts=how.facts, asking=asking)
    target = work / "explained"
    # The keyed pass took these keys for open ones; what it said of their age is said again.
    since = F.least(*(F.col(side)["first_seen_run"] for side in ("native", "otlp")))
    if how.last is not None:
        # A reason that only this input gives is taken back here, while a budget can still pay.
        rows = how.finish(rows.withColumn("first_seen_run", since))
        rows.write.parquet(spark_target(target.absolute()))
        rows = how.last(_read(spark, target), settled)
        target = work / "settled"
    finished = how.finish(rows.withColumn("first_seen_run", since))
    finished.select(*VERDICT.names).write.parquet(spark_target(target.absolute()))
    return target


def _read(spark: SparkSession, written: Path) -> DataFrame:
    return spark.read.schema(VERDICT).parquet(spark_path(written))


def _move_into(directory: Path, written: Path) -> None:
    for file in sorted(written.glob("*.parquet")):
        file.rename(directory / file.name)
