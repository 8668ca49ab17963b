"""This module knows how a corpus is reconciled: laid down in files, through the real job, and the verdicts read back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.jobs.batch import ReconcileOptions, run
from spark_jobs.report.result import Result
from spark_jobs.sources.files import spark_path
from spark_jobs.spark_schemas import VERDICT
from tests.faults.corpora import Corpus
from tests.faults.recording import Laid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Judged", "reconciled"]


VERDICTS = "verdicts"  # the contract's name
_AS_PLAYED = Laid()


@dataclass(frozen=True)
class Judged:
    """What the job said: its result, and every verdict row as plain values."""

    result: Result
    rows: list[dict[str, Any]]


def reconciled(
    spark: SparkSession, corpus: Corpus, root: Path, *, laid: Laid = _AS_PLAYED, history: Path | None = None
) -> Judged:
    """Lay the corpus down under ``root``, reconcile it with that history, and return what was said."""
    files = corpus.recording.lay_down(root, laid)
    policy = root / "policy.toml"
    policy.write_text(corpus.policy, encoding="utf-8")
    options = ReconcileOptions(
        native=(str(files.native),),
        otlp=(str(files.otlp),),
        out=root / "out",
        policy=policy,
        ledger=tuple(map(str, files.ledger)),
        history=history,
        **corpus.options,
    )
    result = run(options, spark=spark)
    frame = spark.read.schema(VERDICT).parquet(spark_path(root / "out" / VERDICTS))
    return Judged(result, [row.asDict(recursive=True) for row in frame.collect()])
