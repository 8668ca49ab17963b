"""This module knows native landings and trace topics as a frame of bodies: parquet, JSON lines, Kafka, in any mixture.

A JSON line is anything with ``body_base64``; the fields of a landing (``source, partition, offset, arrival_ms``) and
those of a dump of a RocketMQ topic (``topic, queue_id, queue_offset, store_ms``) are read alike.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from spark_jobs.evidence import bad
from spark_jobs.sources.detect import Layout, Side
from spark_jobs.sources.files import source_files, spark_path
from spark_jobs.sources.kafka.address import apart
from spark_jobs.sources.kafka.messages import LAYOUT, message_place, read_topics
from spark_jobs.sources.lines import read_lines, source_path, torn_tails, without_tails
from spark_jobs.spark_schemas import NATIVE_BODY, READ_BODY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import Column, DataFrame, SparkSession

    from spark_jobs.sources.kafka.messages import TopicSource
    from spark_jobs.sources.kafka.offsets import PartitionRange

__all__ = ["NativeSource", "bodies_of", "read_bodies"]

_NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})

_LINE_FIELDS: Final = (
    *("source", "topic", "partition", "queue_id", "offset", "queue_offset", "arrival_ms", "store_ms"),
    *("keys", "body_base64"),
)
_LINE: Final = StructType([StructField(name, StringType()) for name in _LINE_FIELDS])


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSource:
    """Bodies to normalise. ``frame`` is ``READ_BODY``; ``truncated_tails`` counts files cut off inside a line.

    ``files`` names the topics too; ``topics`` is ``None`` where there are none.
    """

    frame: DataFrame
    files: tuple[str, ...]
    layouts: tuple[str, ...]
    truncated_tails: int
    topics: TopicSource | None = None


def read_bodies(
    spark: SparkSession,
    srcs: Sequence[str],
    *,
    client_config: Mapping[str, str] = _NO_CONFIG,
    ranges: Sequence[PartitionRange] | None = None,
) -> NativeSource:
    """Return the bodies behind ``srcs``; nothing is read yet but the heads and ends of files and topics.

    ``ranges`` are the offsets to read of the topics, in place of all that they hold now.

    Raises:
        UsageError: a source names nothing.
        UnreadableInputError: a source is no native landing.
        PeerError: the broker of a topic does not answer, or has no such topic.
    """
    paths, addresses = apart(srcs)
    files = source_files(paths, Side.NATIVE)
    parquet = [file.path for file in files if file.layout is Layout.LANDING_PARQUET]
    jsonl = [file.path for file in files if file.layout is Layout.LANDING_JSONL]
    torn = {path: tail for path, tail in torn_tails(jsonl).items() if not _is_object(tail)}
    topics = read_topics(spark, addresses, client_config, ranges=ranges) if addresses else None
    parts = [_from_parquet(spark, parquet)] if parquet else []
    if jsonl:
        parts.append(_from_lines(without_tails(read_lines(spark, jsonl), torn)))
    if topics is not None:
        parts.append(bodies_of(topics.frame))
    frame = (
        reduce(lambda left, right: left.unionByName(right), parts) if parts else spark.createDataFrame([], READ_BODY)
    )
    layouts = {file.layout.value for file in files if file.layout is not Layout.EMPTY}
    return NativeSource(
        frame=frame,
        files=(*(str(file.path) for file in files), *map(str, addresses)),
        layouts=tuple(sorted(layouts | ({LAYOUT} if addresses else set()))),
        truncated_tails=len(torn),
        topics=topics,
    )


def bodies_of(messages: DataFrame) -> DataFrame:
    """Return the messages of trace topics (``kafka.messages.MESSAGE``) as ``READ_BODY``; one without a value is bad."""
    reason = F.when(F.col("value").isNull(), bad("body", "no body (a tombstone)", F.lit("")))
    columns = {
        **{name: F.col(name) for name in ("partition", "offset", "arrival_ms", "keys")},
        "source": F.col("topic"),
        "body": F.col("value"),
        "path": message_place(),
        "line": F.lit(None).cast("bigint"),
        "bad": reason,
    }
    return messages.select(*(columns[name].alias(name) for name in READ_BODY.names))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _from_parquet(spark: SparkSession, paths: Sequence[Path]) -> DataFrame:
    rows = spark.read.schema(_PARQUET).parquet(*(spark_path(path) for path in paths))
    place = (source_path().alias("path"), (F.col("_metadata.row_index") + 1).alias("line"))
    reason = F.when(F.col("body").isNull(), bad("body", "no body", F.lit("")))
    return rows.select(*_PARQUET.names, *place, reason.alias("bad")).select(*READ_BODY.names)


_PARQUET: Final = StructType([field for field in NATIVE_BODY.fields if field.name not in {"path", "line"}])


def _from_lines(lines: DataFrame) -> DataFrame:
    parsed = lines.withColumn("f", F.from_json("text", _LINE, {"mode": "PERMISSIVE"}))
    body = F.try_to_binary("f.body_base64", F.lit("base64"))
    text = F.make_valid_utf8("text")
    reason = F.when(F.col("f.body_base64").isNull(), bad("body_base64", "no JSON object with body_base64", text)).when(
        body.isNull(),
        bad("body_base64", "not base64", F.col("f.body_base64")),
    )
    return parsed.select(
        F.coalesce("f.source", "f.topic").alias("source"),
        _number("int", "partition", "queue_id").alias("partition"),
        _number("bigint", "offset", "queue_offset").alias("offset"),
        _number("bigint", "arrival_ms", "store_ms").alias("arrival_ms"),
        F.col("f.keys").alias("keys"),
        body.alias("body"),
        "path",
        "line",
        reason.alias("bad"),
    )


def _number(kind: str, *names: str) -> Column:
    return F.coalesce(*(F.col(f"f.{name}").try_cast(kind) for name in names))
