"""This module knows how OTLP is read inside a Spark executor: paths or messages in, Arrow batches of spans out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_jobs.mentions import mentioned_in
from spark_jobs.schemas import LEDGER
from spark_jobs.sources.containers import NOT_TRACES, Bad, Message, Tail, read_messages
from spark_jobs.sources.detect import Layout
from spark_jobs.sources.spans import parse_message, spans_due, spans_of
from spark_jobs.sources.texts import text_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_jobs.sources.containers import Item
    from spark_jobs.sources.plain_span import Span

__all__ = ["message_span_batches", "span_batches", "span_row"]

_BATCH_ROWS: Final = 2000
_LONG_MAX: Final = 2**63 - 1
_ATTRIBUTES: Final[Any] = pa.map_(pa.string(), pa.string())
_IDS: Final[dict[str, Any]] = {"trace_id": pa.string(), "span_id": pa.string()}
_LINK: Final[Any] = pa.struct({**_IDS, "flags": pa.int64(), "attributes": _ATTRIBUTES})
_EVIDENCE: Final[dict[str, Any]] = {
    "field": pa.string(),
    "reason": pa.string(),
    "text": pa.string(),
    "mentions": pa.list_(pa.string()),
}
_TEXTS_AND_NUMBERS: Final[dict[str, Any]] = {
    **_IDS,
    **dict.fromkeys(("parent_span_id", "name", "kind"), pa.string()),
    **dict.fromkeys(("start_ns", "end_ns"), pa.int64()),
    **dict.fromkeys(("status", "service", "scope"), pa.string()),
    "flags": pa.int64(),
}
_COUNTS: Final[dict[str, Any]] = dict.fromkeys(("dropped_attributes", "dropped_links"), pa.int64())
_SCHEMA: Final = pa.schema(
    {
        **_TEXTS_AND_NUMBERS,
        "attributes": _ATTRIBUTES,
        "links": pa.list_(_LINK),
        **_COUNTS,
        "path": pa.string(),
        "line": pa.int64(),
        "raw_hash": pa.int64(),
        "bad": pa.struct(_EVIDENCE),
        **dict.fromkeys(LEDGER.names, pa.int64()),
    },
)
_PLAIN: Final = (*_TEXTS_AND_NUMBERS, *_COUNTS)
_SAMPLE: Final = 200
_MESSAGE_SAMPLE: Final = 64 << 10  # enough for the message ids in it
_NO_VALUE: Final = "no value (a tombstone)"


def span_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read every file named in ``batches`` (columns ``path``, ``layout``) as batches of ``READ_SPAN`` and ``LEDGER``.

    A ledger row stands before the spans of each message and for each bad piece and cut-off tail: what is ``due``.
    """
    for batch in batches:
        for file in batch.to_pylist():
            yield from _batched(_rows(file["path"], Layout(file["layout"])))


def message_span_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read every message of ``batches`` (columns ``path``, its place, and ``value``) as :func:`span_batches` do."""
    for batch in batches:
        paths, values = batch.column("path"), batch.column("value")
        yield from _batched(
            row for at in range(batch.num_rows) for row in _message_rows(paths[at].as_py(), values[at].as_py())
        )


def _batched(rows: Iterator[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    some: list[dict[str, Any]] = []
    for row in rows:
        some.append(row)
        if len(some) >= _BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(some, schema=_SCHEMA)
            some = []
    if some:
        yield pa.RecordBatch.from_pylist(some, schema=_SCHEMA)


def _rows(path: str, layout: Layout) -> Iterator[dict[str, Any]]:
    for item in read_messages(Path(path), layout, parse=parse_message):
        yield from _item_rows(item, {"path": path, "line": item.ordinal})


def _message_rows(path: str, value: bytes | None) -> Iterator[dict[str, Any]]:
    yield from _item_rows(_message_item(value), {"path": path, "line": None})


def _message_item(value: bytes | None) -> Item:
    if value is None:
        return Bad(1, _NO_VALUE, b"")
    content = parse_message(value)
    return Bad(1, NOT_TRACES, value[:_MESSAGE_SAMPLE]) if content is None else Message(1, content, value)


def _item_rows(item: Item, place: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if isinstance(item, Message):
        yield {**place, "due": spans_due(item.payload, item.content), "tails": 0}
        yield from ({**span_row(span), **place} for span in spans_of(item.content))
    elif isinstance(item, Tail):
        yield {**place, "due": 0, "tails": 1}
    else:
        text = item.sample.decode("utf-8", errors="replace")
        yield {**place, "due": 1, "tails": 0}
        yield {**place, "bad": _bad(None, item.reason, text, within=text)}


def span_row(span: Span) -> dict[str, Any]:
    """Return a span as a row of ``schemas.READ_SPAN``, its place left out."""
    if span["bad"] is not None:
        name, reason, text = span["bad"]
        known = [span["attributes"], *(link["attributes"] for link in span["links"])]
        values = (value for attributes in known for value in text_attributes(attributes).values())
        return {"bad": _bad(name, reason, text, within="\n".join([text, *filter(None, values)]))}
    links = [{**link, "attributes": _items(link["attributes"])} for link in span["links"]]
    times = {name: min(span[name], _LONG_MAX) for name in ("start_ns", "end_ns")}
    plain = {name: span[name] for name in _PLAIN}
    return {**plain, **times, "attributes": _items(span["attributes"]), "links": links}


def _bad(name: str | None, reason: str, text: str, *, within: str) -> dict[str, Any]:
    return {"field": name, "reason": reason, "text": text[:_SAMPLE], "mentions": mentioned_in(within)}


def _items(attributes: dict[str, Any]) -> list[tuple[str, str | None]]:
    return list(text_attributes(attributes).items())
