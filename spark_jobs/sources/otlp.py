"""This module knows OTLP files and topics as a frame of spans, or of what is made of them in the same task.

Everything between bytes and rows happens in the executors, as Arrow batches; the files must be visible there. A large
file of JSON lines is read in ranges, any other by one task: its layout has no line to split at. Messages of a Kafka
topic are told from their bytes one by one, JSON or protobuf, as a Collector writes either.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation

from otel_mqtrace._errors import UsageError
from spark_jobs.sources.counted import counted, without_ledger
from spark_jobs.sources.detect import OTLP_FORMATS, Layout, Side
from spark_jobs.sources.files import source_files
from spark_jobs.sources.kafka.address import apart
from spark_jobs.sources.kafka.messages import LAYOUT, message_place, read_topics
from spark_jobs.sources.pieces import pieces_of, tasks_of, torn_bytes
from spark_jobs.sources.read_batches import Into
from spark_jobs.sources.reading import batches_of_messages, batches_of_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.sources.files import SourceFile
    from spark_jobs.sources.kafka.messages import TopicSource
    from spark_jobs.sources.kafka.offsets import PartitionRange
    from spark_jobs.sources.pieces import Piece

__all__ = ["OtlpSource", "read_spans", "span_files", "spans_of_messages"]

_NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})
_SPANS: Final = Into()


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSource:
    """Spans to normalise, or what was made of them.

    ``frame`` is ``READ_SPAN``, or what ``read_spans`` was told to read them into. ``counts`` are observations, one for
    the files and one for the topics, filled when the frame is run, that add up: ``records`` (spans, and lines or frames
    that held none), told by the bytes of each message (``witness``) and not by the spans taken out of it, and
    ``tails``: files cut off inside a frame. ``truncated_tails`` counts those cut off inside a line of JSON.
    ``files`` names the topics too; ``topics`` is ``None`` where there are none.
    """

    frame: DataFrame
    counts: tuple[Observation, ...]
    files: tuple[str, ...]
    layouts: tuple[str, ...]
    truncated_tails: int
    topics: TopicSource | None = None


def read_spans(  # noqa: PLR0913 - what to read, how, and into what
    spark: SparkSession,
    srcs: Sequence[str],
    *,
    layout: str | None = None,
    client_config: Mapping[str, str] = _NO_CONFIG,
    ranges: Sequence[PartitionRange] | None = None,
    into: Into = _SPANS,
) -> OtlpSource:
    """Return the spans behind ``srcs``; only the heads and ends of files and topics are read yet.

    ``ranges`` are the offsets to read of the topics, in place of all that they hold now; ``into`` says what the
    executors go on to make of the spans.

    Raises:
        UsageError: a source names nothing, or there is no such layout.
        UnreadableInputError: a source holds no OTLP traces.
        PeerError: the broker of a topic does not answer, or has no such topic.
    """
    paths, addresses = apart(srcs)
    files = span_files(paths, layout=layout)
    full = [file for file in files if file.layout is not Layout.EMPTY]
    torn = torn_bytes(full)
    files_count, messages_count = Observation("otlp-files"), Observation("otlp-messages")
    parts: list[tuple[DataFrame, Observation]] = []
    if full:
        pieces = [piece for file in full for piece in pieces_of(file, torn=torn.get(file.path, 0))]
        parts.append((_spans_of_files(spark, pieces, files_count, into), files_count))
    topics = read_topics(spark, addresses, client_config, ranges=ranges) if addresses else None
    if topics is not None:
        parts.append((spans_of_messages(topics.frame, messages_count, into), messages_count))
    frames = [frame for frame, _ in parts] or [without_ledger(spark.createDataFrame([], into.schema))]
    layouts = {file.layout.value for file in full}
    return OtlpSource(
        frame=reduce(lambda left, right: left.unionByName(right), frames),
        counts=tuple(count for _, count in parts),
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


def _spans_of_files(spark: SparkSession, pieces: Sequence[Piece], count: Observation, into: Into) -> DataFrame:
    tasks = tasks_of(pieces)
    one_each = spark.range(0, len(tasks), 1, len(tasks))
    return counted(one_each.mapInArrow(partial(batches_of_tasks, tasks, into), into.schema), count)


def spans_of_messages(messages: DataFrame, count: Observation, into: Into = _SPANS) -> DataFrame:
    """Return the spans in messages of topics (``kafka.messages.MESSAGE``); see ``OtlpSource`` and ``read_spans``."""
    placed = messages.select(message_place().alias("path"), "value")
    return counted(placed.mapInArrow(partial(batches_of_messages, into), into.schema), count)
