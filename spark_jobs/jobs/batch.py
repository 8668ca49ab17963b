"""This module knows the batch run: read both sides, judge every key once, add up, report, remember."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from otel_mqtrace._clock import SystemClock
from spark_jobs.jobs.conclude import concluded
from spark_jobs.jobs.judge import judge
from spark_jobs.jobs.normalise import normalise_native, normalise_otlp
from spark_jobs.jobs.options import (
    ReconcileOptions,
    checked,
    counted_losses,
    reading,
    silent,
    starter,
    unreported,
)
from spark_jobs.jobs.workplace import workplace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from otel_mqtrace._clock import Clock
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.report.result import Result

__all__ = ["ReconcileOptions", "read_sides", "run"]


def run(
    options: ReconcileOptions,
    *,
    spark: SparkSession | None = None,
    progress: Callable[[str], None] = silent,
    report: Callable[[Result], object] = unreported,
    clock: Clock | None = None,
) -> Result:
    """Reconcile and return the result; the verdicts are then in ``options.out / "verdicts"``.

    Args:
        options: what to reconcile, and how.
        spark: a session to use; built from the options when absent.
        progress: told the name of each stage as it begins.
        report: given the result before the history remembers the run.
        clock: tells how long the run took, and when it ended.

    Raises:
        UsageError: an option, a policy or a source is wrong.
        UnreadableInputError: a source exists but is not what it should be.
        MissingExtraError, PeerError: there is no Spark or no Java to run it, or Spark gave up.
    """
    ledger = counted_losses(options)
    policy = checked(options)
    start = starter(options, spark, progress)
    with workplace(options.out, options.history, start, clock or SystemClock()) as place:
        sides = read_sides(place.spark, options, place.work, progress)
        result = judge(
            place,
            sides,
            policy,
            out=options.out,
            most_samples=options.samples,
            progress=progress,
            ledger=ledger,
        )
        return concluded(place, result, report)


def read_sides(
    spark: SparkSession, options: ReconcileOptions, workdir: Path, progress: Callable[[str], None]
) -> tuple[NormalisedSide, NormalisedSide]:
    """Read what the options name and write its events under ``workdir``, each side by one job: native, then OTLP.

    Raises:
        UsageError, UnreadableInputError, PeerError: as ``normalise_native`` and ``normalise_otlp``.
    """
    progress("reading the native trace")
    how = reading(options)
    native = normalise_native(spark, options.native, workdir, options=how)
    progress("reading the spans")
    how = replace(how, trace_topics=native.trace_topics)
    return native, normalise_otlp(spark, options.otlp, workdir, options=how)
