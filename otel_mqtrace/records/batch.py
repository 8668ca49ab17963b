"""The native records and OTLP links of the messages of one batch, written without an object for each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace.wire.otlp.protobuf import (
    FIXED32,
    TEXT_VALUE,
    attribute,
    attribute_heads,
    number_attribute,
    tag,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mqtrace.wire.native.encode import RecordTemplate

__all__ = ["BatchMessage", "encode_links", "encode_records", "shared_attributes"]

_LINK_ATTRIBUTE: Final = 4
_NS_PER_MS: Final = 1_000_000
_MSG_ID: Final = attribute_heads(_LINK_ATTRIBUTE, semconv.MESSAGING_MESSAGE_ID, TEXT_VALUE)
_OFFSET_ID: Final = attribute_heads(_LINK_ATTRIBUTE, semconv.MQTRACE_OFFSET_MSG_ID, TEXT_VALUE)
_KEY: Final = attribute_heads(_LINK_ATTRIBUTE, semconv.MESSAGING_KAFKA_MESSAGE_KEY, TEXT_VALUE)
_offset: Final = number_attribute(_LINK_ATTRIBUTE, semconv.MESSAGING_KAFKA_OFFSET)
_LINK: Final = tag(13)
_TRACE_ID, _SPAN_ID = tag(1) + varint(16), tag(2) + varint(8)
_NO_CONTEXT: Final = bytes(24)
_LINK_FLAGS: Final = {
    is_remote: tag(6, FIXED32) + (0x300 if is_remote else 0x100).to_bytes(4, "little") for is_remote in (False, True)
}


class BatchMessage(NamedTuple):
    """One message of a batch. ``origin`` are the ids of its send, 24 bytes, if it carries any.

    The fields from ``partition`` on are said on the span when they are equal for all, else on the message's link.
    """

    msg_id: str
    offset: int
    offset_id: str
    key: str | None
    origin: bytes | None
    partition: str
    store_host: str | None
    timestamp_ms: int | None
    body_length: int | None
    is_tombstone: bool | None
    cluster_id: str | None


_SHAREABLE: Final = (
    (5, semconv.MESSAGING_DESTINATION_PARTITION_ID),
    (6, semconv.MQTRACE_STORE_HOST),
    (7, semconv.MQTRACE_STORE_TIME),
    (8, semconv.MESSAGING_MESSAGE_BODY_SIZE),
    (9, semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE),
    (10, semconv.MESSAGING_KAFKA_CLUSTER_ID),
    (2, semconv.MQTRACE_OFFSET_MSG_ID),
)


def shared_attributes(messages: Sequence[BatchMessage]) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    """Return what is equal for all messages, and which fields are not: position and attribute."""
    shared, own = {}, []
    for position, name in _SHAREABLE:
        first = messages[0][position]
        if all(each[position] == first for each in messages):
            if first is not None:
                shared[name] = first
        else:
            own.append((position, name))
    return shared, own


def encode_links(messages: Sequence[BatchMessage], own: Sequence[tuple[int, str]]) -> list[bytes]:
    """Return each message as a link of a ``Span``, with its ids and what it does not share with the others."""
    links: list[bytes] = []
    rest = [(position, name) for position, name in own if name != semconv.MQTRACE_OFFSET_MSG_ID]
    has_own_id = len(rest) < len(own)
    cache: dict[tuple[int, Any], bytes] = {}
    for message in messages:
        msg_id = message.msg_id.encode("utf-8", "replace")
        origin = message.origin
        ids = origin or _NO_CONTEXT
        parts = [_TRACE_ID, ids[:16], _SPAN_ID, ids[16:], _MSG_ID[len(msg_id)], msg_id, _offset(message.offset)]
        if has_own_id:
            offset_id = message.offset_id.encode("utf-8", "replace")
            parts += (_OFFSET_ID[len(offset_id)], offset_id)
        if message.key is not None:
            key = message.key.encode("utf-8", "replace")
            parts += (_KEY[len(key)], key)
        for position, name in rest:
            value = message[position]
            if value is not None:
                encoded = cache.get((position, value))
                if encoded is None:
                    encoded = cache[position, value] = attribute(_LINK_ATTRIBUTE, name, value)
                parts.append(encoded)
        parts.append(_LINK_FLAGS[origin is not None])
        link = b"".join(parts)
        links += (_LINK, varint(len(link)), link)
    return links


def encode_records(
    messages: Sequence[BatchMessage],
    template: RecordTemplate,
    *,
    stamp_ms: int,
    request_id: str,
    cost_ms: int,
) -> bytes:
    """Return the records of all messages; ``template`` takes the ``VARYING`` fields of a handled message."""
    text, pick = template
    records = []
    for message in messages:
        values = (stamp_ms, message.msg_id, request_id, cost_ms, message.offset_id, message.body_length or 0)
        records.append(text % pick(values))
    return "".join(records).encode()
