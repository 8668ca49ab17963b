"""This module knows which message a span is about when it does not say: the one whose send it points at.

Semantic conventions let a consumer point at the send of its message by a link or by its parent, in the same trace or
in another; both are followed here, by joins on span ids. No trace is ever put together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_jobs.spark_schemas import EVENT
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["named_by_position", "tied", "unnamed"]


def named_by_position(events: DataFrame) -> DataFrame:
    """Give an event without a message id its place on the broker (a Kafka topic, partition and offset) for one."""
    return events.withColumn("msg_id", F.coalesce("msg_id", "offset_msg_id"))


def unnamed(events: DataFrame) -> DataFrame:
    """Return one row: ``unnamed``, how many sends and deliveries name no message, so that :func:`tied` is needed."""
    nameless = _is(Kind.PUBLISH, Kind.CONSUME) & F.col("msg_id").isNull()
    return events.agg(F.count_if(nameless).alias("unnamed"))


def tied(spans: DataFrame) -> DataFrame:
    """Return ``EVENT`` in which a send and the deliveries that point at it name the same message.

    A send without an id gets the one its consumers name (sends one way learn theirs only so), or its own span's place
    when they know none either. A delivery without an id gets its send's; one that points at several sends becomes one
    delivery of each. What nobody points at stays without.

    Args:
        spans: ``EVENT`` of the OTLP side.
    """
    sends, deliveries = (spans.where(_is(kind)) for kind in (Kind.PUBLISH, Kind.CONSUME))
    rest = spans.where(~_is(Kind.PUBLISH, Kind.CONSUME))
    sends = _told_by_consumers(sends, deliveries)
    named = deliveries.where(F.col("msg_id").isNotNull())
    found = _told_by_sends(deliveries.where(F.col("msg_id").isNull()), sends)
    parts = (sends, named, found, rest)
    answer, *others = (part.select(*EVENT.names) for part in parts)
    for other in others:
        answer = answer.unionByName(other)
    return answer


def _is(*kinds: Kind) -> Column:
    named = F.col("kind").isin(*(kind.value for kind in kinds)) & F.col("scope").isNull()
    return F.coalesce(named, F.lit(False))


def _told_by_consumers(sends: DataFrame, deliveries: DataFrame) -> DataFrame:
    pointed = deliveries.select("msg_id", F.explode(_pointed_at()).alias("at"))
    heard = pointed.groupBy(F.col("at.trace_id").alias("at_trace"), F.col("at.span_id").alias("at_span")).agg(
        F.min("msg_id").alias("heard_id")
    )
    lacking = sends.where(F.col("msg_id").isNull())
    here = (F.col("trace_id") == F.col("at_trace")) & (F.col("span_id") == F.col("at_span"))
    own = F.concat(F.lit("span:"), "trace_id", F.lit("/"), "span_id")
    told = lacking.join(heard, here, "left").withColumn(
        "msg_id", F.when(F.col("at_span").isNotNull(), F.coalesce("heard_id", own))
    )
    return sends.where(F.col("msg_id").isNotNull()).unionByName(told.select(*sends.columns))


def _told_by_sends(deliveries: DataFrame, sends: DataFrame) -> DataFrame:
    one_each = deliveries.withColumn("at", F.explode_outer(_pointed_at()))
    sent = sends.groupBy(F.col("trace_id").alias("at_trace"), F.col("span_id").alias("at_span")).agg(
        F.min("msg_id").alias("sent_id")
    )
    here = (F.col("at.trace_id") == F.col("at_trace")) & (F.col("at.span_id") == F.col("at_span"))
    return one_each.join(sent, here, "left").withColumn("msg_id", F.col("sent_id"))


def _pointed_at() -> Column:
    """Return the spans a delivery points at: what it links to, else its parent."""
    parent = F.struct(F.col("trace_id"), F.col("parent_span_id").alias("span_id"))
    linked = F.when(F.size("links") > 0, F.array_distinct("links"))
    return F.coalesce(linked, F.when(F.col("parent_span_id").isNotNull(), F.array(parent)))
