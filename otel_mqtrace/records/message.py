"""Read a message's headers, key and position: the ids of its trace, its attributes, and the OTLP bytes of some."""

from __future__ import annotations

import re
from binascii import unhexlify
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Final

from otel_mqtrace import semconv
from otel_mqtrace.model import MessageType
from otel_mqtrace.spans.mapping import Attributes, keys_attribute
from otel_mqtrace.wire.otlp.protobuf import TEXT_VALUE, BoundedCache, attribute_heads, number_attribute

HeaderValue = bytes | str | None
Header = tuple[str, HeaderValue]
Headers = Sequence[Header]
HeaderIndex = Mapping[str, HeaderValue]
"""Name → its last value that is not ``None``."""
DESCRIBING: Final = frozenset({semconv.HEADER_TAGS, semconv.HEADER_KEYS})
"""Headers about the message, not about its trace."""
MAX_COST_MS: Final = 1 << 31
"""The cost of a native record, a Java ``int``, is less."""
_DELAY: Final = MessageType.DELAY.value
_SPAN_ATTRIBUTE: Final = 9
MSG_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MESSAGING_MESSAGE_ID, TEXT_VALUE)
REQUEST_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MQTRACE_REQUEST_ID, TEXT_VALUE)
OFFSET_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MQTRACE_OFFSET_MSG_ID, TEXT_VALUE)
"""What stands before an id in a ``Span``, by the id's length in bytes."""
encode_offset: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MESSAGING_KAFKA_OFFSET)
encode_store_time: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MQTRACE_STORE_TIME)
COST: Final = BoundedCache(number_attribute(_SPAN_ATTRIBUTE, semconv.MQTRACE_COST_TIME))
BODY_SIZE: Final = BoundedCache(number_attribute(_SPAN_ATTRIBUTE, semconv.MESSAGING_MESSAGE_BODY_SIZE))
"""Number → its attribute in a ``Span``."""


def header_text(headers: HeaderIndex, name: str) -> str | None:
    """Return the value of ``name`` as text, or ``None``; bytes that are not UTF-8 are replaced."""
    value = headers.get(name)
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)


def key_text(key: object) -> str | None:
    """Return a key that is text, UTF-8 or a number as text; ``None`` for any other, as the conventions require."""
    if isinstance(key, str):
        return key
    try:
        if type(key) is int or type(key) is float:
            return str(key)
        return key.decode() if isinstance(key, (bytes, bytearray)) else None
    except ValueError:  # not UTF-8, or more digits than Python prints
        return None


def add_header_fields(attributes: Attributes, headers: HeaderIndex) -> None:
    """Add RocketMQ's own headers: tags, keys, delay."""
    if (tags := header_text(headers, semconv.HEADER_TAGS)) is not None:
        attributes[semconv.MQTRACE_TAGS] = tags
    keys = header_text(headers, semconv.HEADER_KEYS)
    if keys is not None and (split := keys_attribute(keys)) is not None:
        attributes[semconv.MQTRACE_KEYS] = split
    if semconv.HEADER_DELAY in headers:
        attributes[semconv.MQTRACE_MSG_TYPE] = _DELAY


def position_attributes(topic: str, partition: int | None, offset: int | None) -> Attributes:
    """Return partition, offset and ``{topic}-{partition}@{offset}``, as far as known."""
    attributes: Attributes = {}
    if offset is not None and offset >= 0:
        attributes[semconv.MESSAGING_KAFKA_OFFSET] = offset
    if partition is not None and partition >= 0:
        attributes[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(partition)
        if offset is not None and offset >= 0:
            attributes[semconv.MQTRACE_OFFSET_MSG_ID] = f"{topic}-{partition}@{offset}"
    return attributes


def rare_attributes(key: object, headers: HeaderIndex, body_length: int | None) -> Attributes:
    """Return the attributes that most messages lack: key, tombstone (a body without length), tags and keys."""
    attributes: Attributes = {}
    if key is not None and (text := key_text(key)) is not None:
        attributes[semconv.MESSAGING_KAFKA_MESSAGE_KEY] = text
    if body_length is None:
        attributes[semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE] = True
    if headers:
        add_header_fields(attributes, headers)
    return attributes


# -- trace context ---------------------------------------------------------------------------------------------
_ORIGIN: Final = Struct("x16s8sx")
_PLAIN: Final = rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-0([0-3])"
match_traceparent: Final = re.compile(_PLAIN).fullmatch
"""Match a plain ``traceparent``: trace id, span id and flags as hexadecimal digits."""
_match_several: Final = re.compile(b"(?:%b)+" % _PLAIN).fullmatch
_TRACEPARENT_BYTES: Final = 55


def read_traceparent(header: object) -> tuple[bytes, int] | None:
    """Return ids (24 bytes) and flags of a plain ``traceparent``; ``None`` where the propagator has to read it."""
    plain = match_traceparent(header) if type(header) is bytes else None
    if plain is None:
        return None
    trace_id, span_id, flags = plain.groups()
    return unhexlify(trace_id + span_id), flags[0] & 3


def read_origins(headers: Sequence[bytes | None]) -> list[tuple[bytes, bytes] | None] | None:
    """Return trace id and span id of plain ``traceparent`` headers (absent: ``None``); ``None`` if one is not plain."""
    present = [header for header in headers if header is not None]
    raw = _unhexlify_plain(b"".join(present)) if set(map(len, present)) <= {_TRACEPARENT_BYTES} else None
    if raw is None:
        return None
    ids = _ORIGIN.iter_unpack(raw)
    if len(present) == len(headers):
        return list(ids)
    return [None if header is None else next(ids) for header in headers]


def _unhexlify_plain(joined: bytes) -> bytes | None:
    """Return version, trace id, span id and flags, 26 bytes each, of plain headers; ``None`` if one is not plain."""
    dashes = b"-" * (len(joined) // _TRACEPARENT_BYTES)
    if any(joined[at::_TRACEPARENT_BYTES] != dashes for at in (2, 35, 52)) or joined != joined.lower():
        return None
    try:
        raw = unhexlify(joined.translate(None, b"-"))
    except ValueError:
        return None
    if len(raw) != 26 * len(dashes) or raw[::26].strip(b"\0") or raw[25::26].strip(b"\0\1\2\3"):
        return None
    # an id of zeros is not valid; the expression for all headers would be a twentieth of a batch's cost
    return raw if bytes(8) not in raw or _match_several(joined) else None
