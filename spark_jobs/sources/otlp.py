"""This module knows OTLP files and topics as a frame of spans, whatever their layout.

JSON lines, the layout of large files, stay inside Spark: text, ``from_json`` with a given schema (never inferred: a
``doubleValue`` is a number or a text), explode. Every other layout has no line for Spark to split at and goes through
the container reader in the executors, one task per file, as Arrow batches; the files must be visible there. Messages
of a Kafka topic are told from their bytes one by one, JSON or protobuf, as a Collector writes either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from otel_mqtrace._errors import UsageError
from spark_jobs.schemas import LEDGER, READ_SPAN
from spark_jobs.sources.detect import OTLP_FORMATS, Layout, Side
from spark_jobs.sources.files import source_files
from spark_jobs.sources.json_lines import spans_from_lines
from spark_jobs.sources.kafka.address import apart
from spark_jobs.sources.kafka.messages import LAYOUT, message_place, read_topics
from spark_jobs.sources.lines import read_lines, torn_tails, without_tails
from spark_jobs.sources.span_rows import message_span_batches, span_batches
from spark_jobs.sources.spans import parse_message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.sources.files import SourceFile
    from spark_jobs.sources.kafka.messages import TopicSource
    from spark_jobs.sources.kafka.offsets import PartitionRange

__all__ = ["OtlpSource", "read_spans", "span_files", "spans_of_messages"]

_NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})

_READ: Final = StructType([*READ_SPAN.fields, *LEDGER.fields])
_FILE: Final = StructType([StructField("path", StringType()), StructField("layout", StringType())])


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSource:
    """Spans to normalise.

    ``frame`` is ``READ_SPAN``. ``counts`` are observations, filled when the frame is run, that add up: ``records``
    (spans, and lines or frames that held none), told by the bytes of each message (``witness``) and not by the spans
    taken out of it, and, of containers, ``tails``: files cut off inside a line or frame. ``truncated_tails`` counts
    those of JSON lines.
    ``files`` names the topics too; ``topics`` is ``None`` where there are none.
    """

    frame: DataFrame
    counts: tuple[Observation, ...]
    files: tuple[str, ...]
    layouts: tuple[str, ...]
    truncated_tails: int
    topics: TopicSource | None = None


def read_spans(
    spark: SparkSession,
    srcs: Sequence[str],
    *,
    layout: str | None = None,
    client_config: Mapping[str, str] = _NO_CONFIG,
    ranges: Sequence[PartitionRange] | None = None,
) -> OtlpSource:
    """Return the spans behind ``srcs``; only the heads and ends of files and topics are read yet.

    ``ranges`` are the offsets to read of the topics, in place of all that they hold now.

    Raises:
        UsageError: a source names nothing, or there is no such layout.
        UnreadableInputError: a source holds no OTLP traces.
        PeerError: the broker of a topic does not answer, or has no such topic.
    """
    paths, addresses = apart(srcs)
    files = span_files(paths, layout=layout)
    lines = [file for file in files if file.layout is Layout.JSON_LINES]
    packed = [file for file in files if file.layout not in {Layout.JSON_LINES, Layout.EMPTY}]
    lines_counts = (Observation("otlp-lines"), Observation("otlp-line-spans"))
    files_count, messages_count = Observation("otlp-files"), Observation("otlp-messages")
    torn = {path: tail for path, tail in torn_tails([file.path for file in lines]).items() if _is_torn(tail)}
    parts: list[tuple[DataFrame, tuple[Observation, ...]]] = []
    if lines:
        text = without_tails(read_lines(spark, [file.path for file in lines]), torn)
        parts.append((spans_from_lines(text, lines_counts), lines_counts))
    if packed:
        parts.append((_from_containers(spark, packed, files_count), (files_count,)))
    topics = read_topics(spark, addresses, client_config, ranges=ranges) if addresses else None
    if topics is not None:
        parts.append((spans_of_messages(topics.frame, messages_count), (messages_count,)))
    frames = [frame for frame, _ in parts] or [spark.createDataFrame([], READ_SPAN)]
    layouts = {file.layout.value for file in files if file.layout is not Layout.EMPTY}
    return OtlpSource(
        frame=reduce(lambda left, right: left.unionByName(right), frames),
        counts=tuple(count for _, counts in parts for count in counts),
        files=(*(str(file.path) for file in files), *map(str, addresses)),
        layouts=tuple(sorted(layouts | ({LAYOUT} if addresses else set()))),
        truncated_tails=len(torn),
        topics=topics,
    )


def span_files(srcs: Sequence[str], *, layout: str | None = None) -> tuple[SourceFile, ...]:
    """Return the files behind ``srcs``, or raise what :func:`read_spans` would; this takes no Spark."""
    if layout is not None and layout not in OTLP_FORMATS:
        raise UsageError(f"unknown OTLP format {layout!r}; choose one of {', '.join(OTLP_FORMATS)}")
    return source_files(srcs, Side.OTLP, layout=None if layout is None else Layout(layout))


def _is_torn(tail: str) -> bool:
    return parse_message(tail.encode()) is None


def _from_containers(spark: SparkSession, files: Sequence[SourceFile], count: Observation) -> DataFrame:
    listed = spark.createDataFrame([(str(file.path), file.layout.value) for file in files], _FILE)
    spread = listed.repartition(len(files)) if len(files) > 1 else listed
    return _without_ledger(spread.mapInArrow(span_batches, _READ), count)


def spans_of_messages(messages: DataFrame, count: Observation) -> DataFrame:
    """Return the spans in messages of topics (``kafka.messages.MESSAGE``); ``count`` observes as in ``OtlpSource``."""
    placed = messages.select(message_place().alias("path"), "value")
    return _without_ledger(placed.mapInArrow(message_span_batches, _READ), count)


def _without_ledger(read: DataFrame, count: Observation) -> DataFrame:
    watched = read.observe(count, F.sum("due").alias("records"), F.sum("tails").alias("tails"))
    return watched.where(F.col("due").isNull()).select(*READ_SPAN.names)
