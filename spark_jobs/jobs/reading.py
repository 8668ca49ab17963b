"""Read each side's sources into parquet files of canonical events: one map of an engine per side.

Each input is parsed once: events and bad records are written together (``NORMALISED``). Expected records are
counted in the input, written ones in the task that wrote them: a lost record breaks the balance.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.otlp.detect import Side
from bridge.storage.paths import make_directory, remove_tree, write_atomically
from otel_mqtrace._clock import LAST_MS
from otel_mqtrace.wire.native.decode import check_charset
from otel_mqtrace.wire.native.layout import check_message_type_map
from spark_jobs.columns import pc, take_filled, where
from spark_jobs.exchange.packing import REPEATED
from spark_jobs.judging.columns import identified_by_offset
from spark_jobs.judging.facts import Survey, survey
from spark_jobs.normalise.native import native_batches
from spark_jobs.normalise.spans import event_batches
from spark_jobs.schemas import NORMALISED, InputCounts
from spark_jobs.sources.kafka import (
    PartitionRange,
    cut_ranges,
    message_batches,
    message_frame,
    message_places,
    topic_address,
)
from spark_jobs.sources.native import body_batches, message_bodies, plan_bodies
from spark_jobs.sources.otlp import message_batches as span_batches
from spark_jobs.sources.otlp import plan_spans, split_batches
from spark_jobs.sums import by, greatest, sum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from bridge.storage.paths import AnyPath
    from spark_jobs.columns import Column
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.sources.files import SourceSet
    from spark_jobs.sources.splits import Split

_GROUP_ROWS: Final = 32_768
_GROUP_BYTES: Final = 32 << 20
"""As many rows, or bytes, are held before they are written together."""


def write_events(path: str, batches: Iterable[pa.RecordBatch], read: EventSide | None = None) -> EventSide:
    """Write the rows of ``batches`` to ``path``, which is there when all of them are written, and return what they are.

    Args:
        path: where no other task writes; a task that is run again replaces its file.
        batches: ``READ_EVENT``.
        read: counts of the same task so far; the rest is added to them.
    """
    read = EventSide() if read is None else read
    with open_rows(path) as write:
        for rows in join_groups(map(partial(_count_events, read), batches)):
            read.survey = sum_of(Survey, [read.survey, survey(rows)])
            read.files = (path,)
            write(rows)
            del rows  # not held while the next ones are read
    return read


def _count_events(read: EventSide, batch: pa.RecordBatch) -> pa.Table:
    """Return ``NORMALISED`` of ``READ_EVENT``; add what only single rows show to ``read``."""
    read.exploded += pc.sum(batch.column("extra")).as_py() or 0
    rows = batch.select(NORMALISED.names)
    columns: dict[str, Column] = dict(zip(rows.schema.names, rows.columns, strict=True))
    read.by_place += int(identified_by_offset(columns).sum())
    times = (columns[name] for name in ("start_ms", "end_ms"))
    latest = (pc.max(where(pc.less_equal(some, LAST_MS), some)).as_py() for some in times)
    read.last_event_ms = greatest([read.last_event_ms, *latest])
    return pa.Table.from_batches([rows])


def join_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the same rows in tables that are worth a row group, none of them empty."""
    yield from map(pa.concat_tables, take_filled(tables, rows=_GROUP_ROWS, size=_GROUP_BYTES))


@contextmanager
def open_rows(path: str) -> Iterator[Callable[[pa.Table], None]]:
    """Give a function that adds a row group to a parquet file, which is there once the block ends, if it has any."""
    from pyarrow import parquet  # noqa: PLC0415  (only where something is written)

    with ExitStack() as stack:
        writer: Any = None

        def write(rows: pa.Table) -> None:
            nonlocal writer
            if writer is None and len(rows):
                unready = stack.enter_context(write_atomically(path))
                repeated: Any = _find_repeated(rows.schema)
                writer = stack.enter_context(
                    parquet.ParquetWriter(
                        unready, rows.schema, compression="zstd", write_statistics=False, use_dictionary=repeated
                    )
                )
            if len(rows):
                writer.write_table(rows, row_group_size=len(rows))

        yield write


_REPEATED: Final = frozenset(
    (*REPEATED, "group", "status", "reason", "reason_detail", "timing", "duplicates", "lifecycle", "key", "value")
)
"""Columns worth a dictionary in a file; ids and times gain nothing from one, and each takes a fifth longer."""


