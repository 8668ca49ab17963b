"""Events in, verdict rows out: one way through the real reconciliation for every test of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_jobs.reconcile.facts import overview, read_facts
from spark_jobs.reconcile.policy import read_policy
from spark_jobs.reconcile.verdicts import verdicts
from spark_jobs.schemas import EVENT, MALFORMED
from tests.support.events import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.reconcile.policy import Policy


def judged(
    spark: SparkSession,
    events: list[dict[str, Any]],
    *,
    policy: Policy | None = None,
    malformed: list[tuple[str, str]] = (),
) -> DataFrame:
    """Return the verdicts on ``events``; ``malformed`` names side and message id of records that could not be read."""
    policy = policy or read_policy(None)
    native, otlp = (spark.createDataFrame(rows_of(events, side), EVENT).coalesce(1) for side in ("native", "otlp"))
    bad = spark.createDataFrame(
        [(side, "input.jsonl", 9, 0, None, "damaged", msg_id, [msg_id]) for side, msg_id in malformed], MALFORMED
    )
    facts = read_facts(overview(native, otlp, bad).collect(), policy)
    return verdicts(native, otlp, bad, policy=policy, facts=facts)
