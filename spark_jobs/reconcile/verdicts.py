"""This module knows the order of the one keyed pass: events of both sides in, one verdict per key out.

One exchange (``keys.keyed``); everything after it stays in its partition. Pairing by weak keys is left out of the plan
when no row of the run lacks part of its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_jobs.reconcile.classify import classified
from spark_jobs.reconcile.compare import compared
from spark_jobs.reconcile.fold import COUNTS, folded
from spark_jobs.reconcile.instants import minus
from spark_jobs.reconcile.keys import fill_groups, identified, keyed
from spark_jobs.reconcile.pair import exact_only, paired
from spark_jobs.reconcile.surroundings import surrounded
from spark_jobs.schemas import VERDICT
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy

__all__ = ["verdicts"]


def verdicts(native: DataFrame, otlp: DataFrame, malformed: DataFrame, *, policy: Policy, facts: Facts) -> DataFrame:
    """Return ``VERDICT``: exactly one row per canonical key.

    Args:
        native: ``EVENT`` of the native trace.
        otlp: ``EVENT`` of the spans.
        malformed: ``MALFORMED`` of both sides: a damaged record may name the message whose counterpart is missing.
        policy: what the run tolerates.
        facts: what ``facts.read_facts`` said of the same input.
    """
    rows = keyed(native, otlp, malformed if sum(facts.malformed.values()) else None)
    if facts.some_lack_groups:
        rows = fill_groups(rows)
    rows = folded(identified(rows))
    rows = surrounded(paired(rows, policy.tolerance("start_ms")) if facts.some_lack_keys else exact_only(rows))
    rows = classified(compared(rows, policy), policy, facts)
    return rows.select(*_answer()).select(*(F.col(each.name).cast(each.dataType) for each in VERDICT))


def _answer() -> list[Column]:
    consume = F.col("kind") == Kind.CONSUME.value
    own_start = F.coalesce(F.col("native")["start_ms"], F.col("otlp")["start_ms"])
    own_end = F.coalesce(F.col("native")["end_ms"], F.col("otlp")["end_ms"])
    return [
        *(F.col(name) for name in ("kind", "msg_id", "topic")),
        _either("group_name").alias("group"),
        *(_either(name).alias(name) for name in ("attempt_id", "retry_times")),
        *(F.col(name) for name in ("status", "reason", "reason_detail", "key_level", "timing", "event_ms")),
        *(F.col(name) for name in COUNTS),
        F.when(F.col("conflicting"), "conflicting")
        .when(F.col("equivalent"), "equivalent")
        .when(F.col("native_exact_duplicates") + F.col("otlp_exact_duplicates") > 0, "exact")
        .alias("duplicates"),
        F.when(consume, minus(own_start, F.col("sent_end_ms"))).alias("queue_ms"),
        F.when(consume, minus(own_end, F.col("sent_ms"))).alias("end_to_end_ms"),
        *(F.col(name) for name in ("field_verdicts", "native", "otlp")),
        F.lit(None).alias("lifecycle"),  # told when the reason is final
        F.least(*(F.col(side)["first_seen_run"] for side in ("native", "otlp"))).alias("first_seen_run"),
    ]


def _either(name: str) -> Column:
    return F.coalesce(F.col("native")[name], F.col("otlp")[name])
