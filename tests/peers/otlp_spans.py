"""One plain form of a span, to compare what the SDK ended with what a server returns."""

import base64
from collections.abc import Iterator, Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

_NO_PARENT = ""
_KINDS_FROM_ZERO = 1  # the SDK counts kinds from 0, OTLP from 1, its 0 being "unspecified"


def of_sdk(span: ReadableSpan) -> dict[str, Any]:
    """Return an ended span of the SDK in the plain form."""
    return {
        "trace_id": f"{span.context.trace_id:032x}",
        "span_id": f"{span.context.span_id:016x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else _NO_PARENT,
        "name": span.name,
        "kind": span.kind.value + _KINDS_FROM_ZERO,
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "attributes": _plain(span.attributes),
        "events": [(event.timestamp, event.name, _plain(event.attributes)) for event in span.events],
        "links": [
            (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", _plain(link.attributes))
            for link in span.links
        ],
        "status": (span.status.status_code.value, span.status.description or ""),
        "scope": (span.instrumentation_scope.name, span.instrumentation_scope.version or ""),
        "resource": _plain(span.resource.attributes),
    }


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}


def of_json(traces: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the spans of an OTLP/JSON ``TracesData`` in the plain form."""
    for resource_spans in traces.get("resourceSpans", ()):
        resource = _attributes(resource_spans.get("resource", {}))
        for scope_spans in resource_spans.get("scopeSpans", ()):
            scope = scope_spans.get("scope", {})
            common = {"scope": (scope.get("name", ""), scope.get("version", "")), "resource": resource}
            yield from ({**_span(span), **common} for span in scope_spans.get("spans", ()))


def _span(span: Mapping[str, Any]) -> dict[str, Any]:
    status = span.get("status", {})
    return {
        "trace_id": span["traceId"],
        "span_id": span["spanId"],
        "parent": span.get("parentSpanId", _NO_PARENT),
        "name": span["name"],
        "kind": span["kind"],
        "start_ns": int(span["startTimeUnixNano"]),
        "end_ns": int(span["endTimeUnixNano"]),
        "attributes": _attributes(span),
        "events": [(int(event["timeUnixNano"]), event["name"], _attributes(event)) for event in span.get("events", ())],
        "links": [(link["traceId"], link["spanId"], _attributes(link)) for link in span.get("links", ())],
        "status": (status.get("code", 0), status.get("message", "")),
    }


def _attributes(holder: Mapping[str, Any]) -> dict[str, Any]:
    return {each["key"]: _value(each["value"]) for each in holder.get("attributes", ())}


def _value(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "arrayValue":
        return [_value(item) for item in content.get("values", ())]
    convert = {"intValue": int, "doubleValue": float, "bytesValue": base64.b64decode}.get(kind)
    return content if convert is None else convert(content)
