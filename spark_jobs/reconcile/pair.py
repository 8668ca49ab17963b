"""This module knows how events that lack part of their key still find each other: by message, group and nearest start.

Only what is one-sided takes part, and two events pair only when at least one of them lacks what would tell it apart;
two that both carry a full key and differ in it are two events, and so are deliveries whose ``retry_times`` differ and
sends to different topics. The pairs made here are never called exact keys: ``key_level`` is 2 where the group (or the
transaction's state) agrees, 3 where only the message does.

Among all pairs that may be made, the better one is made first: the stronger level, then starts within the tolerance of
the policy, the nearest first, then (where clocks or delays put all starts further apart) the order in which things
happened on either side. Ties fall by start, hash and identity, never by row order.

A message may have a hundred thousand of them (one id given to everything). Its timeline is cut into blocks of a
thousand events, before the longest pauses there are, and events meet within a block: memory and time stay bounded, and
a message of ``BLOCK`` events or fewer is one block. Where a timeline of more has no pause at all, the two events on
either side of a cut may miss each other.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.names import PREFIXES
from spark_jobs.reconcile.fold import COUNTS
from spark_jobs.reconcile.instants import LATEST, between, minus
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["BLOCK", "exact_only", "paired"]

_STRONG, _WEAK = 2, 3
BLOCK: Final = 1024
"""How many one-sided events of one message and kind are looked at together at least; at most five times as many."""

_REACH: Final = 32
"""How far an event looks for a partner, in places before and after its own and before and after its own time."""

_PLACE_BYTES: Final = 4
"""How the place of a candidate is written: a block has fewer than 2**24 of them."""

_PAUSES_MS: Final = (60_000, 1_000, 50, 0)
"""Where a timeline may be cut, the best first: before a pause longer than this."""

_FLAGS: Final = ("has_before", "has_after", "conflicting", "equivalent")
_KEPT: Final = ("msg_id", "native", "otlp", *_FLAGS, *COUNTS)


def exact_only(rows: DataFrame) -> DataFrame:
    """Add ``key_level`` where both sides met at their full identity; for a run in which no row lacks any of it."""
    both = F.col("native").isNotNull() & F.col("otlp").isNotNull()
    return rows.withColumn("key_level", F.when(both, 1))


def paired(rows: DataFrame, tolerance_ms: int) -> DataFrame:
    """Add ``key_level`` and let one-sided events of one message meet; starts this near belong together first."""
    native, otlp = F.col("native").isNotNull(), F.col("otlp").isNotNull()
    event = F.struct("start", "hash", "ident", "full_key", "otlps_seen", *_KEPT)
    per_block = (
        _in_blocks(rows)
        .groupBy("k", "kind", "block")
        .agg(
            F.array_sort(F.collect_list(F.when(native & ~otlp, event))).alias("natives"),
            F.array_sort(F.collect_list(F.when(otlp & ~native, event))).alias("otlps"),
            F.collect_list(F.when(native & otlp, event)).alias("met"),
        )
    )
    ranked = per_block.withColumn("candidates", _candidates(tolerance_ms))
    chosen = ranked.withColumn("chosen", _chosen()).withColumn("natives_given", _natives_given())
    return chosen.select("k", "kind", F.inline(_answer()))


def _in_blocks(rows: DataFrame) -> DataFrame:
    """Add ``start``, ``hash``, ``otlps_seen`` (how many spans of the timeline stand up to here) and ``block``."""
    native, otlp = F.col("native").isNotNull(), F.col("otlp").isNotNull()
    starts = (F.col(side)[name] for side in ("native", "otlp") for name in ("start_ms", "end_ms"))
    raw_hash = F.coalesce(F.col("native")["raw_hash"], F.col("otlp")["raw_hash"])
    named = rows.withColumns(
        {"start": F.coalesce(*starts, F.lit(LATEST)), "hash": raw_hash, "met_already": native & otlp}
    )
    timeline = Window.partitionBy("k", "kind", "met_already").orderBy("start", "hash", "ident")
    so_far = timeline.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    pause_ms = minus(F.col("start"), F.lag("start").over(timeline))
    placed = named.withColumns(
        {
            "place": F.row_number().over(timeline) - 1,
            "pause_ms": pause_ms,
            "otlps_seen": F.count(F.when(otlp, 1)).over(so_far),
        }
    )

    def cut(longest_ms: int) -> Column:
        paused = F.coalesce(F.col("pause_ms") > longest_ms, F.lit(True))
        return F.max(F.when(paused, F.col("place"))).over(so_far)

    cuts = [F.lit(0), *map(cut, _PAUSES_MS), F.col("place")]
    blocks = [F.floor((after - before) / BLOCK) for before, after in pairwise(cuts)]
    return placed.withColumn("block", F.array(*blocks))


def _candidates(tolerance_ms: int) -> Column:
    """Return every pair that may be made, the best first, as ``level, far, apart_ms, i, j`` (places on either side)."""

    def partners(native: Column, i: Column) -> Column:
        beside = native["otlps_seen"] - F.get("otlps", F.lit(0))["otlps_seen"] + 1
        return F.transform(
            "otlps",
            lambda otlp, j: F.when(
                (F.abs(j - i) <= _REACH) | (F.abs(j - beside) <= _REACH), _candidate(native, otlp, i, j, tolerance_ms)
            ),
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
    topics = [F.regexp_replace(side["topic"], PREFIXES, "") for side in (here, there)]
    elsewhere = _is(Kind.PUBLISH) & F.coalesce(topics[0] != topics[1], F.lit(False))
    return F.when(~told_apart & ~retried & ~elsewhere, level)


def _is(kind: Kind) -> Column:
    return F.col("kind") == kind.value


def _chosen() -> Column:
    """Take the candidates in their order, each whose two events are still free.

    Returns which candidate each native event was given and whether each span is taken, as bytes: ``aggregate`` copies
    its state at every step, all but bytes by going through it.
    """

    def taken(chosen: Column, pair: Column) -> Column:
        free = (_given(chosen["natives"], pair["i"]) == _nothing(_PLACE_BYTES)) & _is_free(chosen["otlps"], pair["j"])
        made = F.struct(
            F.overlay(chosen["natives"], _bytes_of(pair["nth"] + 1), _PLACE_BYTES * pair["i"] + 1).alias("natives"),
            F.overlay(chosen["otlps"], F.unhex(F.lit("01")), pair["j"] + 1).alias("otlps"),
        )
        return F.when(free, made).otherwise(chosen)

    numbered = F.transform(
        "candidates", lambda pair, nth: F.struct(pair["i"].alias("i"), pair["j"].alias("j"), nth.alias("nth"))
    )
    free = F.struct(
        _nothing(_PLACE_BYTES * F.size("natives")).alias("natives"), _nothing(F.size("otlps")).alias("otlps")
    )
    return F.aggregate(numbered, free, taken)


def _nothing(count: Column | int) -> Column:
    return F.unhex(F.repeat(F.lit("00"), F.lit(count) if isinstance(count, int) else count))


def _bytes_of(number: Column) -> Column:
    return F.unhex(F.lpad(F.hex(number), 2 * _PLACE_BYTES, "0"))


def _given(natives: Column, place: Column) -> Column:
    return F.substring(natives, _PLACE_BYTES * place + 1, F.lit(_PLACE_BYTES))


def _is_free(otlps: Column, place: Column) -> Column:
    return F.substring(otlps, place + 1, F.lit(1)) == _nothing(1)


def _answer() -> Column:
    """Return one struct per key: the pairs, what stayed alone on either side, and what had met before."""
    met = F.transform("met", lambda event: _told(event, F.lit(1)))
    pairs = F.transform(F.filter("natives_given", lambda pair: pair.isNotNull()), _merged)
    natives = F.filter("natives", lambda _, nth: F.get("natives_given", nth).isNull())
    otlps = F.filter("otlps", lambda _, nth: _is_free(F.col("chosen.otlps"), nth))
    return F.concat(
        pairs, *(F.transform(left, lambda event: _told(event, F.lit(None))) for left in (natives, otlps)), met
    )


def _natives_given() -> Column:
    """Return for each native event the candidate it was given, null where it stayed alone."""

    def candidate(_: Column, place: Column) -> Column:
        nth = F.conv(F.hex(_given(F.col("chosen.natives"), place)), 16, 10).cast("int") - 1
        return F.get("candidates", nth)

    return F.transform("natives", candidate)


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
