"""Reconcile a corpus: laid down in files, through the real job, and the verdicts read back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions
from spark_jobs.report.result import Result
from tests.faults.corpora import Corpus
from tests.faults.recording import Laid
from tests.support.reading import read_verdicts

_AS_PLAYED = Laid()


@dataclass(frozen=True)
class Judged:
    """The result of a run, and every verdict row as plain values."""

    result: Result
    rows: list[dict[str, Any]]


def reconciled(corpus: Corpus, root: Path, *, laid: Laid = _AS_PLAYED, engine: str = "local") -> Judged:
    sources = corpus.recording.lay_down(root, laid)
    policy = root / "policy.toml"
    policy.write_text(corpus.policy, encoding="utf-8")
    options = ReconcileOptions(**sources, out=root / "out", policy=policy, engine=engine, **corpus.options)
    return Judged(run(options), read_verdicts(root / "out"))
