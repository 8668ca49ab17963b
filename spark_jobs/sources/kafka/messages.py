"""This module knows topics as a frame of messages, by Spark's connector or, where its jar is missing, by a client.

The offsets are fixed here, before Spark plans anything. Nothing moves between executors: each task reads its own range.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from spark_jobs.sources.kafka.connector import by_connector
from spark_jobs.sources.kafka.offsets import PartitionRange, chunks, topic_ranges
from spark_jobs.sources.kafka.reading import message_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_jobs.sources.kafka.address import TopicAddress

__all__ = ["LAYOUT", "MESSAGE", "TopicSource", "message_place", "read_topics"]

LAYOUT: Final = "kafka"
MESSAGE: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("arrival_ms", LongType()),  # the broker's timestamp; null where it has none
        StructField("keys", StringType()),  # the last header KEYS
        StructField("value", BinaryType()),  # null is a tombstone
    ]
)
"""One message of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """Messages to be taken apart: ``frame`` is ``MESSAGE``; ``ranges`` are all partitions, the empty ones too.

    ``count`` observes ``messages`` when the frame is run: fewer than the offsets where a log was compacted, where
    transactions left their markers, or where retention was faster than the reader.
    """

    frame: DataFrame
    ranges: tuple[PartitionRange, ...]
    count: Observation


def read_topics(
    spark: SparkSession,
    addresses: Sequence[TopicAddress],
    given: Mapping[str, str],
    *,
    ranges: Sequence[PartitionRange] | None = None,
) -> TopicSource:
    """Return the messages that the topics hold now; only their offsets have been asked yet.

    Args:
        spark: the session.
        addresses: the topics.
        given: further client properties, in librdkafka's words.
        ranges: what to read in place of all that the topics hold now.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
        UsageError: the client refuses a property.
        PeerError: a broker does not answer, or there is no such topic.
    """
    found = {
        address: topic_ranges(address, given) if ranges is None else [one for one in ranges if one.address == address]
        for address in addresses
    }
    parts = [
        _messages(spark, address, [one for one in held if one.first < one.end], given)
        for address, held in found.items()
    ]
    count = Observation("kafka-messages")
    frame = reduce(lambda left, right: left.unionByName(right), parts)
    return TopicSource(
        frame=frame.observe(count, F.count(F.lit(1)).alias("messages")),
        ranges=tuple(one for held in found.values() for one in held),
        count=count,
    )


def message_place() -> Column:
    """Return where a message stands, as ``topic-partition@offset``."""
    return F.concat("topic", F.lit("-"), "partition", F.lit("@"), "offset")


def _messages(
    spark: SparkSession, address: TopicAddress, ranges: Sequence[PartitionRange], given: Mapping[str, str]
) -> DataFrame:
    if not ranges:
        return spark.createDataFrame([], MESSAGE)
    tasks = chunks(ranges)
    connected = by_connector(spark, address, ranges, given, tasks=len(tasks))
    if connected is not None:
        return connected
    one_each = spark.range(0, len(tasks), 1, len(tasks))
    return one_each.mapInArrow(message_batches(tasks, given), MESSAGE)
