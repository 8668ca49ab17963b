"""This module knows the first two jobs of a run: each side's files → one parquet of canonical events, written once.

One Spark job per side. The input is parsed a single time: events and what could not be mapped leave together
(``NORMALISED``) and are told apart when read back. What was due is counted from the input alone, what each record
became is told by the task that wrote it, so that the balance of the run can really break.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from bridge.codec.native.charsets import check_charset
from bridge.codec.native.layout import check_message_type_map
from spark_jobs.jobs.event_files import WRITTEN, written_events
from spark_jobs.normalise.native import BODY_COLUMNS, native_batches
from spark_jobs.normalise.otlp import event_batches
from spark_jobs.sources.counted import counted
from spark_jobs.sources.detect import Side
from spark_jobs.sources.files import source_files, spark_path
from spark_jobs.sources.kafka.address import apart
from spark_jobs.sources.kafka.offsets import topic_ranges
from spark_jobs.sources.native import read_bodies
from spark_jobs.sources.otlp import read_spans, span_files
from spark_jobs.sources.read_batches import Into
from spark_jobs.spark_schemas import BAD, EVENT, NORMALISED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, Row, SparkSession

    from spark_jobs.sources.kafka.messages import TopicSource
    from spark_jobs.sources.kafka.offsets import PartitionRange
    from spark_jobs.sources.native import NativeSource
    from spark_jobs.sources.otlp import OtlpSource

__all__ = [
    "NormaliseOptions",
    "NormalisedSide",
    "check_inputs",
    "event_frames",
    "normalise_native",
    "normalise_otlp",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormaliseOptions:
    """How to read the two sides.

    Attributes:
        native_writer: what ``writer`` says on native events: ``mqtrace`` or ``rocketmq[-VERSION]``.
        msg_type_map: ordinals of message types, ``a`` or ``b`` (``bridge.codec.native.layout.MESSAGE_TYPE_MAPS``).
        charset: of native bodies; RocketMQ 4.x clients write in their JVM's own.
        otlp_format: a layout name (``spark_jobs.sources.detect.OTLP_FORMATS``) in place of detection.
        client_config: properties of the Kafka client, in librdkafka's words; they may hold passwords.
        ranges: the offsets to read of the topics among the sources, in place of all that they hold now.
        trace_topics: trace topics beside the default ones: sends to them are trace traffic, not the application's.
    """

    native_writer: str = "mqtrace"
    msg_type_map: str = "a"
    charset: str = "utf-8"
    otlp_format: str | None = None
    client_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    ranges: tuple[PartitionRange, ...] | None = None
    trace_topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalisedSide:
    """One side, normalised. ``records_read + exploded = rows of events + rows of malformed``.

    Attributes:
        events: ``EVENT``, read back from parquet under the work directory.
        malformed: ``MALFORMED``, likewise.
        records_read: native records or spans in the input, and lines or frames that held none. Native ones are
            counted in the text of a body, before it is split; spans by the bytes of each message
            (``sources.witness``), so that one which a parser drops is missed.
        exploded: rows made beyond one per record: batch ids, links, records glued together by a writer's bug.
        sources: the files read, in order.
        layouts: the distinct layouts found in them.
        truncated_tails: files whose last line or frame was cut off; what is lost in it is not counted as read.
        last_event_ms: the latest start or end of any event, epoch milliseconds; times after the year 9999 are a
            writer's junk and tell nothing about how far the data reaches.
        offsets: of each partition of the topics among the sources, what was read.
        offsets_without_message: offsets read at which there was no message: compacted away, a transaction's marker, or
            removed by retention meanwhile.
        by_place: events that know their message by its place in a Kafka topic only; ``None`` where nobody counted.
        trace_topics: the distinct topics the native side was landed from.
        files: the parquet files that hold ``events`` and ``malformed``; ``None`` where they are not in files.
        scoped_topics: spans of these topics are out of scope in ``events``, whatever the files say.
    """

    events: DataFrame
    malformed: DataFrame
    records_read: int
    exploded: int
    sources: tuple[str, ...]
    layouts: tuple[str, ...]
    truncated_tails: int
    last_event_ms: int | None
    offsets: tuple[PartitionRange, ...] = ()
    offsets_without_message: int = 0
    by_place: int | None = None
    trace_topics: tuple[str, ...] = ()
    files: tuple[str, ...] | None = None
    scoped_topics: tuple[str, ...] = ()


_DEFAULTS: Final = NormaliseOptions()


def check_inputs(native: Sequence[str], otlp: Sequence[str], options: NormaliseOptions) -> None:
    """Look at both sides' sources and at the options without Spark, so that what is wrong is told in the first seconds.

    Raises:
        UsageError: a source names nothing, or an option is wrong.
        UnreadableInputError: a file is not what it was given for.
        PeerError: the broker of a topic does not answer, or has no such topic.
    """
    check_charset(options.charset)
    check_message_type_map(options.msg_type_map)
    (native_files, native_topics), (otlp_files, otlp_topics) = apart(native), apart(otlp)
    source_files(native_files, Side.NATIVE)
    span_files(otlp_files, layout=options.otlp_format)
    for address in (*native_topics, *otlp_topics):
        topic_ranges(address, options.client_config)


def normalise_native(
    spark: SparkSession,
    srcs: Sequence[str],
    workdir: Path,
    *,
    options: NormaliseOptions = _DEFAULTS,
) -> NormalisedSide:
    """Read native landings or corpus files and write their events under ``workdir / "native"``.

    Raises:
        UsageError: a source names nothing, or an option is wrong.
        UnreadableInputError: a file is neither a landing nor JSON lines with ``body_base64``.
        PeerError: the broker of a topic does not answer, or has no such topic.
    """
    check_charset(options.charset)
    check_message_type_map(options.msg_type_map)
    directory = _emptied(workdir / "native")
    source = read_bodies(spark, srcs, client_config=options.client_config, ranges=options.ranges)
    topics, count = Observation("native-topics"), Observation("native-records")
    bodies = source.frame.observe(topics, F.collect_set("source").alias("topics")).select(*BODY_COLUMNS)
    made = partial(
        native_batches,
        writer=options.native_writer,
        msg_type_map=options.msg_type_map,
        charset=options.charset,
    )
    written = counted(bodies.mapInArrow(partial(written_events(directory, made), "bodies"), WRITTEN), count)
    side = _opened(spark, directory, source, written.collect(), counts=(count,))
    return replace(side, trace_topics=tuple(sorted(topics.get["topics"] or ())))


def normalise_otlp(
    spark: SparkSession,
    srcs: Sequence[str],
    workdir: Path,
    *,
    options: NormaliseOptions = _DEFAULTS,
) -> NormalisedSide:
    """Read OTLP files of any layout and write their events under ``workdir / "otlp"``.

    Raises:
        UsageError: a source names nothing, or an option is wrong.
        UnreadableInputError: a file holds no OTLP traces in any layout known.
        PeerError: the broker of a topic does not answer, or has no such topic.
    """
    directory = _emptied(workdir / "otlp")
    made = partial(event_batches, trace_topics=tuple(options.trace_topics))
    source = read_spans(
        spark,
        srcs,
        layout=options.otlp_format,
        client_config=options.client_config,
        ranges=options.ranges,
        into=Into(WRITTEN, written_events(directory, made)),
    )
    return _opened(spark, directory, source, source.frame.collect(), counts=source.counts)


def _emptied(directory: Path) -> Path:
    """Return where the tasks of a side write, without what a run that was killed left there."""
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    return directory.absolute()


def _opened(
    spark: SparkSession,
    directory: Path,
    source: NativeSource | OtlpSource,
    tasks: Sequence[Row],
    *,
    counts: Sequence[Observation],
) -> NormalisedSide:
    """Open what the job of a side wrote: ``tasks`` is what they told of it (``WRITTEN``), ``counts`` what was due."""
    events, malformed = event_frames(spark, directory)
    return NormalisedSide(
        events=events,
        malformed=malformed,
        records_read=sum(count.get["records"] or 0 for count in counts),
        exploded=sum(task["extra"] for task in tasks),
        sources=source.files,
        layouts=source.layouts,
        truncated_tails=source.truncated_tails + sum(count.get["tails"] or 0 for count in counts),
        last_event_ms=max((task["last_ms"] for task in tasks if task["last_ms"] is not None), default=None),
        by_place=sum(task["by_place"] for task in tasks),
        files=tuple(sorted(map(str, directory.glob("*.parquet")))),
        offsets=() if source.topics is None else source.topics.ranges,
        offsets_without_message=_without_message(source.topics),
    )


def event_frames(spark: SparkSession, directory: Path) -> tuple[DataFrame, DataFrame]:
    """Return ``events`` and ``malformed`` of the :class:`NormalisedSide` that was written into ``directory``."""
    written = spark.read.schema(NORMALISED).parquet(spark_path(directory))
    good, evidence = F.col("bad").isNull(), [f"bad.{name}" for name in BAD.names]
    return (
        written.where(good).select(*EVENT.names),
        written.where(~good).select("side", "path", "line", "record_index", *evidence),
    )


def _without_message(topics: TopicSource | None) -> int:
    if topics is None:
        return 0
    return sum(one.end - one.first for one in topics.ranges) - int(topics.count.get["messages"] or 0)
