"""Reconcile once: read both sides, judge every key, add up, report, and keep what is open for the next run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from otel_mqtrace._clock import SystemClock
from spark_jobs.jobs.options import ReconcileOptions, check_options, no_progress, no_report
from spark_jobs.jobs.reading import read_sides
from spark_jobs.jobs.reconcile import conclude, reconcile
from spark_jobs.jobs.workspace import open_engine, open_workspace
from spark_jobs.jobs.writers import name_native_writers
from spark_jobs.sources.ledger import read_ledgers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from otel_mqtrace._clock import Clock
    from spark_jobs.exchange.engine import Engine
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
    clock = clock or SystemClock()
    chosen = check_options(options, has_session=spark is not None)
    ledger = read_ledgers(options.ledger) if options.ledger else None
    options = chosen.options
    opener = partial(open_engine, chosen.engine, options, spark=spark, progress=progress, clock=clock)
    with open_workspace(options.out, options.history, opener, clock) as workspace:
        how = name_native_writers(options.native, options.reading)
        sides = read_sides(
            workspace.engine, options.native, options.otlp, workspace.work, options=how, progress=progress
        )
        result = reconcile(
            workspace, sides, chosen.policy, most_samples=options.samples, progress=progress, ledger=ledger
        )
        return conclude(workspace, result, report, out=options.out)
