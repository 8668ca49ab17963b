"""This module knows which service calls which directly: a span whose parent is a span of another service.

Two spans are joined, never a trace put together. Deliveries are left out: a message's way is told by its journey.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["direct_calls"]


def direct_calls(spans: DataFrame, *, begin_ms: int | None, end_ms: int | None) -> DataFrame:
    """Return ``parent, child``, one row per call from one service into another that started in the window.

    Args:
        spans: ``EVENT`` of the OTLP side, out of scope or not; copies of a span count once.
        begin_ms: earliest start, epoch milliseconds, included; ``None`` for no bound.
        end_ms: latest start.
    """
    named = spans.where(F.col("service").isNotNull() & F.col("span_id").isNotNull())
    once = named.groupBy("trace_id", "span_id").agg(
        *(F.min(name).alias(name) for name in ("service", "parent_span_id", "start_ms")),
        F.coalesce(F.max(F.col("kind") == Kind.CONSUME.value), F.lit(False)).alias("delivery"),
    )
    callers = once.select(
        F.col("trace_id").alias("in_trace"), F.col("span_id").alias("caller"), F.col("service").alias("parent")
    )
    called = once.where(F.col("parent_span_id").isNotNull() & ~F.col("delivery"))
    if begin_ms is not None:
        called = called.where(F.col("start_ms") >= begin_ms)
    if end_ms is not None:
        called = called.where(F.col("start_ms") <= end_ms)
    here = (F.col("trace_id") == F.col("in_trace")) & (F.col("parent_span_id") == F.col("caller"))
    pairs = called.join(callers, here).where(F.col("service") != F.col("parent"))
    return pairs.select("parent", F.col("service").alias("child"))
