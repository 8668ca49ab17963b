"""One message and its handling: its record, and the native records and OTLP bytes derived from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.trace import Link

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.model import ContextCode
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
from otel_mqtrace.records.span import (
    LOCAL_PARENT,
    PARTS,
    REMOTE_PARENT,
    NativeRecord,
    WritableRecordSpan,
    context_of,
    new_tuple,
)
from otel_mqtrace.spans.mapping import compute_cost_ms
from otel_mqtrace.wire.otlp.protobuf import tag, varint
from otel_mqtrace.wire.otlp.sdk_spans import LINK_FLAGS, SPAN_ID, TRACE_ID, encode_attributes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.trace import SpanContext, TraceState

    from otel_mqtrace.records.plan import Place, Plan


_LINK: Final = tag(13) + varint(len(TRACE_ID + SPAN_ID + LINK_FLAGS[True]) + 24) + TRACE_ID
_LINK_END: Final = LINK_FLAGS[True] + REMOTE_PARENT
_SUCCESS: Final = encode_attributes({semconv.MQTRACE_SUCCESS: True, semconv.MQTRACE_CONTEXT_CODE: "SUCCESS"})


MessageRow = tuple[int, int, "int | None", "int | None", "bytes | None"]
"""Partition, offset, when it was stored in ms, body length (``None``: a tombstone) and key of one message."""


class Handled(NamedTuple):
    """One message from the poll that returned it until the application is done with it.

    ``ids`` are trace id and span id, 24 bytes; ``origin`` those of its send, which is its parent and link.
    ``timestamp_ms`` is when it was stored, ``body_length`` in bytes, ``None`` for a tombstone. ``unique_id`` is its
    header's; ``headers`` are those that describe it (``TAGS``, ``KEYS``): the others, most of its memory, are not kept.
    ``shared`` keeps what its start, its end and every exporter share.
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
    unique_id: Any
    headers: Mapping[str, Any]
    shared: dict[str, _Details]
    origin_flags: int = 0
    trace_state: TraceState | None = None

    def started_span(self) -> HandledSpan:
        """Return the span as it was when the message was handed over."""
        return HandledSpan(self)

    def to_native(self, dialect: str) -> NativeRecord | None:
        """Return its ``SubBefore``; ``None`` where the started span must be mapped and encoded as any other."""
        return _to_native(self, None, dialect)

    @property
    def parent(self) -> SpanContext | None:
        """The send's span context."""
        origin = self.origin
        return None if origin is None else context_of(origin, self.origin_flags, self.trace_state, remote=True)

    @property
    def details(self) -> _Details:
        """What its start, its end and every exporter share: derived by the first of them."""
        known = self.shared.get("details")
        if known is None:
            plan, msg_id = self.plan, self.unique_id
            place = plan.place_of(self.partition)
            if msg_id is not None:  # as header_text() reads it
                is_bytes = isinstance(msg_id, (bytes, bytearray))
                msg_id = msg_id.decode("utf-8", "replace") if is_bytes else str(msg_id)
            msg_id = msg_id or f"{place.offset_id}{self.offset}"
            is_plain = not self.headers and msg_id.isascii() and msg_id.isprintable()
            known = self.shared.setdefault("details", new_tuple(_Details, (place, plan.new_id(), msg_id, is_plain)))
        return known


class _Details(NamedTuple):
    """What is derived from a record; unless it ``is_plain``, a native record has to be encoded as a whole."""

    place: Place
    request_id: str
    msg_id: str
    is_plain: bool


def outcome_attributes(
    start_ns: int, end_ns: int | None, messages: int = 1, code: ContextCode = ContextCode.SUCCESS
) -> dict[str, Any]:
    """Return the attributes of an end; none of a span that is open."""
    if end_ns is None:
        return {}
    return {
        semconv.MQTRACE_COST_TIME: compute_cost_ms(start_ns, end_ns, messages),
        semconv.MQTRACE_SUCCESS: code is ContextCode.SUCCESS or code is ContextCode.TIME_OUT,
        semconv.MQTRACE_CONTEXT_CODE: code.name,
    }


