"""This module knows how an event of the native trace becomes a span, and that it is the same span every time.

Ids are BLAKE2b digests of what the record says, so a trace message that is forwarded again gives the same ids:

* trace id: of the message id, so that all that happened to a message is one trace;
* root span id: of ``Pub`` and the message id, so that a listener call knows its parent before the send is seen;
* any other span id: of the trace type, the message id and what tells this event from its like.

Texts by which writers say "nothing" (empty, ``null``, ``dKey``) give no attribute.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, TypeVar

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from bridge.codec.native import absent
from otel_mqtrace import semconv
from otel_mqtrace.hooks._message import say_rocketmq
from otel_mqtrace.hooks.tracing import host_and_port
from otel_mqtrace.model import ContextCode, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, span_attributes

if TYPE_CHECKING:
    from bridge.forwarder.pairing import Event
    from otel_mqtrace.spans.mapping import Attributes

__all__ = ["OTHER_ERROR", "UNKNOWN_SERVICE", "SpanRules", "root_span_id", "span_of", "trace_id_of"]

UNKNOWN_SERVICE: Final = "unknown_service"
"""Service of a record that names no group, in the words of OpenTelemetry's resource conventions."""
OTHER_ERROR: Final = "_OTHER"
"""The registry's ``error.type`` of a failure that has no name: ``Pub`` and ``Recall`` say no more than that."""
_SCOPE: Final = InstrumentationScope("bridge.forwarder", schema_url=semconv.SCHEMA_URL)
_TRACE_BYTES, _SPAN_BYTES = 16, 8
_SEPARATOR: Final = "\x01"  # the one character that no field holds
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_MAX_MS: Final = (1 << 63) // 1_000_000 - 1  # what OTLP's consumers can say, the year 2262
_NS_PER_MS: Final = 1_000_000
_SERVICES_REMEMBERED: Final = 4_096
_CONTEXT_FIELDS: Final = tuple(each.name for each in fields(TraceContext) if each.name != "beans")
_BEAN_FIELDS: Final = tuple(each.name for each in fields(TraceBean))
_T = TypeVar("_T", TraceContext, TraceBean)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRules:
    """What the records cannot say of themselves.

    ``service_name`` is the service of every span; ``None`` takes the group's name. ``system`` is ``messaging.system``.
    ``stamped_after`` are patterns of producer groups whose clients take the time of a ``Pub`` after the send, as Go's.
    """

    service_name: str | None = None
    system: str = semconv.SYSTEM_ROCKETMQ
    stamped_after: tuple[str, ...] = ()


def trace_id_of(msg_id: str) -> int:
    """Return the trace that everything about the message belongs to."""
    return _digest(_TRACE_BYTES, "trace", msg_id)


def root_span_id(msg_id: str) -> int:
    """Return the span id of the message's send, which its other spans have for a parent, seen or not."""
    return _digest(_SPAN_BYTES, TraceType.PUB.value, msg_id)


def span_of(event: Event, rules: SpanRules) -> ReadableSpan:
    """Return the span that says ``event``: the same for the same records, wherever they were read."""
    trace_ctx = _meant(event)
    bean = trace_ctx.beans[0]
    subject = bean.msg_id or _SEPARATOR.join(_words(trace_ctx))
    is_root = trace_ctx.trace_type is TraceType.PUB and event.is_root
    root = SpanContext(trace_id_of(subject), root_span_id(subject), is_remote=True, trace_flags=_SAMPLED)
    span_id = root.span_id if is_root else _digest(_SPAN_BYTES, *_told_apart_by(trace_ctx, subject))
    start_ms, end_ms = _times(event, trace_ctx, rules)
    attributes = _attributes(trace_ctx, event, rules)
    failure = attributes.get(semconv.ERROR_TYPE)
    return ReadableSpan(
        name=OPERATIONS[trace_ctx.trace_type].span_name(bean.topic),
        kind=OPERATIONS[trace_ctx.trace_type].kind,
        context=SpanContext(root.trace_id, span_id, is_remote=False, trace_flags=_SAMPLED),
        parent=None if is_root else root,
        resource=_resource(rules.service_name or trace_ctx.group_name or UNKNOWN_SERVICE),
        attributes=attributes,
        status=Status(StatusCode.UNSET if failure is None else StatusCode.ERROR),
        start_time=start_ms * _NS_PER_MS,
        end_time=end_ms * _NS_PER_MS,
        instrumentation_scope=_SCOPE,
    )


# -- what the records mean together --------------------------------------------------------------------------------
def _meant(event: Event) -> TraceContext:
    """Return one context for the event: the later half wins, the earlier one fills what it leaves out."""
    merged = _without_nothing(event.record.trace_ctx, event.record.bean)
    if event.before is None:
        return merged
    before = _without_nothing(event.before.trace_ctx, event.before.bean)
    bean = _filled(merged.beans[0], before.beans[0], _BEAN_FIELDS)
    return replace(_filled(merged, before, _CONTEXT_FIELDS), beans=(bean,))


def _without_nothing(trace_ctx: TraceContext, bean: TraceBean) -> TraceContext:
    return replace(_spoken(trace_ctx, _CONTEXT_FIELDS), beans=(_spoken(bean, _BEAN_FIELDS),))


