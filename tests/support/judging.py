"""Events in, verdict rows out: one way through the real reconciliation for every test of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_jobs.reconcile.facts import overview, read_facts
from spark_jobs.reconcile.policy import read_policy
from spark_jobs.reconcile.residue import explained, is_residue
from spark_jobs.reconcile.verdicts import verdicts
from spark_jobs.schemas import EVENT, MALFORMED
from tests.support.events import rows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy


def keyed_verdicts(
    spark: SparkSession,
    events: list[dict[str, Any]],
    *,
    policy: Policy | None = None,
    malformed: list[tuple[str, str]] = (),
) -> DataFrame:
    """Return what the keyed pass alone says of ``events``; ``malformed`` names side and message id of bad records."""
    return _keyed_pass(spark, events, policy or read_policy(None), malformed)[0]


def judged(spark: SparkSession, events: list[dict[str, Any]], **others: Any) -> DataFrame:
    """Return the final verdicts on ``events`` as a run leaves them: rows, and no plan that is planned with each question."""
    return explaining(spark, events, **others).localCheckpoint()


def explaining(
    spark: SparkSession,
    events: list[dict[str, Any]],
    *,
    policy: Policy | None = None,
    malformed: list[tuple[str, str]] = (),
    asking: int = 0,
) -> DataFrame:
    """Return the final verdicts on ``events``, what explains the residue included, as a plan on what the keyed pass left.

    ``asking`` is how many rows the residue is said to have: it chooses the plan.
    """
    policy = policy or read_policy(None)
    found, facts = _keyed_pass(spark, events, policy, malformed)
    found = found.localCheckpoint()
    traffic = spark.createDataFrame(rows_of(events, "otlp"), EVENT).where("scope = 'TRACE_TRAFFIC'")
    residue = explained(found.where(is_residue()), found, traffic, policy=policy, facts=facts, asking=asking)
    return found.where(~is_residue()).unionByName(residue)


def _keyed_pass(
    spark: SparkSession, events: list[dict[str, Any]], policy: Policy, malformed: list[tuple[str, str]]
) -> tuple[DataFrame, Facts]:
    native, otlp = (spark.createDataFrame(rows_of(events, side), EVENT).coalesce(1) for side in ("native", "otlp"))
    bad = spark.createDataFrame(
        [(side, "input.jsonl", 9, 0, None, "damaged", msg_id, [msg_id]) for side, msg_id in malformed], MALFORMED
    )
    facts = read_facts(overview(native, otlp, bad).collect(), policy)
    return verdicts(native, otlp, bad, policy=policy, facts=facts), facts
