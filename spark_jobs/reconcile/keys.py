"""This module knows what makes two records speak of the same event: the shuffle key and the identity below it.

Everything later groups by columns that include ``k``, so the one exchange of a run is the one made here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from spark_jobs.spark_schemas import EVENT
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["MENTION", "fill_groups", "has_full_key", "identified", "keyed", "message_key", "own_key"]

MENTION: Final = "mention"
"""The kind of a row that only says: a malformed record of this side names this message."""


def keyed(native: DataFrame, otlp: DataFrame, malformed: DataFrame | None = None) -> DataFrame:
    """Return what both sides say about messages in scope, every row of one message in one partition.

    Args:
        native: ``EVENT``.
        otlp: ``EVENT``.
        malformed: ``MALFORMED`` of both sides, or ``None`` when nothing was.

    Returns:
        ``EVENT`` and ``k``: the message id, or something of the row's own where the writer knew none.
    """
    rows = _in_scope(native).unionByName(_in_scope(otlp))
    if malformed is not None:
        rows = rows.unionByName(_mentions(malformed), allowMissingColumns=True)
    return rows.withColumn("k", message_key()).repartition("k")


def message_key() -> Column:
    """Return what all rows about one message share: its id, or something of the row's own where nobody knew it."""
    return F.coalesce("msg_id", own_key())


def own_key() -> Column:
    """Return what stands for the message of a row that does not know it: something of the row's own."""
    place = F.concat_ws(":", "path", "line", "record_index")
    return F.coalesce(F.concat(F.lit("span:"), "span_id"), F.concat(F.lit("row:"), place))


def _in_scope(events: DataFrame) -> DataFrame:
    return events.select(*EVENT.names).where(F.col("scope").isNull())


def _mentions(malformed: DataFrame) -> DataFrame:
    mentioned = malformed.select("side", "path", "line", F.explode("mentions").alias("msg_id"))
    hexadecimal = F.col("msg_id").rlike("^[0-9A-Fa-f]+$")
    msg_id = F.when(hexadecimal, F.upper("msg_id")).otherwise(F.col("msg_id"))
    return mentioned.withColumn("msg_id", msg_id).withColumn("kind", F.lit(MENTION))


def fill_groups(rows: DataFrame) -> DataFrame:
    """Give a native ``after`` half without a group the one of its ``before`` half.

    The cloud access channel writes no group into SubAfter; the request id they share says whose it was.
    """
    call = Window.partitionBy("k", "side", "kind", "attempt_id")
    known = F.when(F.col("attempt_id").isNotNull(), F.min("group_name").over(call))
    return rows.withColumn("group_name", F.coalesce("group_name", known))


def has_full_key() -> Column:
    """Say whether a row carries what tells this event from every other of its message."""
    return (
        F.when(_is(Kind.PUBLISH), F.col("offset_msg_id").isNotNull())
        .when(_is(Kind.CONSUME), F.col("group_name").isNotNull() & F.col("attempt_id").isNotNull())
        .otherwise(F.lit(False))
    )


def identified(rows: DataFrame) -> DataFrame:
    """Add ``ident``, equal on both sides for one event of one message, and ``full_key``.

    publish: the offset id, else the start. consume: group and attempt. transaction_end: transaction, state, check and
    start (a broker may check, and so end, one transaction again and again). recall: topic and start (a second recall
    of one message is another event). Spans of writers that know none of this are only like themselves; the weak keys
    of ``pair`` are for them.
    """
    itself = F.coalesce(F.concat("trace_id", "span_id"), F.col("raw_hash").cast("string"), F.col("k"))
    own = F.concat_ws("/", F.lit("own"), "side", itself)
    shares_start = (F.col("side") == "native") | (F.col("writer") == "mqtrace")
    publish = F.when(F.col("offset_msg_id").isNotNull(), F.concat(F.lit("offset/"), "offset_msg_id")).when(
        shares_start, _joined("start", "start_ms")
    )
    consume = F.when(F.col("attempt_id").isNotNull(), _joined("attempt", "group_name", "attempt_id"))
    ended = F.when(
        shares_start,
        _joined("end", "transaction_id", "transaction_state", "from_transaction_check", "start_ms"),
    )
    ident = (
        F.when(_is(Kind.PUBLISH), publish)
        .when(_is(Kind.CONSUME), consume)
        .when(_is(Kind.TRANSACTION_END), ended)
        .when(_is(Kind.RECALL) & shares_start, _joined("recall", "topic", "start_ms"))
        .when(F.col("kind") == MENTION, F.col("side"))
    )
    return rows.withColumn("full_key", has_full_key()).withColumn("ident", F.coalesce(ident, own))


def _is(kind: Kind) -> Column:
    return F.col("kind") == kind.value


def _joined(prefix: str, *names: str) -> Column:
    parts = [F.coalesce(F.col(name).cast("string"), F.lit("")) for name in names]
    return F.concat_ws("/", F.lit(prefix), *parts)
