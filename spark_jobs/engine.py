"""Prepare a session for a run and measure the run, with a JVM of its own or over Spark Connect.

Over Connect there is no context: no job group, no count of jobs; what cannot be known is ``None``, never 0.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from spark_jobs.session import MEANING
from spark_jobs.spark_errors import job_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

__all__ = ["as_meant", "cores", "cost", "grouped", "is_connect", "versions"]


def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def as_meant(spark: SparkSession) -> Iterator[None]:
    """Give the session the settings of ``session.MEANING`` for the block, and its own back after it."""
    before = {name: spark.conf.get(name, None) for name in MEANING}
    for name, value in MEANING.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        with suppress(Exception):  # the JVM or the server may be gone
            for name, own in before.items():
                if own is None:
                    spark.conf.unset(name)
                else:
                    spark.conf.set(name, own)


@contextmanager
def grouped(spark: SparkSession, name: str, description: str) -> Iterator[None]:
    """Put the jobs of the block into a group; an interrupt cancels those that still run."""
    if not is_connect(spark):
        with job_group(spark, name, description):
            yield
        return
    spark.addTag(name)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):  # the server may be gone too
            spark.interruptTag(name)
        raise
    finally:
        spark.removeTag(name)


def cost(spark: SparkSession, group: str) -> tuple[int | None, int | None]:
    """Return how many jobs and stages a group of jobs took; ``None`` over Connect, where that is unknown."""
    if is_connect(spark):
        return None, None
    tracker = spark.sparkContext.statusTracker()
    jobs = [info for job in tracker.getJobIdsForGroup(group) if (info := tracker.getJobInfo(job))]
    return len(jobs), len({stage for info in jobs for stage in info.stageIds})


def cores(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at once; over Connect, where that is unknown, its usual number of partitions."""
    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return int(spark.sparkContext.defaultParallelism)


def versions(spark: SparkSession) -> dict[str, str]:
    """Return the versions of Spark and of its Java."""
    return {"spark": spark.version, "java": _java_version(spark)}


def _java_version(spark: SparkSession) -> str:
    if not is_connect(spark):
        jvm = spark.sparkContext._jvm  # noqa: SLF001  (no public way, and no job for it)
        return str(jvm.java.lang.System.getProperty("java.version"))  # type: ignore[union-attr]
    frame = spark.range(1).selectExpr("java_method('java.lang.System', 'getProperty', 'java.version') as version")
    return str(frame.collect()[0]["version"])
