"""This module knows what must be known of the whole input before any key is judged: ends, scopes, gaps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from spark_jobs.judging.facts import Facts
from spark_jobs.reconcile.instants import believable
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame

    from spark_jobs.policy.policy import Policy

__all__ = ["overview", "read_facts"]

_MALFORMED: Final = "MALFORMED"


def overview(native: DataFrame, otlp: DataFrame, malformed: DataFrame) -> DataFrame:
    """Return one row per side, kind and scope: counts and ends.

    Times that nobody can have meant end nothing: one of them would settle, or unsettle, all the others. Nor does an
    event end later than its record arrived: a host whose clock is ahead would settle what is still on its way.
    """
    columns = ("side", "kind", "scope", "name", "first_ms", "last_ms")
    name = F.when(F.col("kind") == Kind.PUBLISH.value, F.col("topic")).when(
        F.col("kind") == Kind.CONSUME.value, F.col("group_name")
    )
    over_ms = F.greatest(*(believable(F.col(name)) for name in ("start_ms", "end_ms")))
    events = native.unionByName(otlp).withColumns(
        {
            "name": name,
            "first_ms": F.coalesce(*(believable(F.col(name)) for name in ("start_ms", "end_ms"))),
            "last_ms": F.when(over_ms.isNotNull(), F.least(over_ms, believable(F.col("arrival_ms")))),
        }
    )
    bad = malformed.select("side").withColumn("scope", F.lit(_MALFORMED))
    rows = events.select(*columns).unionByName(bad, allowMissingColumns=True)
    return rows.groupBy("side", "kind", "scope").agg(
        F.count(F.lit(1)).alias("rows"),
        F.count("name").alias("named"),
        F.min("first_ms").alias("first_ms"),
        F.max("last_ms").alias("last_ms"),
    )


def read_facts(rows: Iterable[Any], policy: Policy) -> Facts:
    """Fold the collected rows of ``overview`` into the facts of the run."""
    rows = list(rows)
    inside = [row for row in rows if row["scope"] is None]
    ends = {side: _last(inside, side) for side in ("native", "otlp")}
    known = [end for end in ends.values() if end is not None]
    scopes: dict[str, Counter[str]] = {"native": Counter(), "otlp": Counter()}
    for row in rows:
        if row["scope"] not in {None, _MALFORMED}:
            scopes[row["side"]][row["scope"]] += row["rows"]
    return Facts(
        first_ms=min((row["first_ms"] for row in inside if row["first_ms"] is not None), default=None),
        data_end_ms=max(known, default=None),
        horizon_ms=min(known) - policy.grace_ms if len(known) == len(ends) else None,
        in_scope=_rows_per_side(inside),
        malformed=_rows_per_side(row for row in rows if row["scope"] == _MALFORMED),
        scopes=scopes,
        first={side: _first(inside, side) for side in ("native", "otlp")},
        named=_named(inside),
    )


def _last(rows: Iterable[Any], side: str) -> int | None:
    return max((row["last_ms"] for row in rows if row["side"] == side and row["last_ms"] is not None), default=None)


def _first(rows: Iterable[Any], side: str) -> int | None:
    return min((row["first_ms"] for row in rows if row["side"] == side and row["first_ms"] is not None), default=None)


def _named(rows: Iterable[Any]) -> dict[tuple[str, str], int]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in rows:
        counts[row["side"], row["kind"]] += row["named"]
    return dict(counts)


def _rows_per_side(rows: Iterable[Any]) -> dict[str, int]:
    counts = {"native": 0, "otlp": 0}
    for row in rows:
        counts[row["side"]] += row["rows"]
    return counts
