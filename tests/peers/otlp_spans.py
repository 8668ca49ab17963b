"""What the SDK ended, and what a server returns, in one form: that of ``bridge.otlp.spans``, links as tuples."""

from typing import Any

from opentelemetry.sdk.trace import ReadableSpan

from bridge.otlp.spans import parse_message, spans_of

_FIELDS = ("trace_id", "span_id", "parent_span_id", "name", "kind", "start_ns", "end_ns", "status", "status_message")
_FIELDS += ("service", "scope", "attributes", "events")


def of_message(payload: bytes) -> list[dict[str, Any]]:
    return [
        {
            **{name: span[name] for name in _FIELDS},
            "links": [(link["trace_id"], link["span_id"], link["attributes"]) for link in span["links"]],
        }
        for span in spans_of(parse_message(payload) or [])
    ]


def of_sdk(span: ReadableSpan) -> dict[str, Any]:
    values = (
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
        f"{span.parent.span_id:016x}" if span.parent else None,
        *(span.name, span.kind.name, span.start_time, span.end_time),
        *(span.status.status_code.name, span.status.description or ""),
        *(span.resource.attributes["service.name"], span.instrumentation_scope.name, _plain(span.attributes)),
        [{"name": e.name, "time_ns": e.timestamp, "attributes": _plain(e.attributes)} for e in span.events],
    )
    links = [
        (f"{each.context.trace_id:032x}", f"{each.context.span_id:016x}", _plain(each.attributes))
        for each in span.links
    ]
    return {**dict(zip(_FIELDS, values, strict=True)), "links": links}


def _plain(attributes: Any) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}
