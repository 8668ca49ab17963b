"""Read files of OTLP, or messages of a topic, as batches of spans."""

from __future__ import annotations

from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.otlp.containers import NOT_TRACES, Bad, Message, Tail, count_torn_bytes, read_messages, split_line
from bridge.otlp.detect import Layout
from bridge.otlp.spans import count_expected_spans, is_proto, parse_json, parse_message, spans_of
from bridge.storage.paths import as_path
from spark_jobs.columns import make_batch, take_groups
from spark_jobs.schemas import SPAN, bad_piece
from spark_jobs.sources.otlp_json import read_json
from spark_jobs.sources.span_batches import join_small, row_batches, span_row
from spark_jobs.sources.splits import Line, plan_files, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from bridge.otlp.containers import Item, Parse
    from spark_jobs.schemas import InputCounts
    from spark_jobs.sources.files import SourceFile
    from spark_jobs.sources.span_batches import SpanColumns
    from spark_jobs.sources.splits import FilePlan, Split

    _Item = tuple[str, int | None, Item]  # path, line and what was found there


def plan_spans(files: Sequence[SourceFile], *, parallelism: int) -> FilePlan:
    """Return what each task reads of OTLP files; only the ends of files are read."""
    return plan_files(files, partial(count_torn_bytes, parse=parse_json), parallelism=parallelism)


_MESSAGE_SAMPLE: Final = 64 << 10  # enough for the message ids in it
_NO_VALUE: Final = "no value (a tombstone)"
_MOST_BYTES: Final = 8 << 20
"""A block of messages. In blocks half as large a span takes 4 % longer; a worker holds 20 MiB less."""
_LEAST_BYTES: Final = 256 << 10
"""A part of a block that holds odd messages: one such message costs so much of the fast way, and no more."""
_BLANKS: Final = b" \t\r\n"  # of JSON, which are fewer than those of Python


def split_batches(splits: Iterable[Split], counts: InputCounts) -> Iterator[pa.RecordBatch]:
    """Yield the spans in ``splits`` as batches of ``SPAN``; what was read is added to ``counts``."""
    yield from join_small(_read_splits(splits, counts))


def _read_splits(splits: Iterable[Split], counts: InputCounts) -> Iterator[pa.RecordBatch]:
    for layout, some in groupby(splits, key=lambda split: split.layout):
        if layout is Layout.JSON_LINES:
            yield from block_batches(chain.from_iterable(map(read_lines, some)), read_json_block, line_items, counts)
        else:  # in lines, an odd message may be several, glued together
            is_lines = layout is Layout.JSON_LINES_ZSTD
            items_of = partial(line_items, parse=parse_message) if is_lines else _message_items
            yield from item_batches(chain.from_iterable(map(_items, some)), counts, items_of)


def message_batches(messages: Iterable[pa.RecordBatch], counts: InputCounts) -> Iterator[pa.RecordBatch]:
    """Yield the spans in ``messages`` (``path``, ``value``) as ``split_batches`` yields those of files."""
    values = ((path.as_py(), value.as_py()) for batch in messages for path, value in zip(*batch.columns, strict=True))
    items = ((path, None, item) for path, value in values for item in _value_items(value, _parse_odd_message))
    yield from join_small(item_batches(items, counts))


def _items(split: Split) -> Iterator[_Item]:
    parse = _parse_cut_line if split.layout is Layout.JSON_LINES_ZSTD else parse_message
    for item in read_messages(as_path(split.path), split.layout, parse=parse, parse_whole=_parse_odd_message):
        yield split.path, item.ordinal, item


def _parse_cut_line(line: bytes) -> list[Any] | None:
    """Parse a line that may be cut; a whole one is parsed with others, as a block."""
    return [] if line.endswith(b"\n") else parse_message(line)


def _parse_odd_message(message: bytes) -> list[Any] | None:
    """Parse a message; JSON of one line is parsed with others, as a block."""
    return [] if message.startswith(b"{") and _is_one_line(message) else parse_message(message)


def _is_one_line(message: bytes) -> bool:
    return b"\n" not in message.rstrip(_BLANKS)


def read_json_block(block: list[Line]) -> SpanColumns | None:
    """Return the spans of lines of JSON, ``None`` when not all of them are ordinary."""
    return read_json([line.text.strip(_BLANKS) for line in block])


