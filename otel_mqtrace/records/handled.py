"""One message and its handling: the tuple recorded of it, and the native records and OTLP bytes that follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.trace import SpanContext

from otel_mqtrace import semconv
from otel_mqtrace.model import TraceType
from otel_mqtrace.records.span import LOCAL_PARENT, REMOTE_PARENT, NativeRecord, RecordSpan, flags_of
from otel_mqtrace.wire.otlp.protobuf import (
    FIXED32,
    TEXT_VALUE,
    attribute_heads,
    number_attribute,
    tag,
    varint,
)
from otel_mqtrace.wire.otlp.sdk_spans import encode_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from otel_mqtrace.records.plan import Plan

__all__ = ["DESCRIBING", "VARYING", "Handled", "HandledSpan"]

_SPAN_ATTRIBUTE: Final = 9
VARYING: Final = ("timestamp_ms", "msg_id", "request_id", "cost_ms", "offset_msg_id", "body_length")
_NS_PER_MS: Final = 1_000_000
_MAX_COST_MS: Final = 1 << 31
_MSG_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MESSAGING_MESSAGE_ID, TEXT_VALUE)
_REQUEST_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MQTRACE_REQUEST_ID, TEXT_VALUE)
_OFFSET_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MQTRACE_OFFSET_MSG_ID, TEXT_VALUE)
_offset: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MESSAGING_KAFKA_OFFSET)
_store_time: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MQTRACE_STORE_TIME)
_cost: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MQTRACE_COST_TIME)
_body_size: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MESSAGING_MESSAGE_BODY_SIZE)
_LINK_TRACE_ID, _LINK_SPAN_ID = tag(1) + varint(16), tag(2) + varint(8)
_LINK_FLAGS: Final = tag(6, FIXED32) + (0x300).to_bytes(4, "little")
_LINK: Final = tag(13) + varint(len(_LINK_TRACE_ID) + 16 + len(_LINK_SPAN_ID) + 8 + len(_LINK_FLAGS))
DESCRIBING: Final = frozenset({semconv.HEADER_TAGS, semconv.HEADER_KEYS})
"""Headers that say something of the message and nothing of its trace."""
_NOTHING: Final[dict[str, Any]] = {}
_SUCCESS: Final = encode_attributes({semconv.MQTRACE_SUCCESS: True, semconv.MQTRACE_CONTEXT_CODE: "SUCCESS"})
_RARE: Final = (
    semconv.MESSAGING_KAFKA_MESSAGE_KEY,
    semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
    semconv.MQTRACE_TAGS,
    semconv.MQTRACE_KEYS,
)


class Handled(NamedTuple):
    """One message from the poll that returned it until the application is done with it.

    ``ids`` are trace id and span id, 24 bytes; ``origin`` are those of the send it came from, its parent and link.
    ``timestamp_ms`` is when it was stored, ``body_length`` in bytes, ``None`` for a tombstone. ``found`` are its
    headers by name. ``cell`` keeps what is worked out once for its start, its end and every exporter.
    """

    plan: Plan
    ids: bytes
    origin: bytes | None
    flags: int
    start_ns: int
    partition: int
    offset: int
    timestamp_ms: int | None
    body_length: int | None
    key: bytes | None
    found: Mapping[str, Any]
    cell: dict[str, tuple[str | None, str | None, str]]
    origin_flags: int = 0

    def without_message(self) -> Handled:
        """Return it without headers and key: it may be remembered for long, and its ids are all that is needed."""
        return Handled(*self[:9], None, _NOTHING, _NOTHING, self.origin_flags)

    @property
    def parent_span_id(self) -> bytes | None:
        """The parent's span id, 8 bytes."""
        return None if self.origin is None else self.origin[16:]

    @property
    def parent(self) -> SpanContext | None:
        """The send's span context, which has the flags of this one."""
        origin = self.origin
        if origin is None:
            return None
        trace_id, span_id = int.from_bytes(origin[:16], "big"), int.from_bytes(origin[16:], "big")
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags_of(self.origin_flags))

    @property
    def facts(self) -> tuple[str | None, str | None, str]:
        """Store host, cluster id, request id: the same for all who ask, as of the first of them."""
        known = self.cell.get("")
        return self.cell.setdefault("", self.plan.facts_of(self.partition)) if known is None else known


