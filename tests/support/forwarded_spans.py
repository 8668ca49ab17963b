"""The oracle of the forwarder's bytes: the same event as a span of OpenTelemetry's SDK."""

from collections.abc import Iterable
from typing import Any, Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from bridge.forwarder import span_fields
from bridge.forwarder.otlp_requests import SCOPE
from bridge.forwarder.pairing import Event, Origin, Position, Record
from otel_mqtrace import semconv
from otel_mqtrace.hooks.attributes import add_rocketmq_fields
from otel_mqtrace.model import TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, Attributes
from otel_mqtrace.wire.native.decode import MODEL_FIELDS
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS
from tests.support.native_spans import span_attributes

_SCOPE: Final = InstrumentationScope(SCOPE, schema_url=semconv.SCHEMA_URL)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)


def span_of(event: Event, rules: span_fields.SpanRules) -> ReadableSpan:
    """Return the span that says ``event``: the same for the same records, wherever they were read."""
    meaning = span_fields.span_fields(event, rules)
    operation = OPERATIONS[meaning.trace_type]
    return ReadableSpan(
        name=operation.span_name(None if meaning.topic is None else span_fields.encodable(meaning.topic)),
        kind=operation.kind,
        context=_context(meaning.trace_id, meaning.span_id, is_remote=False),
        parent=None if meaning.parent_id is None else _context(meaning.trace_id, meaning.parent_id, is_remote=True),
        # not ``create``: nothing of this process
        resource=Resource({SERVICE_NAME: span_fields.encodable(meaning.service)}),
        attributes=_attributes(meaning, rules),
        status=Status(StatusCode.UNSET if meaning.failure is None else StatusCode.ERROR),
        start_time=meaning.start_ms * span_fields.NS_PER_MS,
        end_time=meaning.end_ms * span_fields.NS_PER_MS,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: bytes, span_id: bytes, *, is_remote: bool) -> SpanContext:
    ids = int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big")
    return SpanContext(*ids, is_remote=is_remote, trace_flags=_SAMPLED)


def _attributes(meaning: span_fields.OtlpSpanFields, rules: span_fields.SpanRules) -> Attributes:
    values = [span_fields.encodable(value) if type(value) is str else value for value in meaning.values]
    attributes, _ = span_attributes(_context_of(meaning.trace_type, values))
    attributes[semconv.MESSAGING_SYSTEM] = rules.system
    if rules.system == semconv.SYSTEM_ROCKETMQ:
        add_rocketmq_fields(attributes, {})
        attributes[semconv.MESSAGING_ROCKETMQ_NAMESPACE] = ""  # required by the conventions; the writers cut it off
    if meaning.store_host is not None:
        attributes |= span_fields.server_of(span_fields.encodable(meaning.store_host))
    return {**attributes, **span_fields.rare_attributes(meaning.messages, meaning.half, meaning.failure)}


_WHERE: Final = Position("trace", 0, 0)


def record_of(
    trace_ctx: TraceContext, place: Position = _WHERE, arrival_ms: int = 0, *, messages: int = 1, record_index: int = 0
) -> Record:
    bean = trace_ctx.beans[0] if trace_ctx.beans else TraceBean()
    fields_of_model = [getattr(bean if hasattr(bean, name) else trace_ctx, name) for name in MODEL_FIELDS]
    values = tuple(None if type(value) is str and value in ABSENT_TEXTS else value for value in fields_of_model)
    return Origin(place, arrival_ms, arrival_ms, arrival_ms), record_index, trace_ctx.trace_type, messages, values


def context_of(record: Record) -> TraceContext:
    return _context_of(record[2], record[4])


def _context_of(trace_type: TraceType, values: Iterable[Any]) -> TraceContext:
    fields: dict[str, Any] = dict(zip(MODEL_FIELDS, values, strict=True))
    bean = TraceBean(**{name: fields.pop(name) for name in TraceBean._fields})
    return TraceContext(trace_type=trace_type, beans=(bean,), **fields)
