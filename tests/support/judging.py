"""Events in, verdict rows out as a frame of Spark's, for tests of what still runs on one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_jobs.spark_schemas import VERDICT
from tests.support.explained_runs import explain_events
from tests.support.kernel_runs import judge_events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def keyed_verdicts(spark: SparkSession, events: list[dict[str, Any]], **others: Any) -> DataFrame:
    """Return what the kernel alone says of ``events``."""
    return spark.createDataFrame(judge_events(events, **others), VERDICT)


def judged(spark: SparkSession, events: list[dict[str, Any]], **others: Any) -> DataFrame:
    """Return the final verdicts on ``events``, but for budgets; takes what ``explain_events`` takes."""
    return spark.createDataFrame(explain_events(events, **others), VERDICT)
