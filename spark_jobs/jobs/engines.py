"""Open the engine of a run: Spark, or this machine without Java.

pyspark is imported only where Spark is chosen.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from spark_jobs.exchange.local import LocalEngine
from spark_jobs.report.result import SparkCost
from spark_jobs.session import (
    as_meant,
    build_session,
    cores,
    cost,
    grouped,
    is_connect,
    mute_interrupted_calls,
    peer_errors,
    versions,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from otel_mqtrace._clock import Clock, MonotonicNs
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.jobs.options import ReconcileOptions
    from spark_jobs.report.result import Result

_DISTRIBUTION: Final = "otel-mqtrace"
_NS_PER_S: Final = 1_000_000_000


@contextmanager
def open_engine(
    name: str,
    start: Callable[[], SparkSession],
    *,
    clock: Clock,
    description: str = "mqtrace reconcile",
    owns_workers: bool = False,
) -> Iterator[Engine]:
    """Yield the engine of this name; ``start`` returns the session of Spark's.

    In the block a Spark session has the settings that decide a result; its own are restored after it. Jobs form one
    group, which an interrupt cancels. Open it inside the work directory's block: the directory must outlive the jobs.
    ``owns_workers``: Spark's Python processes run only our tasks, so that they need no pandas (40 MiB).

    Raises:
        PeerError: Spark gave up within the block.
        MissingExtraError, UsageError: from ``start``.
    """
    if name == "local":
        with LocalEngine(clock=clock) as engine:
            yield engine
        return
    with mute_interrupted_calls():
        session = start()  # reports a missing pyspark before the import below
        from spark_jobs.exchange.spark import SparkEngine  # noqa: PLC0415

        group = f"mqtrace-{clock.monotonic_ns()}"
        with as_meant(session), grouped(session, group, description), peer_errors():
            owns_workers = owns_workers and not is_connect(session)
            yield SparkEngine(session, cores(session), group=group, owns_workers=owns_workers)


def record_engine(result: Result, engine: Engine, started_ns: MonotonicNs, clock: Clock) -> Result:
    """Return the result with ``engine``, ``spark``, ``versions`` and ``wall_seconds`` of the run that ends now."""
    wall_seconds = round((clock.monotonic_ns() - started_ns) / _NS_PER_S, 3)
    spark, found = None, {_DISTRIBUTION: version(_DISTRIBUTION)}
    if engine.name == "spark":
        jobs, stages = cost(engine.session, engine.group)  # type: ignore[attr-defined]
        spark = SparkCost(jobs=jobs, stages=stages, wall_seconds=wall_seconds)
        found |= versions(engine.session)  # type: ignore[attr-defined]
    return replace(result, engine=engine.name, spark=spark, versions=found, wall_seconds=wall_seconds)


def session_starter(
    options: ReconcileOptions, spark: SparkSession | None, progress: Callable[[str], None]
) -> Callable[[], SparkSession]:
    """Return how a run gets its session: the one given, else one built from the options."""

    def start() -> SparkSession:
        progress("starting Spark")
        return spark or build_session(master=options.master, driver_memory=options.driver_memory, extra=options.conf)

    return start


def engine_opener(
    options: ReconcileOptions, spark: SparkSession | None, progress: Callable[[str], None], clock: Clock
) -> Callable[[], AbstractContextManager[Engine]]:
    """Return how a run opens its engine: on the session given, else the one that the options choose.

    Raises:
        UsageError: the engine is unknown, or ``local`` with an option of Spark only.
    """
    name, _ = options.choose_engine(has_session=spark is not None)
    start = session_starter(options, spark, progress)
    return partial(open_engine, name, start, clock=clock, owns_workers=spark is None)
