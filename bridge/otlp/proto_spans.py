"""Read one OTLP protobuf message as plain spans, those under their names of before 2022 too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from bridge.otlp.values import KINDS, STATUSES, Span, attribute_text, enum_name, parent_or_none

if TYPE_CHECKING:
    from collections.abc import Iterator


OLD_SCOPE_SPANS: Final = 1000
"""The number of ``instrumentation_library_spans`` in ResourceSpans; its parts are numbered as those of ScopeSpans."""


def parse_proto(payload: bytes) -> list[Any] | None:
    """Return the ResourceSpans of one protobuf message; ``None`` if it is not OTLP.

    Bytes that are unknown fields to protobuf are not traces: a native body can look like that.
    """
    try:
        found = list(TracesData.FromString(payload).resource_spans)
        for one in found:
            _take_old_parts(one)
    except DecodeError:
        return None
    return found if found or not payload else None


def _take_old_parts(one: ResourceSpans) -> None:
    for field in UnknownFieldSet(one):
        if field.field_number == OLD_SCOPE_SPANS and isinstance(field.data, bytes):
            one.scope_spans.add().MergeFromString(field.data)


def proto_spans(one: ResourceSpans) -> Iterator[Span]:
    """Yield the spans of one ResourceSpans."""
    service = attribute_text(_proto_attributes(one.resource.attributes).get("service.name"))
    for scope_spans in one.scope_spans:
        for span in scope_spans.spans:
            yield _proto_span(span, service, scope_spans.scope.name or None)


def _proto_span(span: Any, service: str | None, scope: str | None) -> Span:
    return {
        "trace_id": span.trace_id.hex() or None,
        "span_id": span.span_id.hex() or None,
        "parent_span_id": parent_or_none(span.parent_span_id.hex()),
        "name": span.name,
        "kind": enum_name(span.kind, KINDS, ""),
        "start_ns": span.start_time_unix_nano,
        "end_ns": span.end_time_unix_nano,
        "status": enum_name(span.status.code, STATUSES, ""),
        "status_message": span.status.message,
        "service": service,
        "scope": scope,
        "flags": span.flags,
        "attributes": _proto_attributes(span.attributes),
        "links": [_proto_link(link) for link in span.links],
        "events": [_proto_event(event) for event in span.events],
        "dropped_attributes": span.dropped_attributes_count,
        "dropped_links": span.dropped_links_count,
        "bad": None,
    }


def _proto_link(link: Any) -> Span:
    return {
        "trace_id": link.trace_id.hex() or None,
        "span_id": link.span_id.hex() or None,
        "flags": link.flags,
        "attributes": _proto_attributes(link.attributes),
    }


def _proto_event(event: Any) -> Span:
    return {"name": event.name, "time_ns": event.time_unix_nano, "attributes": _proto_attributes(event.attributes)}


def _proto_attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: proto_value(pair.value) for pair in pairs}


def proto_value(value: Any) -> Any:
    """Return an AnyValue as Python has it; ``None`` when it is unset."""
    if text := value.string_value:  # three times as fast as WhichOneof
        return text
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [proto_value(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return _proto_attributes(value.kvlist_value.values)
    return getattr(value, which)