def _find_repeated(schema: pa.Schema) -> list[str]:
    names: list[str] = []
    for column in schema:
        if pa.types.is_struct(column.type):
            names += (f"{column.name}.{child.name}" for child in column.type)
        elif pa.types.is_map(column.type):
            names += (f"{column.name}.key_value.{part}" for part in ("key", "value"))
        else:
            names.append(column.name)
    return [name for name in names if name.rpartition(".")[2] in _REPEATED]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read the two sides.

    Attributes:
        native_writer: the ``writer`` of native events: ``mqtrace`` or ``rocketmq[-VERSION]``.
        native_writers: the same for some files, by path, and for some topics, by name.
        msg_type_map: ordinals of message types, ``a`` or ``b`` (``otel_mqtrace.wire.native.layout.MESSAGE_TYPE_MAPS``).
        charset: of native bodies; RocketMQ 4.x clients write in their JVM's own.
        otlp_format: a layout name (``bridge.otlp.detect.OTLP_FORMATS``) in place of detection.
        client_config: properties of the Kafka client in librdkafka's notation; they may hold passwords.
        trace_topics: trace topics beside the default ones: sends to them are trace traffic, not the application's.

    Raises:
        UsageError: the character set or the map is unknown.
    """

    native_writer: str = "mqtrace"
    native_writers: Mapping[str, str] = field(default_factory=dict)
    msg_type_map: str = "a"
    charset: str = "utf-8"
    otlp_format: str | None = None
    client_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    trace_topics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_charset(self.charset)
        check_message_type_map(self.msg_type_map)


@dataclass(slots=True, kw_only=True)
class EventSide:
    """One side, or what a task has read of it.

    ``records_read + exploded`` is the number of rows in ``files``: events and malformed ones.

    Attributes:
        files: parquet files of ``NORMALISED`` rows.
        records_read: native records or spans in the input, and lines or frames without any. Counted apart from the
            parsers, in the bytes of each body or message, so that a record that a parser drops is missed.
        exploded: rows made beyond one per record: batch ids, links, records glued together by a writer's bug.
        sources: the files and topics read, in order.
        layouts: the distinct layouts found in them.
        truncated_tails: files whose last line or frame was cut off; the lost rest is not counted as read.
        last_event_ms: the latest start or end of any event, epoch milliseconds up to the year 9999.
        offsets: the offsets read, by partition.
        offsets_without_message: offsets without a message: compacted, a transaction marker, or expired meanwhile. A
            task subtracts the messages that it read.
        by_place: events whose only message id is its position in a Kafka topic.
        trace_topics: the distinct topics the native side was landed from.
        survey: the side's part of the facts of the run.
    """

    files: tuple[str, ...] = ()
    records_read: int = 0
    exploded: int = 0
    sources: tuple[str, ...] = field(default=(), metadata=by(lambda parts: tuple(dict.fromkeys(chain(*parts)))))
    layouts: tuple[str, ...] = field(default=(), metadata=by(lambda parts: tuple(sorted({*chain(*parts)}))))
    truncated_tails: int = 0
    last_event_ms: int | None = field(default=None, metadata=by(greatest))
    offsets: tuple[PartitionRange, ...] = field(default=(), metadata=by(lambda parts: _join_offsets(chain(*parts))))
    offsets_without_message: int = 0
    by_place: int = 0
    trace_topics: tuple[str, ...] = field(default=(), metadata=by(lambda parts: tuple(sorted({*chain(*parts)}))))
    survey: Survey = field(default_factory=Survey)

    def to_plain(self) -> dict[str, Any]:
        """Return lists, dictionaries and scalars that JSON can hold."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        lists = {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
        offsets = [[one.address.servers, one.address.topic, one.partition, one.first, one.end] for one in self.offsets]
        return {**plain, **lists, "offsets": offsets, "survey": self.survey.to_plain()}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> EventSide:
        """Return what :meth:`to_plain` was called on."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
        }
        fields["offsets"] = tuple(
            PartitionRange(address=topic_address(servers, topic), partition=partition, first=first, end=end)
            for servers, topic, partition, first, end in plain["offsets"]
        )
        fields["survey"] = Survey.from_plain(plain["survey"])
        return cls(**fields)


def _join_offsets(ranges: Iterable[PartitionRange]) -> tuple[PartitionRange, ...]:
    """Return the range of each partition from its first to its last offset in any of ``ranges``."""
    found: dict[tuple[str, str, int], PartitionRange] = {}
    for one in ranges:
        key = (one.address.servers, one.address.topic, one.partition)
        known = found.get(key, one)
        found[key] = replace(known, first=min(known.first, one.first), end=max(known.end, one.end))
    return tuple(one for _, one in sorted(found.items(), key=itemgetter(0)))


_DEFAULTS: Final = ReadOptions()


def read_sides(  # noqa: PLR0913 - both sides, and how
    engine: Engine,
    native: SourceSet,
    otlp: SourceSet,
    work: AnyPath,
    *,
    options: ReadOptions,
    progress: Callable[[str], None],
) -> tuple[EventSide, EventSide]:
    """Read the inputs of both sides and write their events under ``work``: native, then OTLP; either may have none.

    Raises:
        UnreadableInputError, PeerError: as :func:`read_side`.
    """
    native_side = span_side = EventSide()
    if native:
        progress("reading the native trace")
        native_side = read_side(engine, Side.NATIVE, native, str(work / "native"), options=options)
        options = replace(options, trace_topics=native_side.trace_topics)
    if otlp:
        progress("reading the spans")
        span_side = read_side(engine, Side.OTLP, otlp, str(work / "otlp"), options=options)
    return native_side, span_side


def read_side(
    engine: Engine, side: Side, inputs: SourceSet, directory: str, *, options: ReadOptions = _DEFAULTS
) -> EventSide:
    """Read the inputs of a side, and write their events into ``directory``, emptied before.

    Raises:
        UnreadableInputError: a file is damaged, or holds something else.
        PeerError: the broker of a topic does not answer.
    """
    plan = plan_bodies if side is Side.NATIVE else plan_spans
    planned, how = plan(inputs.files, parallelism=engine.parallelism), _Reading(side, directory, options)
    remove_tree(directory)
    make_directory(directory)
    done, left = _read_connected(engine, how, inputs.topics.values())
    splits = [(f"files-{number:05d}", task) for number, task in enumerate(planned.tasks)]
    messages = [(f"topics-{number:05d}", one) for number, one in enumerate(cut_ranges(left))]
    done += engine.map(partial(_run_task, how), [*splits, *messages])
    read, ranges = sum_of(EventSide, done), tuple(chain.from_iterable(inputs.topics.values()))
    return replace(
        read,
        files=tuple(sorted(read.files)),
        sources=inputs.sources,
        layouts=inputs.layouts,
        truncated_tails=planned.truncated_tails + read.truncated_tails,
        offsets=ranges,
        offsets_without_message=read.offsets_without_message + sum(one.end - one.first for one in ranges),
    )


# -- in the driver --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Reading:
    """How the tasks of one side read, and where they write."""

    side: Side
    directory: str
    options: ReadOptions


def _read_connected(
    engine: Engine, how: _Reading, topics: Iterable[Sequence[PartitionRange]]
) -> tuple[list[EventSide], list[PartitionRange]]:
    """Read topics by Spark's connector where that can be; return also the ranges that are left to read."""
    spark: Any = engine
    done: list[EventSide] = []
    left: list[PartitionRange] = []
    for number, ranges in enumerate(topics):
        held = [one for one in ranges if one.first < one.end]
        frame = None
        if engine.name == "spark" and held:
            frame = message_frame(held, how.options.client_config, tasks=len(cut_ranges(held)))
        if frame is None:
            left += held
        else:
            done += spark.map_frame(partial(_run_connected, how, number), frame)
    return done, left


