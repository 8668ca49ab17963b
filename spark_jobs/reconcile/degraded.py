"""This module knows losses that are perhaps none: a record, and a span without an id that may be its pair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_jobs.reconcile.testimony import heard

if TYPE_CHECKING:
    from pyspark.sql import Column

    from spark_jobs.reconcile.policy import Policy

__all__ = ["ambiguous"]


def ambiguous(policy: Policy) -> Column:
    """Return ``partner_without_id`` where unexplained events of both sides would match by name and time.

    All of one topic (or group) and kind whose starts lie within the tolerance: which belongs to which nobody can say.
    Where there are fewer spans than records, some are lost for certain and all stay unexplained.
    """
    tolerance_ms = F.lit(policy.tolerance("start_ms")).cast("long")
    nameless, lonely = (_count_near(family, tolerance_ms) for family in ("nameless", "lonely"))
    concerned = F.col("msg_id").isNull() | F.col("native").isNotNull()
    return F.when(concerned & (nameless > 0) & (lonely > 0) & (nameless >= lonely), "partner_without_id")


def _count_near(family: str, tolerance_ms: Column) -> Column:
    moments = F.concat(*(F.coalesce(heard(f"{family}{step}", "moments"), F.array()) for step in (-1, 0, 1)))
    return F.size(F.filter(moments, lambda moment: F.abs(moment - F.col("event_ms")) <= tolerance_ms))
