"""Reconcile once: read both sides, judge every key, add up, report, and keep what is open for the next run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from otel_mqtrace._clock import SystemClock
from spark_jobs.jobs.engines import engine_opener
from spark_jobs.jobs.options import (
    ReconcileOptions,
    check_options,
    no_progress,
    no_report,
    read_losses,
    read_options_of,
)
from spark_jobs.jobs.reading import prepare_reading, read_native, read_otlp
from spark_jobs.jobs.reconcile import conclude, reconcile
from spark_jobs.jobs.workspace import open_workspace
from spark_jobs.jobs.writers import name_native_writers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from bridge.storage import AnyPath
    from otel_mqtrace._clock import Clock
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.jobs.reading import EventSide
    from spark_jobs.report.result import Result


def run(
    options: ReconcileOptions,
    *,
    spark: SparkSession | None = None,
    progress: Callable[[str], None] = no_progress,
    report: Callable[[Result, Engine], object] = no_report,
    clock: Clock | None = None,
) -> Result:
    """Reconcile and return the result; the verdicts are then in ``options.out / "verdicts"``.

    ``progress`` is called with the name of each stage, ``report`` with the result and the
    engine before the history is committed.

    Raises:
        UsageError: an option, a policy or a source is wrong.
        UnreadableInputError: the content of a source is wrong.
        MissingExtraError, PeerError: Spark or Java is missing, or Spark failed.
    """
    options.configure_stores()
    ledger, clock = read_losses(options), clock or SystemClock()
    start = engine_opener(options, spark, progress, clock)
    chosen = check_options(options)
    options, policy = chosen.options, chosen.policy
    with open_workspace(options.out, options.history, start, clock) as workspace:
        sides = read_sides(workspace.engine, options, workspace.work, progress)
        result = reconcile(workspace, sides, policy, most_samples=options.samples, progress=progress, ledger=ledger)
        return conclude(workspace, result, report, out=options.out)


def read_sides(
    engine: Engine, options: ReconcileOptions, work: AnyPath, progress: Callable[[str], None]
) -> tuple[EventSide, EventSide]:
    """Read what the options name and write its events under ``work``: native, then OTLP.

    Raises:
        UsageError, UnreadableInputError, PeerError: as ``read_native`` and ``read_otlp``.
    """
    progress("reading the native trace")
    how = read_options_of(options)
    prepare_reading(engine, options.otlp, how)
    own = name_native_writers(options.native, how)
    native = read_native(engine, options.native, str(work / "native"), options=own)
    progress("reading the spans")
    how = replace(how, trace_topics=native.trace_topics)
    return native, read_otlp(engine, options.otlp, str(work / "otlp"), options=how)
