"""This module knows how one-sided keys become a few counts, and how some keys of each count get a reason.

A *slot* is everything that tells one lost key from another as far as a budget can: the side that lost, service, group,
process, time. Slots are counted by Spark, decided about in plain Python, and marked by rank within the slot: by event
time, then by the key's own hash, never by the order of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_jobs.reconcile.budget import CELL_MS, Loss
from spark_jobs.reconcile.instants import believable
from spark_jobs.taxonomy import Kind, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.budget import Covered

__all__ = ["MOST_SLOTS", "counted", "homes", "lost_ends", "marked", "read_homes", "read_losses"]

MOST_SLOTS: Final = 50_000
"""The keys of slots beyond the largest ones stay unexplained, which is the stricter word."""

_ENDS: Final = "end of "  # put before a slot, which is a JSON object
_MOST_HOMES: Final = 20_000
_MOST_STRETCHES: Final = 200  # each becomes a condition of the plan
_ID_DIGITS: Final = (32, 56)  # RocketMQ's unique ids, with an address of IPv4 or IPv6
_TAIL_DIGITS: Final = 24  # process id and what follows it
_QUOTA: Final = StructType(
    [
        StructField("slot", StringType()),
        StructField("above", LongType()),
        StructField("upto", LongType()),
        StructField("cause", StringType()),
    ]
)


def counted(residue: DataFrame, near: Sequence[range] = (), *, ends: DataFrame | None = None) -> DataFrame:
    """Return one row per slot of the unexplained keys in ``residue`` (``VERDICT``), the largest ``MOST_SLOTS``.

    ``near`` are the cells that a budget tells apart; the time of any other key is no part of its slot. ``ends`` are
    ``lost_ends``: slots of their own, which come first, for what a budget pays for them is spent.
    """
    rows = _slotted(residue.where(_is_open()), near)
    if ends is not None:
        absent = F.lit(None).cast(ends.schema["native"].dataType)
        alone = _slotted(ends.withColumns({"status": F.lit(Status.OTLP_ONLY.value), "native": absent}), near)
        rows = rows.unionByName(alone.withColumn("slot", F.concat(F.lit(_ENDS), "slot")))
    slots = rows.groupBy("slot", "lost", "service", "grp", "process", "cell").agg(F.count(F.lit(1)).alias("keys"))
    return slots.orderBy(_is_end().desc(), F.desc("keys"), "slot").limit(MOST_SLOTS)


def _is_end() -> Column:
    return F.col("slot").startswith(_ENDS)


def lost_ends(settled: DataFrame) -> DataFrame:
    """Return the deliveries whose native end is lost while their span is complete: counted losses, though no key is."""
    half = F.col("reason").eqNullSafe(F.lit(Reason.HALF_RECORD.value)) & (F.col("reason_detail") == "before")
    return settled.where(half)


def homes(settled: DataFrame) -> DataFrame:
    """Return which services the spans of each native group belong to, of keys that both sides have."""
    group, service = F.col("native")["group_name"].alias("grp"), F.col("otlp")["service"].alias("service")
    both = settled.where(F.col("native").isNotNull() & F.col("otlp").isNotNull()).select(group, service)
    named = both.where(F.col("grp").isNotNull() & F.col("service").isNotNull()).distinct()
    return named.orderBy("grp", "service").limit(_MOST_HOMES)


def read_homes(rows: Iterable[Any]) -> dict[str, frozenset[str]]:
    """Fold the collected rows of ``homes``."""
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["grp"], set()).add(row["service"])
    return {group: frozenset(services) for group, services in found.items()}


def read_losses(rows: Iterable[Any], known: Mapping[str, frozenset[str]]) -> list[Loss]:
    """Return the collected rows of ``counted``; a native record's group says its service where spans have shown it."""
    return [
        Loss(
            slot=row["slot"],
            side=row["lost"],
            count=row["keys"],
            services=known.get(row["grp"]) if row["service"] is None else frozenset({row["service"]}),
            group=row["grp"],
            process=row["process"],
            cell=row["cell"],
            known=row["slot"].startswith(_ENDS),
        )
        for row in rows
    ]


