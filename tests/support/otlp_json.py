"""Spans in OTLP/JSON, as a Collector's file exporter writes them."""

import json
from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import SpanKind

SERVER, CLIENT, PRODUCER, CONSUMER = (
    kind.value + 1 for kind in (SpanKind.SERVER, SpanKind.CLIENT, SpanKind.PRODUCER, SpanKind.CONSUMER)
)
_NAMES = {bool: "boolValue", int: "intValue", str: "stringValue"}
Span = dict[str, Any]


def listed(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes as OTLP/JSON has them, without those that are ``None``."""
    return [
        {"key": name, "value": {_NAMES[type(value)]: str(value) if type(value) is int else value}}
        for name, value in attributes.items()
        if value is not None
    ]


def span(number: int, kind: int, start_ms: int, cost_ms: int, attributes: Mapping[str, Any], **fields: Any) -> Span:
    """Return a span whose ids are made of ``number``, unless ``fields`` name others."""
    ids = {"traceId": f"{number:032x}", "spanId": f"{number:016x}", "kind": kind}
    times = {"startTimeUnixNano": f"{start_ms}000000", "endTimeUnixNano": f"{start_ms + cost_ms}000000"}
    return {**ids, **times, "attributes": listed(attributes), **fields}


def resource(service: str, *spans: Span, scope: str = "made.up") -> dict[str, Any]:
    """Return the spans of a service, as one of the ``resourceSpans`` of a message."""
    scope_spans = [{"scope": {"name": scope}, "spans": list(spans)}]
    return {"resource": {"attributes": listed({"service.name": service})}, "scopeSpans": scope_spans}


def line(*resources: Mapping[str, Any]) -> str:
    return json.dumps({"resourceSpans": resources}, ensure_ascii=False) + "\n"
