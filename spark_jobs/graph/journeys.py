"""This module knows what a message's other legs say about one leg: its topic, its sender, and what became of it.

One exchange (by message) and windows within it; a message with very many legs is spilled to disk, not held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from otel_mqtrace.model import MessageType, TransactionState
from spark_jobs.graph.owners import with_owner
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, DataFrame

__all__ = ["FATES", "journeys"]

FATES: Final = (
    "consumed",
    "failed",
    "rolled_back",
    "uncommitted",
    "recalled",
    "reply",
    "unidentified",
    "pending",
    "delayed",
    "never_consumed",
)
"""What became of a sent message, the first that applies: of none but ``never_consumed`` a delivery is missing."""

_REPLY_TOPIC: Final = "%\\_REPLY\\_TOPIC"  # LIKE; RocketMQ appends it to the cluster's name
_PUBLISH, _CONSUME = Kind.PUBLISH.value, Kind.CONSUME.value


def journeys(
    legs: DataFrame, owned: Mapping[tuple[str, str], str], *, opening_ms: int | None, horizon_ms: int | None
) -> DataFrame:
    """Return sends and deliveries with ``party``, ``topic``, ``sender``, ``first``, ``fate`` and ``origin``.

    ``party`` is the producer (its service, else its group) or the consumer group (else its service). ``topic`` is the
    business topic: a retry or dead-letter topic is folded into the one its message was sent to. ``first`` marks one
    leg per message, topic and party. ``fate`` (first sends, one of ``FATES``) says what became of the message,
    ``origin`` (first deliveries) whether its send is known: ``published``, ``never_published``, ``unidentified``, or
    ``unjudged`` near either end of the data.

    Args:
        legs: ``LEG``.
        owned: ``owners.read_owners`` of the same legs.
        opening_ms: deliveries before it may be of messages sent before the data begins; ``None``: none is judged.
        horizon_ms: what was sent or delivered after it may still be completed; ``None``: none is judged.
    """
    together = _with_party(with_owner(legs, owned)).repartition("message")
    known = together.withColumns(_of_message()).where(F.col("kind").isin(_PUBLISH, _CONSUME))
    placed = known.withColumn("topic", _topic())
    one = Window.partitionBy("message", "kind", "party", "topic").orderBy(
        *(~F.col("inside"), F.col("via").isNotNull(), F.col("event_ms").asc_nulls_last()),
        F.coalesce("retry_times", F.lit(0)),
    )
    numbered = placed.withColumn("first", (F.row_number().over(one) == 1) & _is_direct())
    return numbered.withColumns({"fate": _fate(horizon_ms), "origin": _origin(opening_ms, horizon_ms)})


def _with_party(legs: DataFrame) -> DataFrame:
    by_service, by_group = F.coalesce("service", "group"), F.coalesce("group", "service")
    return legs.withColumn("party", F.when(F.col("kind") == _PUBLISH, by_service).otherwise(by_group))


def _of_message() -> dict[str, Column]:
    message = Window.partitionBy("message")

    def some(condition: Column) -> Column:
        return F.coalesce(F.max(F.when(condition, F.lit(True))).over(message), F.lit(False))

    publish = F.col("kind") == _PUBLISH
    state = F.col("transaction_state")
    return {
        "base_topic": F.min(F.when(publish & F.col("via").isNull(), F.col("bare_topic"))).over(message),
        "sender": F.min(F.when(publish & F.col("via").isNull(), F.col("party"))).over(message),
        "published": some(publish),
        "accepted": some(publish & F.coalesce("success", F.lit(True))),
        "consumed": some(F.col("kind") == _CONSUME),
        "half": some(F.col("msg_type") == MessageType.TRANS_HALF.value),
        "delayed": some(F.col("msg_type") == MessageType.DELAY.value),
        "recalled": some(F.col("kind") == Kind.RECALL.value),
        "committed": some(state == TransactionState.COMMIT_MESSAGE.value),
        "rolled_back": some(state == TransactionState.ROLLBACK_MESSAGE.value),
    }


def _topic() -> Column:
    folded = F.concat(F.lit("%"), "via", F.lit("%"), "bare_topic")
    return F.when(F.col("via").isNull(), F.col("bare_topic")).otherwise(F.coalesce("base_topic", folded))


def _is_direct() -> Column:
    """Say whether a leg counts its message: a copy that came back over a retry topic is no message more."""
    return (F.col("kind") == _CONSUME) | F.col("via").isNull()


def _fate(horizon_ms: int | None) -> Column:
    reply = F.coalesce(F.col("topic").like(_REPLY_TOPIC), F.lit(False))
    conditions = {
        "consumed": F.col("consumed"),
        "failed": ~F.col("accepted"),
        "rolled_back": F.col("rolled_back") & ~F.col("committed"),
        "uncommitted": F.col("half") & ~F.col("committed"),
        "recalled": F.col("recalled"),
        "reply": reply,
        "unidentified": ~F.col("identified"),
        "pending": ~_before(horizon_ms),
        "delayed": F.col("delayed"),
    }
    chain = F.when(F.lit(False), F.lit(None))
    for fate, condition in conditions.items():
        chain = chain.when(condition, F.lit(fate))
    return F.when(F.col("first") & (F.col("kind") == _PUBLISH), chain.otherwise(F.lit("never_consumed")))


def _origin(opening_ms: int | None, horizon_ms: int | None) -> Column:
    after = F.lit(False) if opening_ms is None else F.coalesce(F.col("event_ms") >= opening_ms, F.lit(False))
    chain = (
        F.when(F.col("published"), F.lit("published"))
        .when(~F.col("identified"), F.lit("unidentified"))
        .when(~after | ~_before(horizon_ms), F.lit("unjudged"))
        .otherwise(F.lit("never_published"))
    )
    return F.when(F.col("first") & (F.col("kind") == _CONSUME), chain)


def _before(horizon_ms: int | None) -> Column:
    return F.lit(False) if horizon_ms is None else F.coalesce(F.col("event_ms") <= horizon_ms, F.lit(False))
