"""One successful send: its record, and the native record and OTLP bytes derived from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.records.message import (
    BODY_SIZE,
    COST,
    MAX_COST_MS,
    MSG_ID,
    OFFSET_ID,
    REQUEST_ID,
    encode_offset,
    encode_store_time,
    rare_attributes,
)
from otel_mqtrace.records.span import LOCAL_PARENT, PARTS, REMOTE_PARENT, NativeRecord, RecordSpan
from otel_mqtrace.wire.otlp.sdk_spans import encode_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.trace import SpanContext, TraceState

    from otel_mqtrace.records.plan import Place, Plan
    from otel_mqtrace.spans.mapping import Attributes


_SUCCESS: Final = {semconv.MQTRACE_SUCCESS: True}
_ENCODED_SUCCESS: Final = encode_attributes(_SUCCESS)


class Sent(NamedTuple):
    """One message between ``produce()`` and its delivery report.

    ``ids`` are trace id and span id, 24 bytes. ``parent`` is the span it was sent under, ``current_ctx`` the context.
    ``body_length`` is in bytes, ``None`` for a tombstone. ``headers`` are those that describe the message (``TAGS``,
    ``KEYS``). ``generation`` counts the forks before it: a child does not end what its parent sent.
    ``chosen_partition`` is the caller's choice, of whatever type.
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
    chosen_partition: object

    @property
    def trace_state(self) -> TraceState | None:
        """The parent's, as the SDK's samplers have it."""
        return None if self.parent is None else self.parent.trace_state

    @property
    def own_attributes(self) -> Attributes:
        """The producer's attributes of this message alone."""
        attributes = rare_attributes(self.key, self.headers, self.body_length)
        attributes[semconv.MESSAGING_MESSAGE_ID] = self.msg_id
        attributes[semconv.MESSAGING_MESSAGE_BODY_SIZE] = self.body_length or 0
        return attributes


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
        place, request_id = self.facts
        start_ms = record.start_ns // NS_PER_MS
        cost_ms = self.end_ns // NS_PER_MS - start_ms
        return {
            **place.named,
            **record.own_attributes,
            **_SUCCESS,
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
        place, _ = self.facts
        template = place.templates[dialect, True]
        start_ms = record.start_ns // NS_PER_MS
        cost_ms = self.end_ns // NS_PER_MS - start_ms
        if template is None or not 0 <= cost_ms < MAX_COST_MS:
            return None
        text, pick = template
        msg_id = record.msg_id
        body = text % pick((start_ms, msg_id, f"{place.offset_id}{self.offset}", record.body_length or 0, cost_ms))
        return record.plan.group, body.encode(), (msg_id,)

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
            MSG_ID[len(message)],
            message,
            BODY_SIZE[record.body_length or 0],
            encode_offset(self.offset),
            OFFSET_ID[len(offset_id)],
            offset_id,
            COST[cost_ms],
            REQUEST_ID[len(request)],
            request,
            encode_store_time(start_ms + cost_ms // 2),
            _ENCODED_SUCCESS,
        )
        if rare := rare_attributes(record.key, record.headers, record.body_length):
            parts.append(encode_attributes(rare))
        parts.append(LOCAL_PARENT if parent is None or not parent.is_remote else REMOTE_PARENT)
        return parts
