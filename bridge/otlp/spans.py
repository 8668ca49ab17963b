"""Read one OTLP message, JSON or protobuf, as plain spans.

Tolerated (``docs/specification.md`` of opentelemetry-proto, "JSON Protobuf Encoding", and files seen): ids in upper
case hex, base64 or lists of bytes; 64-bit numbers as strings or numbers; enumerations by name; snake_case names; the
``instrumentationLibrary`` names of before 2022; a bare array of ResourceSpans; a ``result`` wrapper around it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.otlp.json_spans import count_json_ids, count_json_spans, count_usual_json_ids, json_spans, parse_json
from bridge.otlp.span_count import count_proto_spans, count_written_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bridge.otlp.values import Span


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


def count_spans(resource_spans: list[Any]) -> int:
    """Return how many :func:`spans_of` must yield, odd ones included, without making any."""
    count = _protobuf().count_parsed_spans if is_proto(resource_spans) else count_json_spans
    return sum(map(count, resource_spans))


def count_expected_spans(payload: bytes, resource_spans: list[Any]) -> int:
    """Return how many spans a message holds by its bytes: what the parser dropped of it is due all the same.

    Args:
        payload: the message.
        resource_spans: what :func:`parse_message` made of it.
    """
    if not resource_spans:
        return 0
    if is_proto(resource_spans):
        return count_proto_spans(payload)
    written = count_written_ids(payload)
    if written <= sum(map(count_usual_json_ids, resource_spans)):  # fewer where a name is written with escapes
        return count_spans(resource_spans)
    return count_spans(resource_spans) + max(written - sum(map(count_json_ids, resource_spans)), 0)
