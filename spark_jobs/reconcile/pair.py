"""This module knows how events that lack part of their key still find each other: by message, group and nearest start.

Only what is one-sided takes part, and two events pair only when at least one of them lacks what would tell it apart;
two that both carry a full key and differ in it are two events, and so are two whose ``retry_times`` differ. The pairs
made here are never called exact keys: ``key_level`` is 2 where the group (or the transaction's state) agrees, 3 where
only the message does.

Among all pairs that may be made, the better one is made first: the stronger level, then starts within the tolerance of
the policy, the nearest first, then (where clocks or delays put all starts further apart) the order in which things
happened on either side. Ties fall by start, hash and identity, never by row order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.fold import COUNTS
from spark_jobs.reconcile.instants import LATEST, between, minus
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["exact_only", "paired"]

_STRONG, _WEAK = 2, 3
_REACH: Final = 32
"""How many places before and after its own an event looks for a partner: what bounds the work of a huge message."""

_FLAGS: Final = ("has_before", "has_after", "conflicting", "equivalent")
_KEPT: Final = ("msg_id", "native", "otlp", *_FLAGS, *COUNTS)


def exact_only(rows: DataFrame) -> DataFrame:
    """Add ``key_level`` where both sides met at their full identity; for a run in which no row lacks any of it."""
    both = F.col("native").isNotNull() & F.col("otlp").isNotNull()
    return rows.withColumn("key_level", F.when(both, 1))


def paired(rows: DataFrame, tolerance_ms: int) -> DataFrame:
    """Add ``key_level`` and let one-sided events of one message meet; starts this near belong together first."""
    native, otlp = F.col("native").isNotNull(), F.col("otlp").isNotNull()
    start_ms = F.coalesce(
        *(F.col(side)[name] for side in ("native", "otlp") for name in ("start_ms", "end_ms")), F.lit(LATEST)
    )
    raw_hash = F.coalesce(F.col("native")["raw_hash"], F.col("otlp")["raw_hash"])
    event = F.struct(start_ms.alias("start"), raw_hash.alias("hash"), "ident", "full_key", *_KEPT)
    per_message = rows.groupBy("k", "kind").agg(
        F.array_sort(F.collect_list(F.when(native & ~otlp, event))).alias("natives"),
        F.array_sort(F.collect_list(F.when(otlp & ~native, event))).alias("otlps"),
        F.collect_list(F.when(native & otlp, event)).alias("met"),
    )
    ranked = per_message.withColumn("candidates", _candidates(tolerance_ms))
    chosen = ranked.withColumn("pairs", _chosen())
    return chosen.select("k", "kind", F.inline(_answer()))


def _candidates(tolerance_ms: int) -> Column:
    """Return every pair that may be made, the best first, as ``level, far, apart_ms, i, j`` (places on either side)."""

    def partners(native: Column, i: Column) -> Column:
        first = F.greatest(i - _REACH, F.lit(0))
        return F.transform(
            F.slice("otlps", first + 1, 2 * _REACH + 1),
            lambda otlp, nth: _candidate(native, otlp, i, first + nth, tolerance_ms),
        )

    every = F.flatten(F.transform("natives", partners))
    return F.array_sort(F.filter(every, lambda pair: pair["level"].isNotNull()))


def _candidate(native: Column, otlp: Column, i: Column, j: Column, tolerance_ms: int) -> Column:
    near = between(native["start"], otlp["start"], tolerance_ms)
    apart_ms = F.abs(F.when(near, minus(native["start"], otlp["start"])).otherwise(F.lit(0)))
    parts = {"level": _level(native, otlp), "far": ~near, "apart_ms": apart_ms, "i": i, "j": j}
    return F.struct(*(part.alias(name) for name, part in parts.items()))


def _level(native: Column, otlp: Column) -> Column:
    """Return how strongly two one-sided events of one message and kind agree, null where they are no pair."""
    here, there = native["native"], otlp["otlp"]
    groups = here["group_name"], there["group_name"]
    same_state = here["transaction_state"].eqNullSafe(there["transaction_state"]) & here[
        "from_transaction_check"
    ].eqNullSafe(there["from_transaction_check"])
    level = (
        F.when(_is(Kind.PUBLISH), F.when(groups[0] == groups[1], _STRONG).otherwise(_WEAK))
        .when(
            _is(Kind.CONSUME),
            F.when(groups[0] == groups[1], _STRONG).when(groups[0].isNull() | groups[1].isNull(), _WEAK),
        )
        .when(_is(Kind.TRANSACTION_END), F.when(same_state, _STRONG).otherwise(_WEAK))
        .when(_is(Kind.RECALL), _STRONG)
    )
    told_apart = native["full_key"] & otlp["full_key"]
    retried = F.coalesce(here["retry_times"] != there["retry_times"], F.lit(False))
    return F.when(~told_apart & ~retried, level)


def _is(kind: Kind) -> Column:
    return F.col("kind") == kind.value


def _chosen() -> Column:
    """Take the candidates in their order, each whose two events are still free."""

    def taken(chosen: Column, pair: Column) -> Column:
        busy = F.exists(chosen, lambda made: (made["i"] == pair["i"]) | (made["j"] == pair["j"]))
        return F.when(busy, chosen).otherwise(F.array_append(chosen, pair))

    return F.aggregate("candidates", F.slice("candidates", 1, 0), taken)


def _answer() -> Column:
    """Return one struct per key: the pairs, what stayed alone on either side, and what had met before."""
    met = F.transform("met", lambda event: _told(event, F.lit(1)))
    return F.concat(F.transform("pairs", _merged), _alone("natives", "i"), _alone("otlps", "j"), met)


def _alone(side: str, place: str) -> Column:
    left = F.filter(side, lambda _, nth: ~F.exists("pairs", lambda made: made[place] == nth))
    return F.transform(left, lambda event: _told(event, F.lit(None)))


def _told(event: Column, level: Column) -> Column:
    return F.struct(*(event[name].alias(name) for name in _KEPT), level.cast("int").alias("key_level"))


def _merged(pair: Column) -> Column:
    native, otlp = F.get("natives", pair["i"]), F.get("otlps", pair["j"])
    both = {
        "msg_id": F.coalesce(native["msg_id"], otlp["msg_id"]),
        "native": native["native"],
        "otlp": otlp["otlp"],
        **{name: native[name] | otlp[name] for name in _FLAGS},
        **{name: native[name] + otlp[name] for name in COUNTS},
        "key_level": pair["level"],
    }
    return F.struct(*(column.alias(name) for name, column in both.items()))