def line_items(line: Line, parse: Parse = parse_json) -> Iterator[Item]:
    """Yield what stands in one line of a file."""
    content = parse(line.text)
    if content is None:
        yield from split_line(1, line.text, parse)
    else:
        yield Message(1, content, line.text)


def _message_items(line: Line) -> Iterator[Item]:
    yield from _value_items(line.text)


def _value_items(value: bytes | None, parse: Parse = parse_message) -> Iterator[Item]:
    content = None if value is None else parse(value)
    if value is None:
        yield Bad(1, _NO_VALUE, b"")
    elif content is None:
        yield Bad(1, NOT_TRACES, value[:_MESSAGE_SAMPLE])
    else:
        yield Message(1, content, value)


def item_batches(
    items: Iterable[_Item], counts: InputCounts, items_of: Callable[[Line], Iterator[Item]] = _message_items
) -> Iterator[pa.RecordBatch]:
    """Yield what stands in ``items`` as batches of ``SPAN``, in order; messages of one kind as blocks.

    ``items_of`` reads an odd message, as in :func:`block_batches`.
    """
    for read, some in groupby(items, key=_block_reader):
        if read is not None:
            lines = (Line(path, line, item.payload) for path, line, item in some if isinstance(item, Message))
            yield from block_batches(lines, read, items_of, counts)
        else:
            yield from row_batches(row for path, line, item in some for row in _rows(path, line, item, counts))


def _block_reader(placed: _Item) -> Callable[[list[Line]], SpanColumns | None] | None:
    """Return what reads a block of messages like this; ``None`` for what is read alone."""
    item = placed[-1]
    if not isinstance(item, Message):
        return None
    if is_proto(item.content):
        return _read_protobuf_block
    return read_json_block if _is_one_line(item.payload) else None


def _read_protobuf_block(block: list[Line]) -> SpanColumns | None:
    from spark_jobs.sources.otlp_protobuf import read_protobuf  # noqa: PLC0415  (JSON needs no protobuf)

    return read_protobuf([line.text for line in block])


def _rows(path: str, line: int | None, item: Item, counts: InputCounts) -> Iterator[dict[str, Any]]:
    place = {"path": path, "line": line}
    if isinstance(item, Tail):
        counts.tails += 1
    elif isinstance(item, Message):
        counts.expected += count_expected_spans(item.payload, item.content)
        yield from ({**span_row(span), **place} for span in spans_of(item.content))
    else:
        counts.expected += 1
        yield {**place, "bad": bad_piece(None, item.reason, item.sample.decode("utf-8", errors="replace"))}


def block_batches(
    lines: Iterable[Line],
    read: Callable[[list[Line]], SpanColumns | None],
    items_of: Callable[[Line], Iterator[Item]],
    counts: InputCounts,
) -> Iterator[pa.RecordBatch]:
    """Yield the spans in ``lines``, one message each, as batches of ``SPAN``, in order.

    A block that ``read`` declines is read again in small ones. ``items_of`` reads the messages of those that it still
    declines, one by one: an odd message costs its neighbours little.
    """
    for block in _blocks(lines, _MOST_BYTES):
        found = read(block)
        parts = [(block, found)] if found is not None else ((some, read(some)) for some in _blocks(block, _LEAST_BYTES))
        for some, columns in parts:
            if columns is not None:
                counts.expected += columns.expected
                yield _add_places(columns, some)
            else:
                items = ((line.path, line.number, item) for line in some for item in items_of(line))
                yield from row_batches(row for path, line, item in items for row in _rows(path, line, item, counts))


def _blocks(lines: Iterable[Line], size: int) -> Iterator[list[Line]]:
    return take_groups(lines, lambda line: (0, len(line.text)), size=size)


def _add_places(found: SpanColumns, block: list[Line]) -> pa.RecordBatch:
    paths = pa.array([line.path for line in block], pa.string())
    numbers = pa.array([line.number for line in block], pa.int64())
    message = pa.array(found.messages, pa.int64())
    columns = {**found.columns, "path": paths.take(message), "line": numbers.take(message)}
    return make_batch(columns, len(message), SPAN)
