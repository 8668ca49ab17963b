"""This module knows what was found in a container, message or bad piece, as rows of ``READ_SPAN`` and in the books."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from bridge.otlp.containers import Message, Tail
from bridge.otlp.plain_span import LONG_MAX
from bridge.otlp.spans import is_proto, spans_due, spans_of
from bridge.otlp.texts import text_attributes
from spark_jobs.mentions import mentioned_in
from spark_jobs.sources.read_batches import SPANS, row_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from bridge.otlp.containers import Item
    from bridge.otlp.plain_span import Span
    from spark_jobs.sources.read_batches import Books

__all__ = ["item_batches", "span_row"]

_NOT_PLAIN: Final = frozenset({"attributes", "links", "path", "line", "raw_hash", "bad", "due", "tails"})
_PLAIN: Final = tuple(name for name in SPANS.names if name not in _NOT_PLAIN)
_SAMPLE: Final = 200


def item_batches(items: Iterable[tuple[str, int | None, Item]], books: Books) -> Iterator[pa.RecordBatch]:
    """Yield what stands in ``items`` (path, line and what was found there) as batches of ``SPANS``, in order."""
    for of_proto, some in groupby(_entered(items, books), key=_is_proto):
        if of_proto:
            from spark_jobs.sources.proto_columns import proto_batches  # noqa: PLC0415 - see ``spans``

            yield from proto_batches((path, line, item.payload) for path, line, item in some)
        else:
            yield from row_batches(row for path, line, item in some for row in _rows(path, line, item))


def _entered(items: Iterable[tuple[str, int | None, Item]], books: Books) -> Iterator[tuple[str, int | None, Any]]:
    for placed in items:
        item = placed[-1]
        if isinstance(item, Tail):
            books.tails += 1
            continue
        books.due += spans_due(item.payload, item.content) if isinstance(item, Message) else 1
        yield placed


def _is_proto(placed: tuple[str, int | None, Any]) -> bool:
    item = placed[-1]
    return isinstance(item, Message) and is_proto(item.content)


def _rows(path: str, line: int | None, item: Any) -> Iterator[dict[str, Any]]:
    place = {"path": path, "line": line}
    if isinstance(item, Message):
        yield from ({**span_row(span), **place} for span in spans_of(item.content))
    else:
        text = item.sample.decode("utf-8", errors="replace")
        yield {**place, "bad": _bad(None, item.reason, text, within=text)}


def span_row(span: Span) -> dict[str, Any]:
    """Return a span as a row of ``schemas.READ_SPAN``, its place left out."""
    if span["bad"] is not None:
        name, reason, text = span["bad"]
        known = [span["attributes"], *(link["attributes"] for link in span["links"])]
        values = (value for attributes in known for value in text_attributes(attributes).values())
        return {"bad": _bad(name, reason, text, within="\n".join([text, *filter(None, values)]))}
    links = [{**link, "attributes": _items(link["attributes"])} for link in span["links"]]
    times = {name: min(span[name], LONG_MAX) for name in ("start_ns", "end_ns")}
    plain = {name: span[name] for name in _PLAIN}
    return {**plain, **times, "attributes": _items(span["attributes"]), "links": links}


def _bad(name: str | None, reason: str, text: str, *, within: str) -> dict[str, Any]:
    return {"field": name, "reason": reason, "text": text[:_SAMPLE], "mentions": mentioned_in(within)}


def _items(attributes: dict[str, Any]) -> list[tuple[str, str | None]]:
    return list(text_attributes(attributes).items())
