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

from spark_jobs.reconcile.instants import believable, minus
from spark_jobs.reconcile.keys import fill_groups, identified, keyed, message_key, own_key
from spark_jobs.schemas import EVENT
from spark_jobs.taxonomy import Lifecycle, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.facts import Facts

__all__ = [
    "AGES",
    "CLOSED",
    "MOST_NAMED",
    "OPEN_REASONS",
    "age_of_open",
    "closed_positions",
    "open_events",
    "open_messages",
    "read_again",
    "read_open_messages",
    "taken_over",
    "told",
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


def told(
    verdicts: DataFrame, facts: Facts, *, run: int | None, forget_after_ms: int, closed: DataFrame | None
) -> DataFrame:
    """Fill ``lifecycle`` and ``first_seen_run`` of verdict rows whose reason is final.

    What only this run's input seems to explain is no explanation of what an earlier run could not explain: its reason
    is UNEXPLAINED again.

    Args:
        verdicts: ``VERDICT``; its ``first_seen_run`` says which rows hold a carried event.
        facts: tell how far the data reaches; what is open is as old as it is before that.
        run: this run's number; ``None`` without a history.
        forget_after_ms: open keys older than this are waited for no longer.
        closed: ``CLOSED`` of earlier runs, or ``None``: an open key found there is open again.
    """
    before = F.lit(None).cast("int")
    if closed is not None:
        verdicts, before = _with_closed(verdicts, closed), F.col("closed_run")
    verdicts = verdicts.withColumns(_unless_of_this_input(before))
    known, opened, covered = F.col("first_seen_run").isNotNull(), _is_open(facts), _is_covered()
    both = F.col("native").isNotNull() & F.col("otlp").isNotNull()
    old = F.coalesce(_age_ms(facts.data_end_ms) > forget_after_ms, F.lit(False))
    lifecycle = (
        F.when((opened | (known & covered)) & old, Lifecycle.EXPIRED.value)
        .when(opened & known, Lifecycle.STILL_OPEN.value)
        .when(opened & before.isNotNull(), Lifecycle.REGRESSED.value)
        .when(opened, Lifecycle.NEW.value)
        .when(known & both, Lifecycle.RESOLVED.value)
        .when(known, Lifecycle.EXPLAINED.value)
    )
    left = opened | (covered & ~old)
    first = F.coalesce(F.col("first_seen_run"), F.when(left, F.coalesce(before, F.lit(run).cast("int"))))
    return verdicts.withColumns({"lifecycle": lifecycle, "first_seen_run": first}).drop("closed_run")


def _unless_of_this_input(closed_run: Column) -> dict[str, Column]:
    """Take back the reasons that a key known before has only because this run's input holds little around it.

    A file of today begins after an event of yesterday, and may hold nothing of its topic or its process. Where nothing
    was amiss yesterday but the record, nothing of today's excuses it; where yesterday's run could not yet tell, that a
    process or a topic is gone for good is news.
    """
    left_as = F.coalesce(*(F.col(side)["left_as"] for side in ("native", "otlp")))
    reason = F.col("reason")
    lost = left_as.isin(Reason.UNEXPLAINED.value, _COVERED) & reason.isin(*_OF_THIS_INPUT)
    earlier = F.col("first_seen_run").isNotNull() | closed_run.isNotNull()
    cut = earlier & (reason == Reason.LATE_BEYOND_RETENTION.value)
    taken_back = F.coalesce(lost | cut, F.lit(False))
    return {
        "reason": F.when(taken_back, Reason.UNEXPLAINED.value).otherwise(reason),
        "reason_detail": F.when(~taken_back, F.col("reason_detail")),
    }


def _with_closed(verdicts: DataFrame, closed: DataFrame) -> DataFrame:
    """Add ``closed_run`` to one-sided rows that were closed once: the run that had first reported them open."""
    names = {name: f"closed_{name}" for name in _PLACE}
    others = closed.select(*(F.col(name).alias(alias) for name, alias in names.items()), "first_seen_run")
    others = others.withColumnRenamed("first_seen_run", "closed_run")
    side = F.when(F.col("native").isNotNull(), "native").otherwise("otlp")
    own = {"side": side, **{name: _own(name) for name in _PLACE[1:]}}
    same = [own[name].eqNullSafe(F.col(alias)) for name, alias in names.items()]
    alone = F.col("native").isNull() | F.col("otlp").isNull()
    return verdicts.join(others, [alone, *same], "left").drop(*names.values())


def _is_open(facts: Facts) -> Column:
    """Say whether a key is waited for: one-sided for want of a better reason, or half recorded and not yet settled."""
    alone = F.col("status").isin(Status.NATIVE_ONLY.value, Status.OTLP_ONLY.value)
    waits = F.coalesce(F.col("reason").isin(*(reason.value for reason in sorted(OPEN_REASONS))), F.lit(False))
    young = F.lit(True) if facts.horizon_ms is None else F.coalesce(_last_ms() > facts.horizon_ms, F.lit(False))
    half = F.coalesce(F.col("reason") == Reason.HALF_RECORD.value, F.lit(False)) & young
    return (F.col("status") == Status.PENDING.value) | (alone & waits) | half


def _is_covered() -> Column:
    return F.coalesce(F.col("reason") == _COVERED, F.lit(False))


def _own(name: str) -> Column:
    return F.coalesce(F.col("native"), F.col("otlp"))[name]


def _last_ms() -> Column:
    ends = (believable(F.col(side)[name]) for name in ("start_ms", "end_ms") for side in ("native", "otlp"))
    return F.greatest(*ends)


def _age_ms(data_end_ms: int | None) -> Column:
    return minus(F.lit(data_end_ms), _last_ms())


def age_of_open(data_end_ms: int | None, grace_ms: int) -> Column:
    """Return which of ``AGES`` an open verdict row belongs to; null on all others, expired ones included."""
    age_ms = _age_ms(data_end_ms)
    named = F.when(age_ms.isNull(), AGES[-1])
    for multiple, name in zip(_MULTIPLES, AGES, strict=False):
        named = named.when(age_ms <= multiple * grace_ms, name)
    return F.when(F.col("lifecycle").isin(*_CARRIED_ON), named.otherwise(AGES[len(_MULTIPLES)]))


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
