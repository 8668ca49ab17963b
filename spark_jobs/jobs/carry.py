"""This module knows how a run takes over what the last one left open, and leaves the same to the next one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from spark_jobs.history.lifecycle import Runs, assign_lifecycle
from spark_jobs.normalise.places import goes_by_place
from spark_jobs.reconcile import lifecycle
from spark_jobs.reconcile.paid import with_earlier
from spark_jobs.schemas import VERDICT as ARROW_VERDICT
from spark_jobs.sources.ledger import LedgerRead
from spark_jobs.spark_schemas import VERDICT
from spark_jobs.taxonomy import Lifecycle, Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.jobs.history import Past
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.judging.counts import Tally
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy

__all__ = ["Carried", "assign", "leave_open", "payable", "runs_of", "take_over"]

_OPEN = (Lifecycle.NEW.value, Lifecycle.STILL_OPEN.value, Lifecycle.REGRESSED.value)
_DONE = (Lifecycle.RESOLVED.value, Lifecycle.EXPLAINED.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Both sides' ``EVENT`` with what an earlier run left open; the counts are of events, per side.

    ``by_place`` counts the spans that know their message by its place only, ``None`` where nobody counted.
    """

    native: DataFrame
    otlp: DataFrame
    by_place: int | None = None
    carried: Mapping[str, int] = field(default_factory=dict)
    read_again: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Tell whether anything was carried over."""
        return any(self.carried.values())


def take_over(spark: SparkSession, native: NormalisedSide, otlp: NormalisedSide, past: Past) -> Carried:
    """Return the events to judge: those just read, and those of the keys that the last run left open."""
    earlier = past.carried(spark)
    if earlier is None:
        return Carried(native=native.events, otlp=otlp.events, by_place=otlp.by_place)
    fresh = native.events.unionByName(otlp.events)
    counts = earlier.groupBy("side").agg(F.count("*").alias("rows"), F.count_if(goes_by_place()).alias("by_place"))
    found = {row["side"]: row for row in counts.collect()}
    waiting = found["otlp"]["by_place"] if "otlp" in found else 0
    return Carried(
        native=lifecycle.taken_over(native.events, earlier.where("side = 'native'")),
        otlp=lifecycle.taken_over(otlp.events, earlier.where("side = 'otlp'")),
        by_place=None if otlp.by_place is None else otlp.by_place + waiting,
        carried={side: row["rows"] for side, row in found.items()},
        read_again={row["side"]: row["rows"] for row in lifecycle.read_again(fresh, earlier).collect()},
    )


def payable(ledger: LedgerRead | None, past: Past) -> LedgerRead | None:
    """Return the losses that may be spent: those counted for this run, and those that paid for keys still carried.

    What was spent once is there once, for the keys it was spent on are judged again: it can pay for no others beside.
    """
    earlier = past.paid()
    if not earlier:
        return ledger
    read = LedgerRead() if ledger is None else ledger
    return replace(read, drops=with_earlier(read.drops, earlier))


def runs_of(past: Past, known: Facts, policy: Policy) -> Runs:
    """Return what the lifecycle of a verdict depends on beside the verdict."""
    closed = past.closed_places()
    return Runs(
        run=past.run,
        data_end_ms=known.data_end_ms,
        horizon_ms=known.horizon_ms,
        forget_after_ms=policy.forget_after_ms,
        closed=closed,
    )


def assign(runs: Runs, verdicts: DataFrame) -> DataFrame:
    """Return ``VERDICT`` with the lifecycle of each key; the reasons are final."""
    return verdicts.select(*VERDICT.names).mapInArrow(partial(_assign_batches, runs), VERDICT)


def _assign_batches(runs: Runs, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        table = pa.Table.from_batches([batch]).cast(ARROW_VERDICT)
        yield from assign_lifecycle(table, runs).to_batches()


def leave_open(  # noqa: PLR0913 - what was judged, by what
    judged: DataFrame,
    carried: Carried,
    counts: Tally,
    *,
    past: Past,
    known: Facts,
    policy: Policy,
) -> None:
    """Write what the next run takes over; it counts once ``past`` is committed. Nothing open takes no job."""
    if past.directory is None:
        return
    if any(counts.lifecycle[name] for name in _OPEN) or counts.reason[Reason.DROP_ATTRIBUTED.value]:
        waiting = lifecycle.read_open_messages(row.asDict() for row in lifecycle.open_messages(judged).collect())
        past.keep_events(lifecycle.open_events(carried.native, carried.otlp, judged, among=waiting))
    earlier = past.closed(judged.sparkSession)
    if earlier is not None or any(counts.lifecycle[name] for name in _DONE):
        since_ms = (known.data_end_ms or 0) - policy.forget_after_ms
        past.keep_closed(lifecycle.closed_positions(judged, earlier, since_ms=since_ms))