def marked(residue: DataFrame, covered: Sequence[Covered], near: Sequence[range], reason: Reason) -> DataFrame:
    """Give ``reason`` to as many keys of each slot as are covered, and the cause as ``reason_detail``.

    Args:
        residue: ``VERDICT``, the frame that was ``counted``.
        covered: how many keys of which slot.
        near: as given to ``counted``.
        reason: what they get in place of UNEXPLAINED.
    """
    if not covered:
        return residue
    quotas = F.broadcast(residue.sparkSession.createDataFrame(_ranks(covered), _QUOTA))
    # Rows without a slot are ranked for nothing: each apart, since one task would sort all that share a null.
    apart = F.coalesce("slot", F.col("chance").cast("string"))
    ordered = Window.partitionBy(apart).orderBy(F.col("when_ms").asc_nulls_last(), "chance")
    chance = F.xxhash64("kind", "msg_id", "group", "attempt_id", "native.raw_hash", "otlp.raw_hash", "event_ms")
    slotted = _slotted(residue, near).withColumns({"chance": chance, "slot": F.when(_is_open(), F.col("slot"))})
    ranked = slotted.withColumn("nth", F.when(F.col("slot").isNotNull(), F.row_number().over(ordered)))
    here = (ranked["slot"] == quotas["slot"]) & (ranked["nth"] > quotas["above"]) & (ranked["nth"] <= quotas["upto"])
    paid = F.col("cause").isNotNull()
    found = ranked.join(quotas, here, "left").withColumns(
        {
            "reason": F.when(paid, F.lit(reason.value)).otherwise(F.col("reason")),
            "reason_detail": F.when(paid, F.col("cause")).otherwise(F.col("reason_detail")),
        }
    )
    return found.select(*residue.columns)


def _ranks(covered: Sequence[Covered]) -> list[tuple[str, int, int, str]]:
    reached: dict[str, int] = {}
    ranks = []
    for each in covered:
        above = reached.get(each.slot, 0)
        reached[each.slot] = above + each.count
        ranks.append((each.slot, above, above + each.count, each.cause))
    return ranks


def _is_open() -> Column:
    alone = F.col("status").isin(Status.NATIVE_ONLY.value, Status.OTLP_ONLY.value)
    return alone & (F.col("reason") == Reason.UNEXPLAINED.value)


def _slotted(rows: DataFrame, near: Sequence[range]) -> DataFrame:
    """Add ``lost``, ``service``, ``grp``, ``process``, ``when_ms``, ``cell`` and ``slot``, the text of them all."""
    own = F.coalesce("native", "otlp")
    when_ms = F.coalesce(*(believable(own[name]) for name in ("end_ms", "start_ms")))
    named = rows.withColumns(
        {
            "lost": F.when(F.col("status") == Status.OTLP_ONLY.value, "native").otherwise("otlp"),
            "service": own["service"],
            "grp": own["group_name"],
            "process": _process(),
            "when_ms": when_ms,
            "cell": _cell(when_ms, near),
        }
    )
    return named.withColumn("slot", F.to_json(F.struct("lost", "service", "grp", "process", "cell")))


def _process() -> Column:
    """Return the process id in the id that the losing process made: a send's message id, a delivery's attempt id."""
    made = F.when(F.col("kind") == Kind.PUBLISH.value, F.col("msg_id")).when(
        F.col("kind") == Kind.CONSUME.value, F.col("attempt_id")
    )
    is_id = F.length(made).isin(*_ID_DIGITS) & made.rlike("^[0-9A-Fa-f]+$")
    return F.when(is_id, F.upper(F.substr(made, F.length(made) - F.lit(_TAIL_DIGITS - 1), F.lit(4))))


def _cell(when_ms: Column, near: Sequence[range]) -> Column:
    """Return the cell of a time within ``near``; of very many stretches, within the hull of them all."""
    cell = F.floor(when_ms / F.lit(CELL_MS)).cast("long")
    stretches = near if len(near) <= _MOST_STRETCHES else [range(near[0].start, near[-1].stop)]
    inside = F.lit(False)
    for stretch in stretches:
        inside = inside | cell.between(stretch.start, stretch.stop - 1)
    return F.when(inside, cell)
