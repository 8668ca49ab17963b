"""This module knows OTLP messages in protobuf as batches of spans: flat lists of values, no mapping for each span."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.otlp.plain_span import KINDS, LONG_MAX, STATUSES, parent_or_none
from spark_jobs.sources.arrow_values import Array, lists_of, maps_of
from spark_jobs.sources.packed_spans import KnownAttributes, packed_resource_spans
from spark_jobs.sources.read_batches import BATCH_BYTES, BATCH_ROWS, LINK, SPANS, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["proto_batches"]

_KINDS: Final = dict(enumerate(KINDS))
_STATUSES: Final = dict(enumerate(STATUSES))
_PLAIN: Final = (
    *("trace_id", "span_id", "parent_span_id", "name", "kind", "start_ns", "end_ns", "status", "service", "scope"),
    *("flags", "dropped_attributes", "dropped_links", "path", "line"),
)


def proto_batches(messages: Iterable[tuple[str, int | None, bytes]]) -> Iterator[pa.RecordBatch]:
    """Yield the spans of ``messages`` (path, line and bytes of each) as batches of ``SPANS``."""
    known = KnownAttributes()
    columns, held = _Columns(known), 0
    for path, line, payload in messages:
        for span, service, scope in _placed(payload, known):
            columns.add(span, service, scope, path, line)
            if len(columns) >= BATCH_ROWS:
                yield columns.batch()
                columns, held = _Columns(known), 0
        held += len(payload)
        if held >= BATCH_BYTES and len(columns):
            yield columns.batch()
            columns, held = _Columns(known), 0
    if len(columns):
        yield columns.batch()


def _placed(payload: bytes, known: KnownAttributes) -> Iterator[tuple[Any, str | None, str | None]]:
    for one in packed_resource_spans(payload):
        service = known.texts(one.resource.attributes).get("service.name")
        for part in (*one.scope_spans, *one.old_scope_spans):
            scope = part.scope.name or None
            for span in part.spans:
                yield span, service, scope


class _Maps:
    """Attributes of many objects, one after the other."""

    def __init__(self, known: KnownAttributes) -> None:
        self._known = known
        self._sizes, self._keys, self._texts = [0], list[str](), list[str | None]()

    def add(self, attributes: Any) -> None:
        texts = self._known.texts(attributes)
        self._sizes.append(len(texts))
        self._keys.extend(texts)
        self._texts.extend(texts.values())

    def array(self) -> Array:
        keys, texts = pa.array(self._keys, pa.string()), pa.array(self._texts, pa.string())
        return maps_of(_offsets(self._sizes), keys, texts)


class _Columns:
    """The spans of one batch."""

    def __init__(self, known: KnownAttributes) -> None:
        self._plain, self._attributes = list[tuple[Any, ...]](), _Maps(known)
        self._links, self._link_sizes, self._link_attributes = list[tuple[Any, ...]](), [0], _Maps(known)

    def __len__(self) -> int:
        return len(self._plain)

    def add(self, span: Any, service: str | None, scope: str | None, path: str, line: int | None) -> None:
        self._plain.append(
            (
                span.trace_id.hex() or None,
                span.span_id.hex() or None,
                parent_or_none(span.parent_span_id.hex()),
                span.name,
                _KINDS.get(span.kind, KINDS[0]),
                min(span.start_time_unix_nano, LONG_MAX),
                min(span.end_time_unix_nano, LONG_MAX),
                _STATUSES.get(span.status.code, STATUSES[0]),
                service,
                scope,
                span.flags,
                span.dropped_attributes_count,
                span.dropped_links_count,
                path,
                line,
            )
        )
        self._attributes.add(span.attributes)
        links = span.links
        self._link_sizes.append(len(links))
        for link in links:
            self._links.append((link.trace_id.hex() or None, link.span_id.hex() or None, link.flags))
            self._link_attributes.add(link.attributes)

    def batch(self) -> pa.RecordBatch:
        values = zip(*self._plain, strict=True)
        plain = {name: pa.array(column, SPANS.field(name).type) for name, column in zip(_PLAIN, values, strict=True)}
        return batch_of({**plain, "attributes": self._attributes.array(), "links": self._linked()}, len(self))

    def _linked(self) -> Array:
        columns = zip(*self._links, strict=True) if self._links else ((), (), ())
        told = [pa.array(column, one.type) for one, column in zip(LINK, columns, strict=False)]
        made = pa.StructArray.from_arrays([*told, self._link_attributes.array()], fields=list(LINK))
        return lists_of(_offsets(self._link_sizes), made)


def _offsets(sizes: list[int]) -> Array:
    return pa.array(accumulate(sizes), pa.int32())
