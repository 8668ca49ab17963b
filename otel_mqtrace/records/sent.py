"""One successful send: its record, and the native record and OTLP bytes derived from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.model import TraceType
from otel_mqtrace.records.span import LOCAL_PARENT, PARTS, REMOTE_PARENT, NativeRecord, RecordSpan
from otel_mqtrace.wire.otlp.protobuf import TEXT_VALUE, BoundedCache, attribute_heads, number_attribute
from otel_mqtrace.wire.otlp.sdk_spans import encode_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.trace import SpanContext, TraceState

    from otel_mqtrace.records.plan import Place, Plan


_SPAN_ATTRIBUTE: Final = 9
_VARYING: Final = ("timestamp_ms", "msg_id", "offset_msg_id", "body_length", "cost_ms")
_MAX_COST_MS: Final = 1 << 31
_MSG_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MESSAGING_MESSAGE_ID, TEXT_VALUE)
_REQUEST_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MQTRACE_REQUEST_ID, TEXT_VALUE)
_OFFSET_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MQTRACE_OFFSET_MSG_ID, TEXT_VALUE)
_offset: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MESSAGING_KAFKA_OFFSET)
_store_time: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MQTRACE_STORE_TIME)
_COST: Final = BoundedCache(number_attribute(_SPAN_ATTRIBUTE, semconv.MQTRACE_COST_TIME))
_BODY_SIZE: Final = BoundedCache(number_attribute(_SPAN_ATTRIBUTE, semconv.MESSAGING_MESSAGE_BODY_SIZE))
_RARE: Final = (
    semconv.MESSAGING_KAFKA_MESSAGE_KEY,
    semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
    semconv.MQTRACE_TAGS,
    semconv.MQTRACE_KEYS,
)


class Sent(NamedTuple):
    """One message between ``produce()`` and its delivery report.

    ``ids`` are trace id and span id, 24 bytes. ``parent`` is the span it was sent under, ``current_ctx`` the context.
    ``body_length`` is in bytes, ``None`` for a tombstone. ``headers`` are those that describe the message (``TAGS``,
    ``KEYS``). ``generation`` counts the forks before it: a child does not end what its parent sent.
    """

    plan: Plan
    ids: bytes
    parent: SpanContext | None
    flags: int
    msg_id: str
    start_ns: int
    body_length: int | None
    key: object
    headers: Mapping[str, Any]
    current_ctx: Any
    generation: int

    @property
    def trace_state(self) -> TraceState | None:
        """The parent's, as the SDK's samplers have it."""
        return None if self.parent is None else self.parent.trace_state

    @property
    def has_rare_fields(self) -> bool:
        """Whether it has a key, tags or keys, or is a tombstone."""
        return self.key is not None or bool(self.headers) or self.body_length is None


class SentSpan(RecordSpan):
    """The ended span of one successful send."""

    record: Sent
    end_ns: int

    def __init__(self, record: Sent, end_ns: int, partition: int, offset: int) -> None:
        self.record = record
        self.end_ns = end_ns
        self.partition = partition
        self.offset = offset

    @property
    def facts(self) -> tuple[Place, str]:
        """Place and request id: the same for every exporter, as of the first."""
        known: tuple[Place, str] | None = self.__dict__.get("_facts")
        if known is None:
            plan = self.record.plan
            known = self.__dict__.setdefault("_facts", (plan.place_of(self.partition), plan.new_id()))
        return known

    def make_attributes(self) -> dict[str, Any]:
        """Return all attributes."""
        record = self.record
        if record.has_rare_fields:
            made: dict[str, Any] = record.plan.make_attributes(self)
            return made
        place, request_id = self.facts
        start_ms = record.start_ns // NS_PER_MS
        cost_ms = self.end_ns // NS_PER_MS - start_ms
        return {
            **place.named,
            semconv.MESSAGING_MESSAGE_ID: record.msg_id,
            semconv.MESSAGING_MESSAGE_BODY_SIZE: record.body_length,
            semconv.MESSAGING_KAFKA_OFFSET: self.offset,
            semconv.MQTRACE_OFFSET_MSG_ID: f"{place.offset_id}{self.offset}",
            semconv.MQTRACE_COST_TIME: cost_ms,
            semconv.MQTRACE_REQUEST_ID: request_id,
            semconv.MQTRACE_STORE_TIME: start_ms + cost_ms // 2,
        }

    def to_native(self, dialect: str) -> NativeRecord | None:
        """Return its ``Pub`` record; ``None`` where the span must be mapped and encoded as any other."""
        record = self.record
        if record.headers or not PARTS.isdisjoint(self.__dict__):
            return None
        plan = record.plan
        place, _ = self.facts
        try:
            template = place.templates[dialect, True]
        except KeyError:
            template = plan.template(place, dialect, TraceType.PUB, _VARYING)
        start_ms = record.start_ns // NS_PER_MS
        cost_ms = self.end_ns // NS_PER_MS - start_ms
        if template is None or not 0 <= cost_ms < _MAX_COST_MS:
            return None
        text, pick = template
        msg_id = record.msg_id
        body = text % pick((start_ms, msg_id, f"{place.offset_id}{self.offset}", record.body_length or 0, cost_ms))
        return plan.group, body.encode(), (msg_id,)

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message in pieces; ``None`` where the span must be read instead."""
        if not PARTS.isdisjoint(self.__dict__):
            return None
        record = self.record
        place, request_id = self.facts
        start_ms = record.start_ns // NS_PER_MS
        cost_ms = self.end_ns // NS_PER_MS - start_ms
        message, request = record.msg_id.encode(), request_id.encode()
        offset_id = f"{place.offset_id}{self.offset}".encode("utf-8", "replace")
        parent = record.parent
        parts = self.otlp_head(None if parent is None else parent.span_id.to_bytes(8, "big"))
        parts += (
            place.attributes,
            _MSG_ID[len(message)],
            message,
            _BODY_SIZE[record.body_length or 0],
            _offset(self.offset),
            _OFFSET_ID[len(offset_id)],
            offset_id,
            _COST[cost_ms],
            _REQUEST_ID[len(request)],
            request,
            _store_time(start_ms + cost_ms // 2),
        )
        if record.has_rare_fields:
            attributes = record.plan.make_attributes(self)
            parts.append(encode_attributes({name: attributes[name] for name in _RARE if name in attributes}))
        parts.append(LOCAL_PARENT if parent is None or not parent.is_remote else REMOTE_PARENT)
        return parts
