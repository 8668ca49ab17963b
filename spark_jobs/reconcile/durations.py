"""This module knows how long things took and who consumed what: one grouped frame, folded into plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import minus
from spark_jobs.report.result import Group, Latency
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

__all__ = ["MEASURES", "distinct_messages", "durations", "read_groups", "read_latency"]

MEASURES: Final = ("publish", "queue", "process", "end_to_end")
"""publish and process: of one call; queue: end of the first send to start; end_to_end: its start to the end."""

_ACCURACY: Final = 10_000  # exact up to as many distinct values, a relative rank error of 1/10 000 beyond
_RANKS: Final = (0.5, 0.95, 0.99)


def durations(verdicts: DataFrame) -> DataFrame:
    """Return one row for everything (``total``) and one per topic and consumer group."""
    consume = F.col("kind") == Kind.CONSUME.value
    start, end = (_either(name) for name in ("start_ms", "end_ms"))
    rows = verdicts.where(F.col("status") != Status.OUT_OF_SCOPE.value).select(
        F.when(consume, F.coalesce("topic", F.lit(""))).alias("of_topic"),
        F.when(consume, F.coalesce("group", F.lit(""))).alias("of_group"),
        F.when(F.col("kind") == Kind.PUBLISH.value, minus(end, start)).alias("publish"),
        F.when(consume, F.col("queue_ms")).alias("queue"),
        F.when(consume, minus(end, start)).alias("process"),
        F.when(consume, F.col("end_to_end_ms")).alias("end_to_end"),
        (consume & ~_either("success")).alias("failed"),
        (consume & (F.col("retry_times") > 0)).alias("redelivered"),
        (consume & (F.col("native").isNull() | F.col("otlp").isNull())).alias("unmatched"),
    )
    names = [F.col("of_topic"), F.col("of_group")]
    measured = [column for name in MEASURES for column in _measured(name)]
    return rows.groupingSets([names, []], *names).agg(
        (F.grouping_id() > 0).alias("total"),
        F.count("of_topic").alias("deliveries"),
        *(F.count_if(name).alias(name) for name in ("failed", "redelivered", "unmatched")),
        *measured,
    )


def distinct_messages(verdicts: DataFrame) -> DataFrame:
    """Return ``of_topic, of_group, messages``: how many different messages each group was given.

    A frame of its own: beside the percentiles, Spark would keep one set of digests for every message.
    """
    consumed = verdicts.where((F.col("kind") == Kind.CONSUME.value) & (F.col("status") != Status.OUT_OF_SCOPE.value))
    named = consumed.select(
        F.coalesce("topic", F.lit("")).alias("of_topic"), F.coalesce("group", F.lit("")).alias("of_group"), "msg_id"
    )
    return named.groupBy("of_topic", "of_group").agg(F.count_distinct("msg_id").alias("messages"))


def _either(name: str) -> Column:
    return F.coalesce(F.col("native")[name], F.col("otlp")[name])


def _measured(name: str) -> tuple[Column, ...]:
    return (
        F.count(name).alias(f"{name}_count"),
        F.percentile_approx(name, list(_RANKS), _ACCURACY).alias(f"{name}_ranks"),
        F.max(name).alias(f"{name}_max"),
    )


def read_latency(rows: Iterable[Any]) -> dict[str, Latency]:
    """Return the four latencies of the whole run from the collected rows of ``durations``."""
    totals = [row for row in rows if row["total"]]
    return {name: _latency(totals[0], name) if totals else Latency() for name in MEASURES}


def read_groups(rows: Iterable[Any], distinct: Iterable[Any]) -> tuple[Group, ...]:
    """Return who consumed what, by topic and group, from the collected rows of the two frames."""
    messages = {(row["of_topic"], row["of_group"]): row["messages"] for row in distinct}
    groups = [
        Group(
            topic=row["of_topic"],
            group=row["of_group"],
            messages=messages.get((row["of_topic"], row["of_group"]), 0),
            deliveries=row["deliveries"],
            failures=row["failed"],
            redeliveries=row["redelivered"],
            unmatched=row["unmatched"],
            process=_latency(row, "process"),
            queue=_latency(row, "queue"),
        )
        for row in rows
        if not row["total"] and row["of_topic"] is not None
    ]
    return tuple(sorted(groups, key=lambda group: (group.topic, group.group)))


def _latency(row: Any, name: str) -> Latency:
    p50, p95, p99 = row[f"{name}_ranks"] or (None, None, None)
    return Latency(count=row[f"{name}_count"], p50=p50, p95=p95, p99=p99, max=row[f"{name}_max"])
