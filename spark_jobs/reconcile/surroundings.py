"""This module knows what the other events of a message say about this one: its topic, its send, its damaged records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.reconcile.keys import MENTION
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["surrounded"]


def surrounded(rows: DataFrame) -> DataFrame:
    """Add what is known from the whole message, and drop the rows that only mention it.

    Adds ``topic`` (native consume records carry none: the send's), ``sent_ms`` and ``sent_end_ms`` (the first send),
    ``sent_in_batch``, ``native_damaged`` and ``otlp_damaged``. One partition-local window, no exchange.
    """
    message = Window.partitionBy("k")
    publish = F.col("kind") == Kind.PUBLISH.value
    mention = F.col("kind") == MENTION
    created = (F.col("otlp")["writer"] == "java-agent-new") & F.col("otlp")["batch_size"].isNull()  # a ``create`` span
    batch = (F.greatest(F.col("native")["batch_size"], F.col("otlp")["batch_size"]) > 1) | created

    def of_message(condition: Column, value: Column) -> Column:
        return F.min(F.when(condition, value)).over(message)

    added = {
        "topic": F.coalesce(_either("topic"), of_message(publish, _either("topic"))),
        "sent_ms": of_message(publish, _either("start_ms")),
        "sent_end_ms": of_message(publish, _either("end_ms")),
        "sent_in_batch": of_message(publish & batch, F.lit(True)).isNotNull(),
        "native_damaged": of_message(mention & F.col("native").isNotNull(), F.lit(True)).isNotNull(),
        "otlp_damaged": of_message(mention & F.col("otlp").isNotNull(), F.lit(True)).isNotNull(),
    }
    return rows.withColumns(added).where(~mention)


def _either(name: str) -> Column:
    return F.coalesce(F.col("native")[name], F.col("otlp")[name])
