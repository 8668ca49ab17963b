"""How budgets are spent on Spark: what needs no rank is not sorted."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from spark_jobs.reconcile.budget import Covered
from spark_jobs.reconcile.slots import marked
from spark_jobs.taxonomy import Reason
from tests.support.events import publish
from tests.support.judging import keyed_verdicts
from tests.support.settings import configured

pytestmark = pytest.mark.spark


def test_rows_that_no_budget_is_asked_for_are_not_sorted_by_one_task(spark):
    """The part of a residue that is explained already has no slot, and stays spread."""
    events = [publish("native", f"M{number}") for number in range(40)]
    events += [publish(side, "END", at_ms=400_000) for side in ("native", "otlp")]
    explained = keyed_verdicts(spark, events).withColumn("reason", F.lit("NOT_SAMPLED"))
    with configured(spark, {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "4"}):
        rows = marked(explained, [Covered("none", "queue_full", 1)], (), Reason.DROP_ATTRIBUTED)
        tasks = {row[0] for row in rows.select(F.spark_partition_id()).collect()}
    assert len(tasks) > 1
