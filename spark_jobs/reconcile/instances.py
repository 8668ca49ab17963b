"""This module knows where losses come from: the client hosts of which a side lacks events, and how many it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.reconcile.gates import ATTRIBUTED
from spark_jobs.report.measured import Instance
from spark_jobs.taxonomy import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame

__all__ = ["MOST_INSTANCES", "instances", "read_instances"]

MOST_INSTANCES: Final = 50
_NAMES: Final = ("host", "service", "events", "lost_native", "lost_otlp", "attributed", "first_ms", "last_ms")


def instances(verdicts: DataFrame) -> DataFrame:
    """Return the ``MOST_INSTANCES`` client hosts with most losses, and in ``of`` how many there are with any.

    A host is what the native record calls it, else what the span does; ``events`` are its settled ones, lost or not.
    """
    settled = verdicts.where(~F.col("status").isin(Status.OUT_OF_SCOPE.value, Status.PENDING.value))
    lost_native, lost_otlp = (_unexplained(status) for status in (Status.OTLP_ONLY, Status.NATIVE_ONLY))
    attributed = F.col("reason").isin(*sorted(ATTRIBUTED))
    lost_at = F.when(lost_native | lost_otlp | attributed, F.col("event_ms"))
    host = F.coalesce(F.col("native")["client_host"], F.col("otlp")["client_host"])
    found = settled.groupBy(host.alias("host")).agg(
        F.max(F.col("otlp")["service"]).alias("service"),
        F.count(F.lit(1)).alias("events"),
        F.count_if(lost_native).alias("lost_native"),
        F.count_if(lost_otlp).alias("lost_otlp"),
        F.count_if(attributed).alias("attributed"),
        F.min(lost_at).alias("first_ms"),
        F.max(lost_at).alias("last_ms"),
    )
    lost = F.col("lost_native") + F.col("lost_otlp") + F.col("attributed")
    whole = Window.partitionBy(F.lit(0))
    ranked = whole.orderBy(F.desc("lost"), F.desc("events"), "host")
    losing = found.withColumn("lost", lost).where(F.col("lost") > 0)
    numbered = losing.withColumns({"nth": F.row_number().over(ranked), "of": F.count(F.lit(1)).over(whole)})
    return numbered.where(F.col("nth") <= MOST_INSTANCES).select(*_NAMES, "nth", "of")


def _unexplained(status: Status) -> Column:
    return (F.col("status") == status.value) & (F.col("reason") == Reason.UNEXPLAINED.value)


def read_instances(rows: Iterable[Mapping[str, Any]]) -> tuple[tuple[Instance, ...], int]:
    """Return the collected rows of ``instances``, most losses first, and how many more there are."""
    ordered = sorted(rows, key=lambda row: row["nth"])
    found = tuple(Instance(**{name: row[name] for name in _NAMES}) for row in ordered)
    return found, ordered[0]["of"] - len(found) if ordered else 0
