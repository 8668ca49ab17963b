"""Judge every key on Spark: rows of one message in one partition, a partition given to the kernel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_jobs.judging.kernel import judge_slices
from spark_jobs.policy.plan import make_plan
from spark_jobs.reconcile.keys import keyed
from spark_jobs.schemas import EVENT
from spark_jobs.spark_schemas import VERDICT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame

    from spark_jobs.judging.facts import Facts
    from spark_jobs.judging.plan import Plan
    from spark_jobs.policy.policy import Policy

__all__ = ["verdicts"]

_BATCH_ROWS = 10_000


def verdicts(native: DataFrame, otlp: DataFrame, malformed: DataFrame, *, policy: Policy, facts: Facts) -> DataFrame:
    """Return ``VERDICT``: exactly one row per canonical key, message keys hidden as the policy wants it.

    Args:
        native: ``EVENT`` of the native trace.
        otlp: ``EVENT`` of the spans.
        malformed: ``MALFORMED`` of both sides: a damaged record may name the message whose counterpart is missing.
        policy: what the run tolerates.
        facts: what ``facts.read_facts`` made of the same input.
    """
    rows = keyed(native, otlp, malformed if sum(facts.malformed.values()) else None)
    plan = make_plan(policy, data_end_ms=facts.data_end_ms, horizon_ms=facts.horizon_ms)
    return rows.select(*EVENT.names).mapInArrow(partial(_judge_partition, plan), VERDICT)


def _judge_partition(plan: Plan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held = [batch.cast(EVENT) for batch in batches if batch.num_rows]
    if held:
        for judged in judge_slices(pa.Table.from_batches(held), plan):
            yield from judged.verdicts.to_batches(max_chunksize=_BATCH_ROWS)
