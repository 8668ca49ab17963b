"""This module knows how a reconciliation is run from normalised parquet: what its first two jobs leave is there already.

``python -m tests.bench.from_parquet prepare DAY TABLES`` reads both sides of a day into ``TABLES``; ``… reconcile TABLES
OUT`` is a process that starts there: it judges, writes the verdicts and every report, and prints one JSON object. Users
have no such door: a run reads what it judges.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.jobs.conclude import concluded
from spark_jobs.jobs.judge import judge
from spark_jobs.jobs.normalise import NormalisedSide, event_frames

from otel_mqtrace._clock import SystemClock
from spark_jobs.jobs.batch import read_sides
from spark_jobs.jobs.options import ReconcileOptions, checked, silent, starter
from spark_jobs.jobs.workplace import workplace
from spark_jobs.report.page import PageOptions
from spark_jobs.report.render import write_reports
from tests.bench.rivals import MASTER, MEMORY, acted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SIDES: Final = ("native", "otlp")
_FRAMES: Final = ("events", "malformed")


def _options(day: Path, out: Path) -> ReconcileOptions:
    """Return what the command line makes of the options that the run from raw files has."""
    sides = {side: (str(day / side),) for side in _SIDES}
    where = {"out": out, "history": out / "history", "master": MASTER, "driver_memory": MEMORY}
    return ReconcileOptions(**sides, **where, grace_ms=0)


def _prepare(day: Path, tables: Path) -> dict[str, Any]:
    tables.mkdir(parents=True)
    options = _options(day, tables)
    spark = starter(options, None, silent)()
    for side, read in zip(_SIDES, read_sides(spark, options, tables, silent), strict=True):
        told = {each.name: getattr(read, each.name) for each in fields(read) if each.name not in _FRAMES}
        (tables / f"{side}.told").write_bytes(pickle.dumps(told))
    (tables / "day").write_text(str(day), encoding="utf-8")
    spark.stop()
    return {}


def _reconcile(tables: Path, out: Path) -> dict[str, Any]:
    options = _options(Path((tables / "day").read_text(encoding="utf-8")), out)
    policy = checked(options)
    with workplace(out, options.history, starter(options, None, silent), SystemClock()) as place:
        sides = (_side(place.spark, tables, "native"), _side(place.spark, tables, "otlp"))
        result = judge(place, sides, policy, out=out, most_samples=options.samples, progress=silent)
        page = PageOptions(samples=options.samples)
        result = concluded(place, result, lambda told: write_reports(told, out, page))
    return {"status": result.status, "jobs": result.spark.jobs, "holds": result.conservation.holds}


def _side(spark: SparkSession, tables: Path, name: str) -> NormalisedSide:
    events, malformed = event_frames(spark, tables / name)
    told = pickle.loads((tables / f"{name}.told").read_bytes())
    return NormalisedSide(events=events, malformed=malformed, **told)


if __name__ == "__main__":
    raise SystemExit(acted({"prepare": _prepare, "reconcile": _reconcile}, *sys.argv[1:]))
