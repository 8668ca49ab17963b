"""This module knows what a run works with: its session, the group of its jobs, a work directory, its history."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_jobs.engine import as_meant, cores, cost, grouped
from spark_jobs.failure import told_by_cause
from spark_jobs.interrupt import unlogged
from spark_jobs.jobs.history import opened
from spark_jobs.report.result import SparkCost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from otel_mqtrace._clock import Clock, MonotonicNs
    from spark_jobs.jobs.history import Past

__all__ = ["Workplace", "work_directory", "workplace"]

_NANOSECONDS: Final = 1_000_000_000
_WORK: Final = ".work-"
_LOCK: Final = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where a run works: its session, the group of its Spark jobs, a directory that goes with it, its history."""

    spark: SparkSession
    group: str
    work: Path
    past: Past
    clock: Clock
    started_ns: MonotonicNs

    def parallelism(self) -> int:
        """Return how many tasks run at once, as far as Spark tells."""
        return cores(self.spark)

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
            work_directory(out) as work,
            as_meant(session),
            grouped(session, group, "mqtrace reconcile"),
            told_by_cause(),
        ):
            yield Workplace(spark=session, group=group, work=work, past=past, clock=clock, started_ns=started)


@contextmanager
def work_directory(out: Path) -> Iterator[Path]:
    """Give an empty hidden directory below ``out`` that goes with the block; those of runs that were killed go now."""
    for left in out.glob(f"{_WORK}*"):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    # A cancelled job may still be writing there, which must not hide that it was cancelled.
    with (
        tempfile.TemporaryDirectory(prefix=_WORK, dir=out, ignore_cleanup_errors=True) as made,
        (Path(made) / _LOCK).open("wb") as lock,
    ):
        with suppress(OSError):  # where nothing can be locked, nothing is taken for abandoned
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX)
        yield Path(made)


def _is_abandoned(work: Path) -> bool:
    """Say whether nobody holds the lock in a work directory; a process that dies lets go of its own."""
    try:
        with (work / _LOCK).open("rb") as lock:
            fcntl.flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or there is none
        return False
    return True
