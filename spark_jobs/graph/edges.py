"""This module knows how legs add up to edges: one row per producer and topic, and per topic and consumer group.

What is collected is bounded: the edges with the most traffic, and one row for all others of their kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.graph.journeys import FATES
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["COUNTS", "MOST_EDGES", "ORIGINS", "SPREADS", "edges", "members", "messaging_calls", "most_frequent"]

MOST_EDGES: Final = 2_000
"""Edges of each kind that are told one by one."""

ORIGINS: Final = ("never_published", "unidentified", "unjudged")
SPREADS: Final = ("busy_ms", "queue_ms")
_ACCURACY: Final = 10_000  # exact up to as many distinct values, a relative rank error of 1/10 000 beyond
_RANKS: Final = (0.5, 0.95, 0.99)

COUNTS: Final = (
    *("legs", "messages", "failures", "outcome_unknown", "again", "via_retry", "via_dlq", "open", "native", "otlp"),
    *(f"fate_{name}" for name in FATES),
    *(f"origin_{name}" for name in ORIGINS),
)
"""What is counted on every edge; all of it adds up over edges."""


def edges(journeys: DataFrame, *, at_most: int = MOST_EDGES) -> DataFrame:
    """Return at most ``at_most`` rows per kind, and one more (``rest`` > 0) for the sum of all others.

    Columns: ``kind, party, topic, rest``, every one of ``COUNTS``, ``max_retry_times, first_ms, last_ms``, and per
    ``SPREADS`` a struct ``count, ranks, least, most``, null on the row of the others: percentiles do not add up.
    """
    per_edge = _measured(journeys.where("inside"))
    by_traffic = Window.partitionBy("kind").orderBy(F.desc("legs"), *(F.col(n).asc_nulls_last() for n in _ENDS))
    ranked = per_edge.withColumn("shown", F.row_number().over(by_traffic) <= at_most)
    ends = [F.when(F.col("shown"), F.col(name)).alias(name) for name in _ENDS]
    return ranked.groupBy("kind", "shown", *ends).agg(
        F.sum(F.when(F.col("shown"), 0).otherwise(1)).alias("rest"),
        *(F.sum(name).alias(name) for name in COUNTS),
        F.max("max_retry_times").alias("max_retry_times"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
        *(F.first(F.when(F.col("shown"), F.col(name))).alias(name) for name in SPREADS),
    )


_ENDS: Final = ("party", "topic")


def _measured(legs: DataFrame) -> DataFrame:
    counted = {
        "legs": F.lit(True),
        "messages": F.col("first"),
        "failures": ~F.col("success"),
        "outcome_unknown": F.col("success").isNull(),
        "again": _is_again(),
        "via_retry": F.col("via") == "RETRY",
        "via_dlq": F.col("via") == "DLQ",
        "open": ~F.col("finished"),
        "native": F.col("on_native"),
        "otlp": F.col("on_otlp"),
        **{f"fate_{name}": F.col("fate") == name for name in FATES},
        **{f"origin_{name}": F.col("origin") == name for name in ORIGINS},
    }
    return legs.groupBy("kind", *_ENDS).agg(
        *(F.count_if(condition).alias(name) for name, condition in counted.items()),
        F.max("retry_times").alias("max_retry_times"),
        F.min("event_ms").alias("first_ms"),
        F.max("event_ms").alias("last_ms"),
        *(_spread(name).alias(name) for name in SPREADS),
    )


def _is_again() -> Column:
    """Say whether a leg repeats another one: a message sent again, or delivered again to the same group."""
    return (~F.col("first") & F.col("identified")) | (F.col("retry_times") > 0)


def _spread(name: str) -> Column:
    ranks = F.percentile_approx(name, list(_RANKS), _ACCURACY)
    parts = {"count": F.count(name), "ranks": ranks, "least": F.min(name), "most": F.max(name)}
    return F.struct(*(part.alias(label) for label, part in parts.items()))


def members(journeys: DataFrame, *, at_most: int = MOST_EDGES) -> DataFrame:
    """Return ``kind, party, topic, service, group, namespace, legs``: who and what an edge's ends stand for."""
    inside = journeys.where("inside")
    counted = inside.groupBy("kind", *_ENDS, "service", "group", "namespace").agg(F.count(F.lit(1)).alias("legs"))
    return counted.orderBy(F.desc("legs"), *(F.col(name).asc_nulls_last() for name in counted.columns)).limit(
        2 * at_most
    )


def messaging_calls(journeys: DataFrame, *, at_most: int = MOST_EDGES) -> DataFrame:
    """Return ``parent, child, calls``: every delivery whose sender is known, by service where there is one."""
    delivered = journeys.where("inside").where((F.col("kind") == Kind.CONSUME.value) & F.col("sender").isNotNull())
    child = F.coalesce("service", "group")
    pairs = delivered.select(F.col("sender").alias("parent"), child.alias("child")).where(F.col("child").isNotNull())
    return most_frequent(pairs, at_most)


def most_frequent(pairs: DataFrame, at_most: int) -> DataFrame:
    """Return the pairs seen most often, with how often."""
    counted = pairs.groupBy("parent", "child").agg(F.count(F.lit(1)).alias("calls"))
    return counted.orderBy(F.desc("calls"), "parent", "child").limit(at_most)
