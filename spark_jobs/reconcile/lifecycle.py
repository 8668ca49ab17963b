"""This module knows how long a key stays open over runs: what is carried over, what is told of it, what is kept.

A key is *open* while something of it may still come (its other side, the other half of its delivery), or when its loss
has no reason. A key is *covered* when a budget pays for it, which says how many keys are lost and not which. The events
of open and of covered keys are carried into the next run of the same history; each remembers the run that first
reported it (``first_seen_run``), so that nothing but the events themselves has to be matched again. Ages count from the
data's own end.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.reconcile.instants import believable
from spark_jobs.reconcile.keys import fill_groups, identified, keyed, message_key, own_key
from spark_jobs.spark_schemas import EVENT
from spark_jobs.taxonomy import Lifecycle, Reason

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame


__all__ = [
    "CLOSED",
    "MOST_NAMED",
    "closed_positions",
    "open_events",
    "open_messages",
    "read_again",
    "read_open_messages",
    "taken_over",
]

OPEN_REASONS: Final = frozenset({Reason.IN_FLIGHT, Reason.ABANDONED, Reason.UNEXPLAINED})
"""Reasons of a one-sided key that later data can still answer: its end, or its other side."""

MOST_NAMED: Final = 10_000
"""So many hashes a plan can name one by one: two for each record of an open key."""
_COVERED: Final = Reason.DROP_ATTRIBUTED.value
AGES: Final = ("0-1x", "1-2x", "2-5x", ">5x", "no_time")
"""How old an open key is, in multiples of the grace; the last one has no believable time."""

_OF_THIS_INPUT: Final = (
    Reason.WRITER_SILENT.value,
    Reason.SHUTDOWN_WINDOW.value,
    Reason.LATE_BEYOND_RETENTION.value,
)
_MULTIPLES: Final = (1, 2, 5)
_CARRIED_ON: Final = (Lifecycle.NEW.value, Lifecycle.STILL_OPEN.value, Lifecycle.REGRESSED.value)
_DONE: Final = (Lifecycle.RESOLVED.value, Lifecycle.EXPLAINED.value)
_PLACE: Final = ("side", "path", "record_index", "raw_hash")
CLOSED: Final = (*_PLACE, "line", "first_seen_run", "last_ms")
"""The columns of what is remembered of keys that were open once and are not any more."""


def taken_over(fresh: DataFrame, carried: DataFrame) -> DataFrame:
    """Return ``EVENT``: what was read now and what is carried over, an event that is both only as carried.

    One that is both is judged as any other: this run's input speaks of it, whatever an earlier run made of it.
    """
    again = fresh.join(carried, _same_place(fresh, carried), "left_semi")
    both = carried.join(again, _same_place(carried, again), "left_semi").withColumn("left_as", F.lit(None))
    only = carried.join(again, _same_place(carried, again), "left_anti")
    return fresh.join(carried, _same_place(fresh, carried), "left_anti").unionByName(both).unionByName(only)


def read_again(fresh: DataFrame, carried: DataFrame) -> DataFrame:
    """Return ``side`` and ``rows``: how many events of this run were read again from where a carried one came from."""
    return fresh.join(carried, _same_place(fresh, carried), "left_semi").groupBy("side").agg(F.count("*").alias("rows"))


def _same_place(one: DataFrame, other: DataFrame) -> Column:
    """Say whether two rows are one piece of input: same file, same content, same line where both know theirs.

    A file that grew beyond the size up to which lines are numbered has none any more.
    """
    lines = one["line"], other["line"]
    same_line = lines[0].eqNullSafe(lines[1]) | lines[0].isNull() | lines[1].isNull()
    return reduce(lambda left, right: left & right, (one[name].eqNullSafe(other[name]) for name in _PLACE)) & same_line


def _is_covered() -> Column:
    return F.coalesce(F.col("reason") == _COVERED, F.lit(False))


def _last_ms() -> Column:
    ends = (believable(F.col(side)[name]) for name in ("start_ms", "end_ms") for side in ("native", "otlp"))
    return F.greatest(*ends)


def open_messages(verdicts: DataFrame) -> DataFrame:
    """Return ``message``: hashes of what has an open or a covered key, ``MOST_NAMED`` and one at most.

    They are those of the messages, and of what stands for a message where a record does not know it.

    Args:
        verdicts: ``VERDICT`` as :func:`told` left them.
    """
    return _messages(_shown(verdicts)).limit(MOST_NAMED + 1)


def read_open_messages(rows: Iterable[Mapping[str, int]]) -> list[int] | None:
    """Return the hashes in the collected rows of :func:`open_messages`; ``None`` where they are not all."""
    found = [row["message"] for row in rows]
    return found if len(found) <= MOST_NAMED else None


def open_events(
    native: DataFrame, otlp: DataFrame, verdicts: DataFrame, *, among: Sequence[int] | None = None
) -> DataFrame:
    """Return ``EVENT``: every row of either side that became an open or covered key, with the run that first told it.

    Args:
        native: ``EVENT``, as it was judged.
        otlp: ``EVENT``, as it was judged.
        verdicts: ``VERDICT`` as :func:`told` left them. A verdict shows one record of its key; the others (the second
            half, copies) are found by its identity, among the events of the same messages only.
        among: what :func:`read_open_messages` says: where that is all, no event of another message is moved for a
            join.
    """
    shown = _shown(verdicts)
    near = (
        events.where(F.col("scope").isNull()).withColumn("message", F.xxhash64(message_key()))
        for events in (native, otlp)
    )
    if among is None:
        messages = _messages(shown)
        found = [side.join(messages, "message", "left_semi") for side in near]
    else:
        listed = ", ".join(map(str, among)) or "NULL"  # as text: with an object of the JVM each, 10 000 take 5 s
        found = [side.where(f"message IN ({listed})") for side in near]
    rows = identified(fill_groups(keyed(*(side.drop("message") for side in found))))
    places = shown.select(*_PLACE, F.col("line").alias("shown_line"), "left")
    same = [rows[name].eqNullSafe(places[name]) for name in _PLACE]
    at = [*same, rows["line"].eqNullSafe(places["shown_line"])]
    marked = rows.join(places.hint("merge"), at, "left").select(rows["*"], "left")  # to broadcast is a job more
    of_key = Window.partitionBy("k", "kind", "ident", "side")
    kept = marked.withColumn("left", F.min("left").over(of_key)).where(F.col("left").isNotNull())
    carried = {"first_seen_run": F.col("left.first_seen_run"), "left_as": F.col("left.left_as")}
    return kept.withColumns(carried).select(*EVENT.names)


def _messages(shown: DataFrame) -> DataFrame:
    # A span whose id was only told by its neighbours is still its own key among the events.
    both = F.array(F.xxhash64(message_key()), F.xxhash64(own_key()))
    return shown.select(F.explode(both).alias("message")).distinct()


def _shown(verdicts: DataFrame) -> DataFrame:
    """Return the place of the one record a side that each verdict carried on shows, and what tells its message."""
    fields = (*_PLACE[1:], "line", "span_id")
    sides = [
        F.when(
            F.col(side).isNotNull(),
            F.struct(F.lit(side).alias("side"), *(F.col(side)[name].alias(name) for name in fields)),
        )
        for side in ("native", "otlp")
    ]
    expired = F.col("lifecycle").eqNullSafe(F.lit(Lifecycle.EXPIRED.value))
    paid = _is_covered() & F.col("first_seen_run").isNotNull() & ~expired
    still = verdicts.where(F.col("lifecycle").isin(*_CARRIED_ON) | paid)
    left = F.struct("first_seen_run", F.coalesce("reason", "status").alias("left_as")).alias("left")
    each = still.select("msg_id", left, F.explode(F.array_compact(F.array(*sides))).alias("shown"))
    shown = each.select("msg_id", "left", "shown.*")
    return shown.groupBy(*_PLACE, "line", "msg_id", "span_id").agg(F.min("left").alias("left"))


def closed_positions(verdicts: DataFrame, earlier: DataFrame | None, *, since_ms: int) -> DataFrame:
    """Return ``CLOSED``: the records of keys that are open no more, now or in an earlier run, unless before a time."""
    done = verdicts.where(F.col("lifecycle").isin(*_DONE)).withColumn("last_ms", _last_ms())
    sides = [
        done.where(F.col(side).isNotNull()).select(
            F.lit(side).alias("side"),
            *(F.col(side)[name].alias(name) for name in (*_PLACE[1:], "line")),
            *("first_seen_run", "last_ms"),
        )
        for side in ("native", "otlp")
    ]
    rows = reduce(lambda one, other: one.unionByName(other), [*sides, *([] if earlier is None else [earlier])])
    recent = rows.where(F.coalesce(F.col("last_ms") >= since_ms, F.lit(True)))
    return recent.groupBy(*_PLACE).agg(
        F.min("line").alias("line"), F.min("first_seen_run").alias("first_seen_run"), F.max("last_ms").alias("last_ms")
    )
