"""This module knows how the ledger leaves what an executor read: added up while a job runs, and no row of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_jobs.spark_schemas import LEDGER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

__all__ = ["counted", "without_ledger"]


def counted(read: DataFrame, count: Observation) -> DataFrame:
    """Return ``read`` without its ledger; ``count`` holds ``records`` and ``tails`` when a job has run it."""
    watched = read.observe(count, F.sum("due").alias("records"), F.sum("tails").alias("tails"))
    return without_ledger(watched.where(F.col("due").isNull()))


def without_ledger(read: DataFrame) -> DataFrame:
    """Return ``read`` without the columns of ``LEDGER``."""
    return read.select(*(name for name in read.columns if name not in LEDGER.names))
