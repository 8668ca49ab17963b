"""This module knows how events that lack part of their key still find each other: by the order in time they happened.

Only what is one-sided takes part, and two events pair only when at least one of them lacks what would tell it apart;
two that both carry a full key and differ in it are two events. The pairs made here are never called exact keys:
``key_level`` is 2 where the group (or the transaction's state) agrees, 3 where only the message does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.reconcile.fold import COUNTS
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["exact_only", "paired"]

_STRONG, _WEAK = 2, 3


def exact_only(rows: DataFrame) -> DataFrame:
    """Add ``key_level`` where both sides met at their full identity; for a run in which no row lacks any of it."""
    both = F.col("native").isNotNull() & F.col("otlp").isNotNull()
    return rows.withColumn("key_level", F.when(both, 1))


def paired(rows: DataFrame) -> DataFrame:
    """Add ``key_level`` and let one-sided rows of one message meet at level 2, the rest of them at level 3."""
    rows = exact_only(rows)
    for level in (_STRONG, _WEAK):
        rows = _meet(rows, level)
    return _merged(rows)


_NAMED_STATE: Final = ("transaction_state", "from_transaction_check")


def _own(name: str) -> Column:
    return F.coalesce(F.col("native")[name].cast("string"), F.col("otlp")[name].cast("string"))


def _weak_key(level: int) -> Column:
    """Return what must agree at this level, null where the row may not take part in it."""
    if level == _WEAK:
        return F.when(F.col("kind") != Kind.RECALL.value, F.lit(""))
    return (
        F.when(F.col("kind").isin(Kind.PUBLISH.value, Kind.CONSUME.value), _own("group_name"))
        .when(F.col("kind") == Kind.TRANSACTION_END.value, F.concat_ws("/", *(_own(name) for name in _NAMED_STATE)))
        .when(F.col("kind") == Kind.RECALL.value, F.lit(""))
    )


def _lacks(level: int) -> Column:
    """Say whether a row lacks part of its key; below the group, a consume must lack the group itself."""
    lacks = ~F.col("full_key")
    if level == _WEAK:
        return F.when(F.col("kind") == Kind.CONSUME.value, _own("group_name").isNull()).otherwise(lacks)
    return lacks


def _meet(rows: DataFrame, level: int) -> DataFrame:
    """Give each pair of this level one ``ident``: the n-th of one side and the n-th of the other, by start."""
    free = F.col("key_level").isNull() & F.col("weak").isNotNull()
    native, otlp = F.col("native").isNotNull(), F.col("otlp").isNotNull()
    start = F.coalesce(*(F.col(side)[name] for side in ("native", "otlp") for name in ("start_ms", "end_ms")))
    raw_hash = F.coalesce(F.col("native")["raw_hash"], F.col("otlp")["raw_hash"])
    together = Window.partitionBy("k", "kind", "weak").orderBy("start", "order_hash", "ident")
    everyone = together.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    until_here = together.rowsBetween(Window.unboundedPreceding, Window.currentRow)

    rows = rows.withColumns({"weak": _weak_key(level), "start": start, "order_hash": raw_hash})
    rows = rows.withColumn("lacking", free & _lacks(level))
    otlp_lacks = F.coalesce(F.max(F.col("lacking") & otlp).over(everyone), F.lit(False))
    rows = rows.withColumn("otlp_lacks", otlp_lacks)
    rows = rows.withColumns(
        {
            "native_may": free & native & (F.col("otlp_lacks") | F.col("lacking")),
            "otlp_may": free & otlp & (~F.col("otlp_lacks") | F.col("lacking")),
        }
    )
    counted = {
        f"{side}_{name}": F.sum(F.col(f"{side}_may").cast("int")).over(window)
        for side in ("native", "otlp")
        for name, window in (("all", everyone), ("nth", until_here))
    }
    rows = rows.withColumns(counted)
    nth = F.when(F.col("native_may"), F.col("native_nth")).when(F.col("otlp_may"), F.col("otlp_nth"))
    meets = F.coalesce(nth <= F.least("native_all", "otlp_all"), F.lit(False))
    return rows.withColumn("meets", meets).select(
        *("k", "kind", "msg_id", "full_key", "native", "otlp", "has_before", "has_after", "conflicting", "equivalent"),
        *COUNTS,
        F.when(F.col("meets"), F.concat_ws("/", F.lit(f"level{level}"), "weak", nth.cast("string")))
        .otherwise(F.col("ident"))
        .alias("ident"),
        F.when(F.col("meets"), F.lit(level)).otherwise(F.col("key_level")).alias("key_level"),
    )


def _merged(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k", "kind", "ident").agg(
        *(F.first(name, ignorenulls=True).alias(name) for name in ("msg_id", "native", "otlp", "key_level")),
        *(F.max(name).alias(name) for name in ("has_before", "has_after", "conflicting", "equivalent")),
        *(F.sum(name).cast("int").alias(name) for name in COUNTS),
    )
