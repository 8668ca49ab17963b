"""This module knows the whole message behind a sampled event: all that either side recorded of it, in short."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.report.measured import Life, Stay
from spark_jobs.taxonomy import Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame

__all__ = ["MOST_EVENTS", "lives", "read_lives"]

MOST_EVENTS: Final = 12
"""Events of one message that are told; a message redelivered a thousand times is not drawn as a thousand lanes."""

_NAMES: Final = ("kind", "group", "attempt_id", "retry_times", "status", "store_host")


def lives(verdicts: DataFrame, msg_ids: Sequence[str]) -> DataFrame:
    """Return the first ``MOST_EVENTS`` events of each of ``msg_ids``: their names, and each side's own times."""
    theirs = verdicts.where(F.col("msg_id").isin(list(msg_ids)) & (F.col("status") != Status.OUT_OF_SCOPE.value))
    told = theirs.select(
        *("msg_id", "event_ms", "kind", "group", "attempt_id", "retry_times", "status"),
        F.coalesce(F.col("native")["store_host"], F.col("otlp")["store_host"]).alias("store_host"),
        *(_stay(side).alias(side) for side in ("native", "otlp")),
    )
    in_order = Window.partitionBy("msg_id").orderBy("event_ms", "kind", "group", "attempt_id", "retry_times", "status")
    return told.withColumn("nth", F.row_number().over(in_order)).where(F.col("nth") <= MOST_EVENTS)


def _stay(side: str) -> Column:
    own = F.col(side)
    return F.when(own.isNotNull(), F.struct(own["start_ms"], own["end_ms"], own["success"]))


def read_lives(rows: Iterable[Any]) -> dict[str, tuple[Life, ...]]:
    """Return ``{message id: its events, earliest first}`` of the collected rows of ``lives``."""
    found: dict[str, list[Life]] = {}
    for row in sorted(rows, key=lambda row: (row["msg_id"], row["nth"])):
        sides: dict[str, Any] = {side: Stay(*row[side]) if row[side] else None for side in ("native", "otlp")}
        found.setdefault(row["msg_id"], []).append(Life(**{name: row[name] for name in _NAMES}, **sides))
    return {msg_id: tuple(events) for msg_id, events in found.items()}
