"""This module knows one OTLP message, JSON or protobuf, as plain spans; what producers get wrong is read all the same.

Tolerated (``docs/specification.md`` of opentelemetry-proto, "JSON Protobuf Encoding", and files seen): ids in upper
case hex, base64 or lists of bytes; 64-bit numbers as strings or numbers; enumerations by name; snake_case names; the
``instrumentationLibrary`` names of before 2022; a bare array of ResourceSpans; a ``result`` wrapper around it all. What
is no span even so is ``bad`` alone: the spans beside it are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.otlp import witness
from bridge.otlp.json_spans import (
    json_id_count,
    json_span_count,
    json_spans,
    json_usual_id_count,
    parse_json,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.otlp.plain_span import Span

__all__ = ["is_proto", "parse_message", "span_count", "spans_due", "spans_of"]


def parse_message(payload: bytes) -> list[Any] | None:
    """Return the ResourceSpans of one message (dicts of JSON, or protobuf messages), or ``None`` when it is none.

    Metrics and logs, which a Collector may write into the same file, are messages without ResourceSpans.
    """
    found = parse_json(payload) if payload.lstrip()[:1] in {b"{", b"["} else None
    return _protobuf().parse_proto(payload) if found is None else found


def is_proto(resource_spans: list[Any]) -> bool:
    """Return whether :func:`parse_message` read them from protobuf."""
    return bool(resource_spans) and hasattr(resource_spans[0], "scope_spans")


def _protobuf() -> Any:
    """Who reads JSON only needs no protobuf."""
    from bridge.otlp import proto_spans  # noqa: PLC0415

    return proto_spans


def spans_of(resource_spans: list[Any]) -> Iterator[Span]:
    """Yield the spans of :func:`parse_message`'s answer, in order."""
    spans = _protobuf().proto_spans if is_proto(resource_spans) else json_spans
    for one in resource_spans:
        yield from spans(one)


def span_count(resource_spans: list[Any]) -> int:
    """Return how many :func:`spans_of` must yield, odd ones included, without making any."""
    count = _protobuf().proto_span_count if is_proto(resource_spans) else json_span_count
    return sum(map(count, resource_spans))


def spans_due(payload: bytes, resource_spans: list[Any]) -> int:
    """Return how many spans a message holds by its bytes: what the parser dropped of it is due all the same.

    Args:
        payload: the message.
        resource_spans: what :func:`parse_message` made of it.
    """
    if not resource_spans:
        return 0
    if is_proto(resource_spans):
        return witness.proto_spans(payload)
    written = witness.written_ids(payload)
    if written <= sum(map(json_usual_id_count, resource_spans)):  # fewer where a name is written with escapes
        return span_count(resource_spans)
    return span_count(resource_spans) + max(written - sum(map(json_id_count, resource_spans)), 0)