class HandledSpan(RecordSpan):
    """The process span of one message, started (``end_ns`` is ``None``) or ended with success."""

    record: Handled

    @property
    def _made(self) -> tuple[dict[str, Any], Sequence[Any]]:
        made: tuple[dict[str, Any], Sequence[Any]] | None = self.__dict__.get("_both")
        if made is None:
            made = self.__dict__.setdefault("_both", self.record.plan.make_attributes(self))
        return made

    def make_attributes(self) -> dict[str, Any]:
        """Return all attributes."""
        return self._made[0]

    def make_links(self) -> Sequence[Any]:
        """Return the link to the send."""
        return self._made[1]

    def to_native(self, dialect: str) -> NativeRecord | None:
        """Return its ``SubBefore`` or ``SubAfter``; ``None`` where the span must be mapped and encoded as any other."""
        record = self.record
        found = record.found
        if not self.is_untouched or not DESCRIBING.isdisjoint(found):
            return None
        plan, end_ns = record.plan, self.end_ns
        store_host, cluster_id, request_id = record.facts
        place = plan.place(record.partition, store_host, cluster_id)
        start_ms = record.start_ns // _NS_PER_MS
        if end_ns is None:
            trace_type, stamp_ms, cost_ms = TraceType.SUB_BEFORE, start_ms, 0
        else:
            trace_type, stamp_ms = TraceType.SUB_AFTER, end_ns // _NS_PER_MS
            cost_ms = stamp_ms - start_ms
        template = plan.template(place, dialect, trace_type, VARYING)
        offset_id = f"{place.offset_id}{record.offset}"
        msg_id = _unique_id(found) or offset_id
        if template is None or not 0 <= cost_ms < _MAX_COST_MS or not msg_id.isprintable() or not msg_id.isascii():
            return None
        text, order = template
        values = (stamp_ms, msg_id, request_id, cost_ms, offset_id, record.body_length or 0)
        body = text % tuple([values[each] for each in order])
        return NativeRecord(plan.topic, str(plan.region_id), body.encode(), frozenset((msg_id,)))

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message in pieces; ``None`` where the span must be read instead."""
        end_ns = self.end_ns
        if end_ns is None or not self.is_untouched:
            return None
        record = self.record
        found, origin = record.found, record.origin
        store_host, cluster_id, request_id = record.facts
        place = record.plan.place(record.partition, store_host, cluster_id)
        offset_id = f"{place.offset_id}{record.offset}".encode("utf-8", "replace")
        unique_id = _unique_id(found)
        message = offset_id if not unique_id else unique_id.encode("utf-8", "replace")
        request = request_id.encode()
        parts = self.otlp_head()
        parts += (
            place.attributes,
            _offset(record.offset),
            _OFFSET_ID[len(offset_id)],
            offset_id,
            _MSG_ID[len(message)],
            message,
            _body_size(record.body_length or 0),
            _REQUEST_ID[len(request)],
            request,
            _cost(end_ns // _NS_PER_MS - record.start_ns // _NS_PER_MS),
            _SUCCESS,
        )
        if record.timestamp_ms is not None:
            parts.append(_store_time(record.timestamp_ms))
        if record.key is not None or record.body_length is None or not DESCRIBING.isdisjoint(found):
            attributes = self._made[0]
            parts.append(encode_attributes({name: attributes[name] for name in _RARE if name in attributes}))
        if origin is None:
            parts.append(LOCAL_PARENT)
        else:
            parts += (_LINK, _LINK_TRACE_ID, origin[:16], _LINK_SPAN_ID, origin[16:], _LINK_FLAGS, REMOTE_PARENT)
        return parts


def _unique_id(found: Mapping[str, Any]) -> str | None:
    """Return the message id of the header, as ``header_text`` reads it."""
    value = found.get(semconv.HEADER_UNIQ_KEY)
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)
