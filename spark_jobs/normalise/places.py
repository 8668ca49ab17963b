"""This module knows which message lies at a place of a Kafka topic: what the native sends say, told to the spans.

OpenTelemetry's Kafka instrumentations know no message ids; their spans go by ``topic-partition@offset``. A native send
names the place beside the id, a native delivery the id alone, so without this no delivery would ever meet its span.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_jobs.spark_schemas import EVENT
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["goes_by_place", "named_by_sends"]


def goes_by_place() -> Column:
    """Say whether an event (``EVENT``) has no other id than the place of its message."""
    return F.coalesce(F.col("msg_id") == F.col("offset_msg_id"), F.lit(False))


def named_by_sends(otlp: DataFrame, native: DataFrame) -> DataFrame:
    """Return ``otlp`` with the message ids that ``native`` knows for places; both are ``EVENT``.

    A place that two ids claim (the topic was made anew) stays what it is.
    """
    sends = native.where((F.col("kind") == Kind.PUBLISH.value) & F.col("msg_id").isNotNull() & ~goes_by_place())
    claimed = sends.groupBy(F.col("offset_msg_id").alias("place")).agg(
        F.min("msg_id").alias("one"), F.max("msg_id").alias("other")
    )
    known = claimed.where((F.col("one") == F.col("other")) & F.col("place").isNotNull())
    joined = otlp.join(known, goes_by_place() & (F.col("msg_id") == F.col("place")), "left")
    named = joined.withColumn("msg_id", F.coalesce("one", "msg_id"))
    return named.select(*EVENT.names)