class HandledSpan(WritableRecordSpan):
    """The process span of one message, started (``end_ns`` is ``None``) or ended with success."""

    record: Handled

    def make_attributes(self) -> dict[str, Any]:
        """Return all attributes, with the outcome where it has ended."""
        record = self.record
        place, request_id, msg_id, _ = record.details
        attributes = {
            **place.named,
            semconv.MESSAGING_KAFKA_OFFSET: record.offset,
            semconv.MQTRACE_OFFSET_MSG_ID: f"{place.offset_id}{record.offset}",
            semconv.MESSAGING_MESSAGE_ID: msg_id,
            semconv.MESSAGING_MESSAGE_BODY_SIZE: record.body_length or 0,
            semconv.MQTRACE_REQUEST_ID: request_id,
        }
        if record.timestamp_ms is not None:
            attributes[semconv.MQTRACE_STORE_TIME] = record.timestamp_ms
        rare = rare_attributes(record.key, record.headers, record.body_length)
        return attributes | rare | outcome_attributes(record.start_ns, self.end_ns)

    def make_links(self) -> Sequence[Link]:
        """Return the link to the send."""
        known: Sequence[Link] | None = self.__dict__.get("_made_links")
        if known is None:
            parent = self._make_parent()
            known = self.__dict__["_made_links"] = () if parent is None else (Link(parent, {}),)
        return known

    def to_native(self, dialect: str) -> NativeRecord | None:
        """Return its ``SubBefore`` or ``SubAfter``; ``None`` where the span must be mapped and encoded as any other."""
        return _to_native(self.record, self.end_ns, dialect) if PARTS.isdisjoint(self.__dict__) else None

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message in pieces; ``None`` where the span must be read instead."""
        end_ns = self.end_ns
        if end_ns is None or not PARTS.isdisjoint(self.__dict__):
            return None
        record = self.record
        origin = record.origin
        place, request_id, msg_id, _ = record.shared.get("details") or record.details
        offset_id = f"{place.offset_id}{record.offset}".encode("utf-8", "replace")
        message, request = msg_id.encode("utf-8", "replace"), request_id.encode()
        parent_id = None if origin is None else origin[16:]
        parts = self.otlp_head(parent_id)
        parts += (
            place.attributes,
            encode_offset(record.offset),
            OFFSET_ID[len(offset_id)],
            offset_id,
            MSG_ID[len(message)],
            message,
            BODY_SIZE[record.body_length or 0],
            REQUEST_ID[len(request)],
            request,
            COST[end_ns // NS_PER_MS - record.start_ns // NS_PER_MS],
            _SUCCESS,
        )
        if record.timestamp_ms is not None:
            parts.append(encode_store_time(record.timestamp_ms))
        if rare := rare_attributes(record.key, record.headers, record.body_length):
            parts.append(encode_attributes(rare))
        if origin is None or parent_id is None:
            parts.append(LOCAL_PARENT)
        else:
            parts += (_LINK, origin[:16], SPAN_ID, parent_id, _LINK_END)
        return parts


def _to_native(record: Handled, end_ns: int | None, dialect: str) -> NativeRecord | None:
    place, request_id, msg_id, is_plain = record.shared.get("details") or record.details
    if not is_plain:
        return None
    start_ms = record.start_ns // NS_PER_MS
    stamp_ms = start_ms if end_ns is None else end_ns // NS_PER_MS
    cost_ms = stamp_ms - start_ms
    template = place.templates[dialect, end_ns is not None]
    if template is None or not 0 <= cost_ms < MAX_COST_MS:
        return None
    text, pick = template
    body = text % pick((stamp_ms, msg_id, request_id, cost_ms))
    return record.plan.group, body.encode(), (msg_id,)
