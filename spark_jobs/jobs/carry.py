"""This module knows how a run takes over what the last one left open, and leaves the same to the next one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_jobs.reconcile import lifecycle
from spark_jobs.taxonomy import Lifecycle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.jobs.history import Past
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy
    from spark_jobs.reconcile.tally import Tally

__all__ = ["Carried", "leave_open", "take_over", "told"]

_OPEN = (Lifecycle.NEW.value, Lifecycle.STILL_OPEN.value, Lifecycle.REGRESSED.value)
_DONE = (Lifecycle.RESOLVED.value, Lifecycle.EXPLAINED.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Both sides' ``EVENT`` with what an earlier run left open; the counts are of events, per side."""

    native: DataFrame
    otlp: DataFrame
    carried: Mapping[str, int] = field(default_factory=dict)
    read_again: Mapping[str, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Tell whether anything was carried over."""
        return any(self.carried.values())


def take_over(spark: SparkSession, native: NormalisedSide, otlp: NormalisedSide, past: Past) -> Carried:
    """Return the events to judge: those just read, and those of the keys that the last run left open."""
    earlier = past.carried(spark)
    if earlier is None:
        return Carried(native=native.events, otlp=otlp.events)
    fresh = native.events.unionByName(otlp.events)
    return Carried(
        native=lifecycle.taken_over(native.events, earlier.where("side = 'native'")),
        otlp=lifecycle.taken_over(otlp.events, earlier.where("side = 'otlp'")),
        carried={row["side"]: row["count"] for row in earlier.groupBy("side").count().collect()},
        read_again={row["side"]: row["rows"] for row in lifecycle.read_again(fresh, earlier).collect()},
    )


def told(spark: SparkSession, verdicts: DataFrame, past: Past, known: Facts, policy: Policy) -> DataFrame:
    """Return ``VERDICT`` with the lifecycle of each key; the reasons are final."""
    return lifecycle.told(
        verdicts,
        known,
        run=past.run,
        forget_after_ms=policy.forget_after_ms,
        closed=past.closed(spark),
    )


def leave_open(  # noqa: PLR0913 - what was judged, by what
    judged: DataFrame, carried: Carried, counts: Tally, *, past: Past, known: Facts, policy: Policy
) -> None:
    """Write what the next run takes over; it counts once ``past`` is committed. Nothing open takes no job."""
    if past.directory is None:
        return
    if any(counts.lifecycle[name] for name in _OPEN):
        past.keep_events(lifecycle.open_events(carried.native, carried.otlp, judged))
    earlier = past.closed(judged.sparkSession)
    if earlier is not None or any(counts.lifecycle[name] for name in _DONE):
        since_ms = (known.data_end_ms or 0) - policy.forget_after_ms
        past.keep_closed(lifecycle.closed_positions(judged, earlier, since_ms=since_ms))
