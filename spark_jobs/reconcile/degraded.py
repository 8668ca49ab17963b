"""This module knows losses that are perhaps none: a record, and a span without an id that may be its pair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import believable
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.policy import Policy

__all__ = ["ambiguous", "beside_nameless"]

_SLICE_MS: Final = 60_000
"""How much of one name's time is sorted by one task, which also sees what lies the tolerance around it."""

_NEAR: Final = ("kind", "name", "near_ms")


def beside_nameless(residue: DataFrame, policy: Policy) -> DataFrame:
    """Return ``residue`` with ``is_ambiguous``: whether events near this one may be its pair, and which nobody can say.

    Of one topic (or group) and kind, starting within the tolerance, there are spans without an id, and at least as many
    as records. Each instant is counted once; only those where it is so go back to the rows.
    """
    near = _near(residue, policy.tolerance("start_ms")).withColumn("is_ambiguous", F.lit(True))
    named = residue.withColumns({"name": _name(), "near_ms": believable(F.col("event_ms"))})
    # Instants spread well, and a broadcast would be a job more.
    return named.join(near.hint("shuffle_hash"), [*_NEAR], "left").drop("name", "near_ms")


def ambiguous() -> Column:
    """Return ``partner_without_id`` where unexplained events of both sides would match by name and time.

    Where there are fewer spans than records, some are lost for certain and all stay unexplained.
    """
    concerned = F.col("msg_id").isNull() | F.col("native").isNotNull()
    return F.when(concerned & F.col("is_ambiguous"), "partner_without_id")


def _near(residue: DataFrame, tolerance_ms: int) -> DataFrame:
    """Return ``kind, name, near_ms`` of the instants around which spans without an id are as many as records."""
    width_ms = max(_SLICE_MS, 2 * tolerance_ms)
    told = residue.select("kind", _name().alias("name"), believable(F.col("event_ms")).alias("near_ms"), *_counted())
    known = told.where(F.col("name").isNotNull() & F.col("near_ms").isNotNull())
    first, last = (F.floor((F.col("near_ms") + ms) / width_ms) for ms in (-tolerance_ms, tolerance_ms))
    instants = known.groupBy(*_NEAR).agg(F.sum("nameless").alias("nameless"), F.sum("lonely").alias("lonely"))
    sliced = instants.withColumn("slice", F.explode(F.sequence(first, last)))
    around = Window.partitionBy("kind", "name", "slice").orderBy("near_ms").rangeBetween(-tolerance_ms, tolerance_ms)
    nameless, lonely = (F.sum(name).over(around).alias(name) for name in ("nameless", "lonely"))
    seen = sliced.select(*_NEAR, "slice", nameless, lonely)
    here = F.col("slice") == F.floor(F.col("near_ms") / width_ms)  # the slice that sees all around the instant
    both = (F.col("nameless") >= F.col("lonely")) & (F.col("lonely") > 0)
    return seen.where(here & both).select(*_NEAR)


def _counted() -> list[Column]:
    return [
        F.col("msg_id").isNull().cast("long").alias("nameless"),
        F.col("native").isNotNull().cast("long").alias("lonely"),
    ]


def _name() -> Column:
    return F.when(F.col("kind") == Kind.CONSUME.value, F.col("group")).when(
        F.col("kind") == Kind.PUBLISH.value, F.col("topic")
    )
