"""This module knows a leg of a message's way: one send to a topic, or one delivery to a consumer group, as one row.

Whatever the inputs (native records, spans, both), a verdict is a leg already without doubles: copies of a record are
one row, and so are the record and the span of one event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType

from otel_mqtrace._clock import LAST_MS
from spark_jobs.names import RESOURCE
from spark_jobs.taxonomy import Kind, Status

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["LEG", "bare", "legs"]

_LONGEST_NAME: Final = 1_000

_KINDS: Final = {
    "message": StringType(),  # the id, or a place of the row's own
    "identified": BooleanType(),  # whether the id is one that others could name
    "kind": StringType(),
    "raw_topic": StringType(),
    "group": StringType(),  # without its namespace
    "service": StringType(),
    "via": StringType(),  # RETRY, DLQ, or nothing
    "namespace": StringType(),
    "bare_topic": StringType(),  # for a retry or dead-letter topic: the group it belongs to
    "event_ms": LongType(),
    "busy_ms": LongType(),  # start to end
    "queue_ms": LongType(),
    "finished": BooleanType(),
    "success": BooleanType(),
    "retry_times": IntegerType(),
    "msg_type": StringType(),
    "transaction_state": StringType(),
    "inside": BooleanType(),  # of the window
    "on_native": BooleanType(),
    "on_otlp": BooleanType(),
}
LEG: Final = StructType([StructField(name, kind) for name, kind in _KINDS.items()])
"""One send, delivery, end of a transaction or recall. Times are epoch milliseconds."""


def legs(verdicts: DataFrame) -> DataFrame:
    """Return ``LEG`` of ``VERDICT``: nothing is added up, nothing is left out."""
    named = verdicts.select(
        F.coalesce("msg_id", *_own_place()).alias("message"),
        F.col("msg_id").isNotNull().alias("identified"),
        "kind",
        _short("topic").alias("raw_topic"),
        bare(_short("group")).alias("group"),
        F.substring(_present(F.col("otlp.service")), 1, _LONGEST_NAME).alias("service"),
        F.when(F.col("event_ms").between(0, LAST_MS), F.col("event_ms")).alias("event_ms"),
        F.try_subtract(_either("end_ms"), _either("start_ms")).alias("busy_ms"),
        "queue_ms",
        _either("end_ms").isNotNull().alias("finished"),
        *(_either(name).alias(name) for name in ("success", "retry_times", "msg_type", "transaction_state")),
        (F.col("status") != Status.OUT_OF_SCOPE.value).alias("inside"),
        F.col("native").isNotNull().alias("on_native"),
        F.col("otlp").isNotNull().alias("on_otlp"),
    )
    parts = {
        "via": F.regexp_extract("raw_topic", RESOURCE, 1),
        "namespace": F.regexp_extract("raw_topic", RESOURCE, 2),
        "bare_topic": bare(F.col("raw_topic")),
    }
    finished = F.when(F.col("kind") == Kind.CONSUME.value, F.col("finished"))
    split = named.withColumns({name: _present(value) for name, value in parts.items()}).withColumn("finished", finished)
    return split.select(*(F.col(name).cast(kind) for name, kind in _KINDS.items()))


def bare(resource: Column) -> Column:
    """Return a topic's or group's name without prefix and namespace; as it is where nothing would be left."""
    return F.coalesce(_present(F.regexp_extract(resource, RESOURCE, 3)), _present(resource))


def _own_place() -> list[Column]:
    spans = F.concat(F.lit("span:"), "otlp.trace_id", F.lit("/"), "otlp.span_id")
    lines = [
        F.concat(F.lit("row:"), F.concat_ws(":", *(f"{side}.{name}" for name in ("path", "line", "record_index"))))
        for side in ("native", "otlp")
    ]
    return [spans, *lines]


def _short(name: str) -> Column:
    return F.substring(_present(F.col(name)), 1, _LONGEST_NAME)


def _present(text: Column) -> Column:
    return F.when(text != "", text)


def _either(name: str) -> Column:
    return F.coalesce(F.col("native")[name], F.col("otlp")[name])
