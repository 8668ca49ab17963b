"""OTLP protobuf of trace records: a span for each, with the attributes that a native record has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, TracesData

from otel_mqtrace.spans.mapping import bean_attributes, context_attributes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from otel_mqtrace.model import TraceContext

_TRACE_ID, _SPAN_ID = b"\x01" * 16, b"\x02" * 8


def message_of(contexts: Iterable[TraceContext]) -> TracesData:
    """Return the message that says in OTLP what ``contexts``, of one message each, say."""
    spans = [_span(trace_ctx) for trace_ctx in contexts]
    return TracesData(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=spans)])])


def read(data: bytes) -> list[dict[str, object]]:
    """Return name, times and attributes of every span in ``data`` as values of Python, which parsing alone does not."""
    message = TracesData()
    message.ParseFromString(data)
    return [
        {
            "name": span.name,
            "start_ns": span.start_time_unix_nano,
            "end_ns": span.end_time_unix_nano,
            **{item.key: _value(item.value) for item in span.attributes},
        }
        for resource in message.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _span(trace_ctx: TraceContext) -> Span:
    start_ns = (trace_ctx.timestamp_ms or 0) * 1_000_000
    attributes = {**context_attributes(trace_ctx), **bean_attributes(trace_ctx.beans[0])}
    return Span(
        trace_id=_TRACE_ID,
        span_id=_SPAN_ID,
        name=trace_ctx.trace_type.value,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + (trace_ctx.cost_ms or 0) * 1_000_000,
        attributes=[KeyValue(key=key, value=_any_value(value)) for key, value in attributes.items()],
    )


def _any_value(value: object) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, tuple):
        return AnyValue(array_value=ArrayValue(values=[_any_value(one) for one in value]))
    return AnyValue(string_value=str(value))


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, str(kind))
