"""Reconcile a corpus: laid down in files, through the real job, and the verdicts read back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions
from spark_jobs.report.result import Result
from tests.faults.corpora import Corpus
from tests.faults.recording import Laid
from tests.support.reading import read_verdicts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_AS_PLAYED = Laid()


@dataclass(frozen=True)
class Judged:
    """The result of a run, and every verdict row as plain values."""

    result: Result
    rows: list[dict[str, Any]]


def reconciled(corpus: Corpus, root: Path, *, laid: Laid = _AS_PLAYED, spark: SparkSession | None = None) -> Judged:
    """Lay the corpus down under ``root`` and reconcile it: locally, or on a session."""
    files = corpus.recording.lay_down(root, laid)
    policy = root / "policy.toml"
    policy.write_text(corpus.policy, encoding="utf-8")
    options = ReconcileOptions(
        native=(str(files.native),),
        otlp=(str(files.otlp),),
        out=root / "out",
        policy=policy,
        ledger=tuple(map(str, files.ledger)),
        engine=None if spark else "local",
        **corpus.options,
    )
    result = run(options, spark=spark)
    return Judged(result, read_verdicts(root / "out"))
