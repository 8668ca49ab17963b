"""This module knows one OTLP message, JSON or protobuf, as plain spans; what producers get wrong is read all the same.

Tolerated (``docs/specification.md`` of opentelemetry-proto, "JSON Protobuf Encoding", and files seen): ids in upper
case hex, base64 or lists of bytes; 64-bit numbers as strings or numbers; enumerations by name; snake_case names; the
``instrumentationLibrary`` names of before 2022; a bare array of ResourceSpans; a ``result`` wrapper around it all. What
is no span even so is ``bad`` alone: the spans beside it are read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans

from spark_jobs.sources import witness
from spark_jobs.sources.json_spans import json_id_count, json_span_count, json_spans, parse_json
from spark_jobs.sources.proto_spans import parse_proto, proto_span_count, proto_spans

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spark_jobs.sources.plain_span import Span

__all__ = ["parse_message", "span_count", "spans_due", "spans_of"]


def parse_message(payload: bytes) -> list[Any] | None:
    """Return the ResourceSpans of one message (dicts of JSON, or protobuf messages), or ``None`` when it is none.

    Metrics and logs, which a Collector may write into the same file, are messages without ResourceSpans.
    """
    if payload.lstrip()[:1] in {b"{", b"["} and (found := parse_json(payload)) is not None:
        return found
    return parse_proto(payload)


def spans_of(resource_spans: list[Any]) -> Iterator[Span]:
    """Yield the spans of :func:`parse_message`'s answer, in order."""
    for one in resource_spans:
        yield from proto_spans(one) if isinstance(one, ResourceSpans) else json_spans(one)


def span_count(resource_spans: list[Any]) -> int:
    """Return how many :func:`spans_of` must yield, odd ones included, without making any."""
    return sum(
        proto_span_count(one) if isinstance(one, ResourceSpans) else json_span_count(one) for one in resource_spans
    )


def spans_due(payload: bytes, resource_spans: list[Any]) -> int:
    """Return how many spans a message holds by its bytes: what the parser dropped of it is due all the same.

    Args:
        payload: the message.
        resource_spans: what :func:`parse_message` made of it.
    """
    if not resource_spans:
        return 0
    if isinstance(resource_spans[0], ResourceSpans):
        return witness.proto_spans(payload)
    dropped = witness.written_ids(payload) - sum(map(json_id_count, resource_spans))
    return span_count(resource_spans) + dropped
