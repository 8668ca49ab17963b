"""Read OTLP in a task: pieces of files or messages in, batches of spans out."""

from __future__ import annotations

from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.otlp.containers import NOT_TRACES, Bad, Message, read_messages
from bridge.otlp.detect import Layout
from bridge.otlp.spans import parse_message
from spark_jobs.sources.json_lines import json_batches, line_items
from spark_jobs.sources.pieces import Line, Piece, lines_of
from spark_jobs.sources.read_batches import Books, grouped
from spark_jobs.sources.span_rows import item_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from bridge.otlp.containers import Item

__all__ = ["message_batches", "piece_batches"]

_MESSAGE_SAMPLE: Final = 64 << 10  # enough for the message ids in it
_NO_VALUE: Final = "no value (a tombstone)"


def piece_batches(pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
    """Yield the spans in ``pieces`` as batches of ``SPANS``, and at last one with the books of all."""
    books = Books()
    read = (
        json_batches(chain.from_iterable(map(lines_of, some)), line_items, books)
        if of_lines
        else item_batches(chain.from_iterable(map(_items, some)), books)
        for of_lines, some in groupby(pieces, key=lambda piece: piece.layout is Layout.JSON_LINES)
    )
    yield from grouped(chain.from_iterable(read))
    yield books.batch()


def _items(piece: Piece) -> Iterator[tuple[str, int | None, Item]]:
    for item in read_messages(Path(piece.path), piece.layout, parse=parse_message):
        yield piece.path, item.ordinal, item


def message_batches(messages: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the spans in ``messages`` as batches of ``SPANS``, and at last one with the books of all."""
    books = Books()
    read = (
        json_batches((Line(path, None, value or b"") for path, value in some), _line_items, books)
        if in_json
        else item_batches(((path, None, item) for path, value in some for item in _message_items(value)), books)
        for in_json, some in groupby(_values(messages), key=lambda one: (one[1] or b"").startswith(b"{"))
    )
    yield from grouped(chain.from_iterable(read))
    yield books.batch()


def _values(messages: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, bytes | None]]:
    for batch in messages:
        for path, value in zip(batch.column("path"), batch.column("value"), strict=True):
            yield path.as_py(), value.as_py()


def _line_items(line: Line) -> Iterator[Item]:
    yield from _message_items(line.text)


def _message_items(value: bytes | None) -> Iterator[Item]:
    content = None if value is None else parse_message(value)
    if value is None:
        yield Bad(1, _NO_VALUE, b"")
    elif content is None:
        yield Bad(1, NOT_TRACES, value[:_MESSAGE_SAMPLE])
    else:
        yield Message(1, content, value)
