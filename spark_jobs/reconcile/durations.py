"""This module knows how long things took and who consumed what: one grouped frame, folded into plain numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import minus
from spark_jobs.report.measured import Group, Latency, Topic
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame

__all__ = [
    "ARRIVALS",
    "MEASURES",
    "distinct_messages",
    "durations",
    "measures",
    "read_arrival",
    "read_groups",
    "read_latency",
    "read_topics",
]

MEASURES: Final = ("publish", "queue", "process", "end_to_end")
"""publish and process: of one call; queue: end of the first send to start; end_to_end: its start to the end."""

ARRIVALS: Final = ("native", "otlp")
"""From the end of an event to the arrival of that side's record of it, where its source tells one."""

_ACCURACY: Final = 10_000  # exact up to as many distinct values, a relative rank error of 1/10 000 beyond
_RANKS: Final = (0.5, 0.95, 0.99)
_CURVE: Final = (0.01, 0.02, *(step / 20 for step in range(1, 20)), 0.98, 0.99, 0.995, 0.999, 0.9999)


def measures() -> dict[str, Column]:
    """Return every measure of a verdict row, milliseconds; null where it does not apply."""
    consume = F.col("kind") == Kind.CONSUME.value
    took = minus(_either("end_ms"), _either("start_ms"))
    return {
        "publish": F.when(F.col("kind") == Kind.PUBLISH.value, took),
        "queue": F.when(consume, F.col("queue_ms")),
        "process": F.when(consume, took),
        "end_to_end": F.when(consume, F.col("end_to_end_ms")),
    }


def durations(verdicts: DataFrame) -> DataFrame:
    """Return one row for everything (``total``), one per topic sent to, and one per topic and consumer group."""
    publish, consume = (F.col("kind") == kind.value for kind in (Kind.PUBLISH, Kind.CONSUME))
    rows = verdicts.where(F.col("status") != Status.OUT_OF_SCOPE.value).select(
        F.when(publish | consume, F.coalesce("topic", F.lit(""))).alias("of_topic"),
        F.when(consume, F.coalesce("group", F.lit(""))).alias("of_group"),
        *(column.alias(name) for name, column in measures().items()),
        *(minus(F.col(side)["arrival_ms"], F.col(side)["end_ms"]).alias(f"arrival_{side}") for side in ARRIVALS),
        ((publish | consume) & ~_either("success")).alias("failed"),
        (consume & (F.col("retry_times") > 0)).alias("redelivered"),
        (F.col("native").isNull() | F.col("otlp").isNull()).alias("unmatched"),
    )
    names = [F.col("of_topic"), F.col("of_group")]
    measured = [column for name in (*MEASURES, *_ARRIVAL_NAMES) for column in _measured(name)]
    found = rows.groupingSets([names, []], *names).agg(
        (F.grouping_id() > 0).alias("total"),
        F.count(F.lit(1)).alias("events"),
        *(F.count_if(name).alias(name) for name in ("failed", "redelivered", "unmatched")),
        *measured,
    )
    return found.withColumns(
        {f"{name}_ranks": _curve_of_the_whole(f"{name}_ranks") for name in (*MEASURES, *_ARRIVAL_NAMES)}
    )


_ARRIVAL_NAMES: Final = tuple(f"arrival_{side}" for side in ARRIVALS)


def _curve_of_the_whole(name: str) -> Column:
    """Keep the whole curve for the one row that is drawn, three ranks of the many rows that are listed."""
    few = F.array(*(F.col(name)[_CURVE.index(rank)] for rank in _RANKS))
    return F.when(F.col("total") | F.col(name).isNull(), F.col(name)).otherwise(few)


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
        F.percentile_approx(name, list(_CURVE), _ACCURACY).alias(f"{name}_ranks"),
        F.max(name).alias(f"{name}_max"),
    )


def read_latency(rows: Iterable[Any]) -> dict[str, Latency]:
    """Return the four latencies of the whole run, with their curves, from the collected rows of ``durations``."""
    totals = [row for row in rows if row["total"]]
    return {name: _whole(totals[0], name) if totals else Latency() for name in MEASURES}


def read_arrival(rows: Iterable[Any]) -> dict[str, Latency]:
    """Return how long each side's records took to arrive; a side whose source tells no arrival is left out."""
    totals = [row for row in rows if row["total"]]
    found = {side: _whole(row, f"arrival_{side}") for row in totals for side in ARRIVALS}
    return {side: latency for side, latency in found.items() if latency.count}


def read_topics(rows: Iterable[Any]) -> tuple[Topic, ...]:
    """Return what was sent to each topic, by name, from the collected rows of ``durations``."""
    topics = [
        Topic(
            topic=row["of_topic"],
            sends=row["events"],
            failures=row["failed"],
            unmatched=row["unmatched"],
            publish=_latency(row, "publish"),
        )
        for row in rows
        if not row["total"] and row["of_topic"] is not None and row["of_group"] is None
    ]
    return tuple(sorted(topics, key=lambda topic: topic.topic))


def read_groups(rows: Iterable[Any], distinct: Iterable[Any]) -> tuple[Group, ...]:
    """Return who consumed what, by topic and group, from the collected rows of the two frames."""
    messages = {(row["of_topic"], row["of_group"]): row["messages"] for row in distinct}
    groups = [
        Group(
            topic=row["of_topic"],
            group=row["of_group"],
            messages=messages.get((row["of_topic"], row["of_group"]), 0),
            deliveries=row["events"],
            failures=row["failed"],
            redeliveries=row["redelivered"],
            unmatched=row["unmatched"],
            process=_latency(row, "process"),
            queue=_latency(row, "queue"),
        )
        for row in rows
        if not row["total"] and row["of_group"] is not None
    ]
    return tuple(sorted(groups, key=lambda group: (group.topic, group.group)))


def _latency(row: Any, name: str) -> Latency:
    p50, p95, p99 = row[f"{name}_ranks"] or (None, None, None)
    return Latency(count=row[f"{name}_count"], p50=p50, p95=p95, p99=p99, max=row[f"{name}_max"])


def _whole(row: Any, name: str) -> Latency:
    values = dict(zip(_CURVE, row[f"{name}_ranks"] or (), strict=False))
    p50, p95, p99 = (values.get(rank) for rank in _RANKS)
    curve = tuple(values.items())
    return Latency(count=row[f"{name}_count"], p50=p50, p95=p95, p99=p99, max=row[f"{name}_max"], curve=curve)