def _spoken(said: _T, names: tuple[str, ...]) -> _T:
    """Return ``said`` without the texts that mean nothing and the characters that UTF-8 cannot carry."""
    changed: dict[str, Any] = {}
    for name in names:
        value = getattr(said, name)
        if isinstance(value, str):
            if absent(value):
                changed[name] = None
            elif not value.isascii():
                changed[name] = value.encode("utf-8", "replace").decode()
    return replace(said, **changed) if changed else said


def _filled(later: _T, earlier: _T, names: tuple[str, ...]) -> _T:
    found = ((name, getattr(earlier, name)) for name in names if getattr(later, name) is None)
    missing = {name: value for name, value in found if value is not None}
    return replace(later, **missing) if missing else later


# -- ids -----------------------------------------------------------------------------------------------------------
def _digest(size_bytes: int, *words: str) -> int:
    digest = blake2b(_SEPARATOR.join(words).encode(), digest_size=size_bytes).digest()
    return int.from_bytes(digest, "big") or 1  # zero is no id


def _told_apart_by(trace_ctx: TraceContext, subject: str) -> tuple[str, ...]:
    """Return what no other event of this message has in common with this one; both halves of a call say the same."""
    if trace_ctx.trace_type in (TraceType.SUB_BEFORE, TraceType.SUB_AFTER):
        if trace_ctx.request_id is not None:
            return "Sub", subject, trace_ctx.request_id
        return "Sub", subject, "", *_words(trace_ctx)
    return (*_words(trace_ctx), subject)


def _words(trace_ctx: TraceContext) -> tuple[str, ...]:
    """Return everything that the record says, as words."""
    said = [str(getattr(trace_ctx, name)) for name in _CONTEXT_FIELDS]
    return (*said, *(str(getattr(trace_ctx.beans[0], name)) for name in _BEAN_FIELDS))


# -- times ---------------------------------------------------------------------------------------------------------
def _times(event: Event, trace_ctx: TraceContext, rules: SpanRules) -> tuple[int, int]:
    """Return start and end in epoch milliseconds; never an end before the start: clocks are set, and costs wrong."""
    cost_ms = max(trace_ctx.cost_ms or 0, 0)
    stamp_ms = trace_ctx.timestamp_ms
    arrival_ms = _sane(event.record.arrival_ms, 0)
    if trace_ctx.trace_type is TraceType.SUB_AFTER:
        began_ms = None if event.before is None else event.before.trace_ctx.timestamp_ms
        ended_ms = event.record.trace_ctx.timestamp_ms
        if ended_ms is None:
            ended_ms = arrival_ms if began_ms is None else began_ms + cost_ms
        start_ms = ended_ms - cost_ms if began_ms is None else began_ms
    elif trace_ctx.trace_type is TraceType.PUB:
        start_ms = arrival_ms - cost_ms if stamp_ms is None else stamp_ms
        if stamp_ms is not None and _is_stamped_after(trace_ctx.group_name, rules):
            start_ms -= cost_ms
        ended_ms = start_ms + cost_ms
    else:
        start_ms = ended_ms = arrival_ms if stamp_ms is None else stamp_ms
    start_ms = _sane(start_ms, arrival_ms)
    return start_ms, max(start_ms, _sane(ended_ms, start_ms))


def _is_stamped_after(group_name: str | None, rules: SpanRules) -> bool:
    return any(fnmatchcase(group_name or "", pattern) for pattern in rules.stamped_after)


def _sane(stamp_ms: int, otherwise_ms: int) -> int:
    return stamp_ms if 0 <= stamp_ms <= _MAX_MS else otherwise_ms


# -- attributes ----------------------------------------------------------------------------------------------------
def _attributes(trace_ctx: TraceContext, event: Event, rules: SpanRules) -> Attributes:
    said = span_attributes(trace_ctx).span
    said[semconv.MESSAGING_SYSTEM] = rules.system
    if rules.system == semconv.SYSTEM_ROCKETMQ:
        say_rocketmq(said, {})
        said[semconv.MESSAGING_ROCKETMQ_NAMESPACE] = ""  # required by the conventions; the writers cut it off
    store_host = trace_ctx.beans[0].store_host
    if store_host is not None and trace_ctx.trace_type is TraceType.PUB:
        address, port = host_and_port(store_host)
        said |= {
            name: value
            for name, value in ((semconv.SERVER_ADDRESS, address), (semconv.SERVER_PORT, port))
            if value is not None
        }
    if event.record.messages > 1:
        said[semconv.MESSAGING_BATCH_MESSAGE_COUNT] = event.record.messages
    if event.half is not None:
        said[semconv.MQTRACE_HALF] = event.half.value
    if (failure := _failure(trace_ctx)) is not None:
        said[semconv.ERROR_TYPE] = failure
    return said


def _failure(trace_ctx: TraceContext) -> str | None:
    """Return the name of what went wrong; a call that took too long failed, although RocketMQ says success with it."""
    if trace_ctx.context_code not in (None, ContextCode.SUCCESS):
        return trace_ctx.context_code.name
    return OTHER_ERROR if trace_ctx.success is False else None


@lru_cache(maxsize=_SERVICES_REMEMBERED)
def _resource(service_name: str) -> Resource:
    """Not ``Resource.create``: the forwarder's own environment and SDK say nothing about the application."""
    return Resource({SERVICE_NAME: service_name})
