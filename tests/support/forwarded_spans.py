"""The oracle of the forwarder's bytes: the same event as a span of OpenTelemetry's SDK."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from bridge.forwarder.span_fields import (
    BEAN_FIELDS,
    CONTEXT_FIELDS,
    FIELDS,
    NS_PER_MS,
    OTHER_ERROR,
    SCOPE,
    UNKNOWN_SERVICE,
    SpanRules,
    meaning_of,
    rare_attributes,
    root_span_id,
    server_of,
    speakable,
    trace_id_of,
)
from otel_mqtrace import semconv
from otel_mqtrace.hooks.attributes import add_rocketmq_fields
from otel_mqtrace.model import TraceBean, TraceContext
from otel_mqtrace.spans.mapping import OPERATIONS, span_attributes

if TYPE_CHECKING:
    from bridge.forwarder.pairing import Event
    from bridge.forwarder.span_fields import Meaning
    from otel_mqtrace.spans.mapping import Attributes

__all__ = ["OTHER_ERROR", "UNKNOWN_SERVICE", "SpanRules", "root_span_id", "span_of", "trace_id_of"]

_SCOPE: Final = InstrumentationScope(SCOPE, schema_url=semconv.SCHEMA_URL)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SERVICES_REMEMBERED: Final = 4_096


def span_of(event: Event, rules: SpanRules) -> ReadableSpan:
    """Return the span that says ``event``: the same for the same records, wherever they were read."""
    meaning = meaning_of(event, rules)
    operation = OPERATIONS[meaning.trace_type]
    return ReadableSpan(
        name=operation.span_name(None if meaning.topic is None else speakable(meaning.topic)),
        kind=operation.kind,
        context=_context(meaning.trace_id, meaning.span_id, is_remote=False),
        parent=None if meaning.parent_id is None else _context(meaning.trace_id, meaning.parent_id, is_remote=True),
        resource=_resource(speakable(meaning.service)),
        attributes=_attributes(meaning, rules),
        status=Status(StatusCode.UNSET if meaning.failure is None else StatusCode.ERROR),
        start_time=meaning.start_ms * NS_PER_MS,
        end_time=meaning.end_ms * NS_PER_MS,
        instrumentation_scope=_SCOPE,
    )


def _context(trace_id: bytes, span_id: bytes, *, is_remote: bool) -> SpanContext:
    ids = int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big")
    return SpanContext(*ids, is_remote=is_remote, trace_flags=_SAMPLED)


def _attributes(meaning: Meaning, rules: SpanRules) -> Attributes:
    said = span_attributes(_trace_ctx(meaning)).span
    said[semconv.MESSAGING_SYSTEM] = rules.system
    if rules.system == semconv.SYSTEM_ROCKETMQ:
        add_rocketmq_fields(said, {})
        said[semconv.MESSAGING_ROCKETMQ_NAMESPACE] = ""  # required by the conventions; the writers cut it off
    if meaning.store_host is not None:
        said |= server_of(speakable(meaning.store_host))
    return {**said, **rare_attributes(meaning)}


def _trace_ctx(meaning: Meaning) -> TraceContext:
    """Return the record that would say all of it alone."""
    said: dict[str, Any] = {
        name: speakable(value) if isinstance(value, str) else value
        for name, value in zip(FIELDS, meaning.said, strict=True)
    }
    bean = TraceBean(**{name: said[name] for name in BEAN_FIELDS})
    of_call = {name: said[name] for name in CONTEXT_FIELDS}
    return TraceContext(trace_type=meaning.trace_type, beans=(bean,), **of_call)


@lru_cache(maxsize=_SERVICES_REMEMBERED)
def _resource(service_name: str) -> Resource:
    """Not ``Resource.create``: the forwarder's own environment and SDK say nothing about the application."""
    return Resource({SERVICE_NAME: service_name})
