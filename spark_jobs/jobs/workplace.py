"""This module knows what a run works with: its session, the group of its jobs, a work directory, its history."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_jobs.engine import as_meant, cost, grouped
from spark_jobs.failure import told_by_cause
from spark_jobs.interrupt import unlogged
from spark_jobs.jobs.history import opened
from spark_jobs.report.result import SparkCost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from otel_mqtrace._clock import Clock, MonotonicNs
    from spark_jobs.jobs.history import Past

__all__ = ["Workplace", "workplace"]

_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where a run works: its session, the group of its Spark jobs, a directory that goes with it, its history."""

    spark: SparkSession
    group: str
    work: Path
    past: Past
    clock: Clock
    started_ns: MonotonicNs

    def cost(self) -> SparkCost:
        """Return what the run has cost so far."""
        jobs, stages = cost(self.spark, self.group)
        wall_seconds = round((self.clock.monotonic_ns() - self.started_ns) / _NANOSECONDS, 3)
        return SparkCost(jobs=jobs, stages=stages, wall_seconds=wall_seconds)


@contextmanager
def workplace(out: Path, history: Path | None, start: Callable[[], SparkSession], clock: Clock) -> Iterator[Workplace]:
    """Give a run all it works with; what fails inside Spark is told by its cause.

    Args:
        out: a directory that exists; the work is done in a hidden one below it.
        history: what earlier runs left and this one leaves to, or ``None``.
        start: gives the session.
        clock: tells how long the run takes, and when it ended.

    Raises:
        UsageError: another run is using the history.
        PeerError: Spark gave up within the block.
    """
    started = clock.monotonic_ns()
    group = f"mqtrace-{started}"
    with opened(history) as past, unlogged():
        session = start()
        with (
            # A cancelled job may still be writing there, which must not hide that it was cancelled.
            tempfile.TemporaryDirectory(prefix=".work-", dir=out, ignore_cleanup_errors=True) as work,
            as_meant(session),
            grouped(session, group, "mqtrace reconcile"),
            told_by_cause(),
        ):
            yield Workplace(spark=session, group=group, work=Path(work), past=past, clock=clock, started_ns=started)