# -- in a task ------------------------------------------------------------------------------------------------------
def _run_task(how: _Reading, task: tuple[str, Sequence[Split] | PartitionRange]) -> EventSide:
    """Read splits of files, or a range of a topic; the task also names the file of its events."""
    name, given = task
    if isinstance(given, PartitionRange):
        return _run_messages(how, name, message_batches(given, how.options.client_config))
    counts = InputCounts()
    batches = body_batches(given) if how.side is Side.NATIVE else split_batches(given, counts)
    return _write(how, name, batches, EventSide(), counts)


def _run_messages(how: _Reading, name: str, messages: Iterable[pa.RecordBatch]) -> EventSide:
    read, counts = EventSide(), InputCounts()
    counted = _count_messages(messages, read)
    batches = message_bodies(counted) if how.side is Side.NATIVE else span_batches(map(_name_places, counted), counts)
    return _write(how, name, batches, read, counts)


def _write(
    how: _Reading, name: str, batches: Iterable[pa.RecordBatch], read: EventSide, counts: InputCounts
) -> EventSide:
    """Write bodies or spans as events; ``counts`` is complete once they are read."""
    options = how.options
    if how.side is Side.OTLP:
        events = event_batches(batches, trace_topics=options.trace_topics)
    else:
        events = native_batches(
            _note_topics(batches, read),
            counts,
            writer=options.native_writer,
            writers=options.native_writers,
            msg_type_map=options.msg_type_map,
            charset=options.charset,
        )
    write_events(f"{how.directory}/{name}.parquet", events, read)
    read.records_read, read.truncated_tails = counts.expected, counts.tails
    return read


def _run_connected(how: _Reading, number: int, messages: Iterator[pa.RecordBatch]) -> EventSide:
    """Read a partition of a frame; its file is named by the first message, which no other partition holds."""
    first = next((batch for batch in messages if batch.num_rows), None)
    if first is None:
        return EventSide()
    partition, offset = (first.column(name)[0].as_py() for name in ("partition", "offset"))
    return _run_messages(how, f"connector-{number:03d}-{partition:05d}-{offset:020d}", chain([first], messages))


def _count_messages(messages: Iterable[pa.RecordBatch], read: EventSide) -> Iterator[pa.RecordBatch]:
    for batch in messages:
        read.offsets_without_message -= batch.num_rows
        yield batch


def _name_places(messages: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([message_places(messages), messages.column("value")], names=["path", "value"])


def _note_topics(bodies: Iterable[pa.RecordBatch], read: EventSide) -> Iterator[pa.RecordBatch]:
    """Yield the bodies; add the topics that they were landed from to ``read``."""
    for batch in bodies:
        topics: list[Any] = pc.unique(batch.column("source")).drop_null().to_pylist()
        read.trace_topics = tuple(sorted({*read.trace_topics, *topics}))
        yield batch
