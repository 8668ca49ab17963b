"""Messages as RocketMQ stores them: layout, properties, compressed bodies. No I/O."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from otel_mqtrace._errors import MissingExtraError
from otel_mqtrace.rocketmq.commands import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

COMPRESSED: Final = 0x1
_BORN_V6, _STORE_V6 = 0x10, 0x20
_COMPRESSION_SHIFT, _COMPRESSION_MASK = 8, 0x7
_ZLIB: Final = 3
_MAGIC_V1: Final = 0xDAA320A7
_MAGIC_V2: Final = 0xDAA320AB
"""Topic names above 127 bytes."""
# As MessageDecoder of apache/rocketmq, 4.x and 5.x; offsets in bytes:
# 0 total · 4 magic · 8 body CRC · 12 queue id · 16 flag · 20 queue offset · 28 physical offset · 36 sysFlag
# 40 born time · 48 born host (4 or 16, and port 4) · store time 8 · store host · reconsume times 4
# prepared transaction's offset 8 · body length 4 · body · topic length (1; version 2: 2) · topic
# properties length 2 · properties
_HEAD: Final = struct.Struct(">IIIiiqqIq")
_TIME: Final = struct.Struct(">q")
_COUNTS: Final = struct.Struct(">iqI")  # reconsume times, prepared transaction's offset, body length
_TOPIC_LENGTH: Final = {_MAGIC_V1: struct.Struct(">B"), _MAGIC_V2: struct.Struct(">H")}
_PROPERTIES_LENGTH: Final = struct.Struct(">H")
_HOST_BYTES: Final = (8, 20)  # IPv4, IPv6
_NAME_END: Final = "\x01"
_PROPERTY_END: Final = "\x02"
_COMPRESS_FROM_BYTES: Final = 4_096
"""From here on Java's producer compresses, too."""
_COMPRESS_LEVEL: Final = 5
_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Brokers take 4 MiB by default: what inflates beyond this is an attack or garbage."""


class BodyError(ProtocolError):
    """A body that cannot be decompressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """One stored message; ``store_ms`` is epoch milliseconds."""

    topic: str
    queue_id: int
    queue_offset: int
    sys_flag: int
    store_ms: int
    properties: Mapping[str, str]
    stored_body: bytes


def decode_messages(data: bytes) -> list[StoredMessage]:
    """Return the consecutive messages in ``data``.

    Raises:
        ProtocolError: the data is malformed; nothing is returned then.
    """
    messages: list[StoredMessage] = []
    start = 0
    while start < len(data):
        try:
            message, start = _decode(data, start)
        except struct.error as error:
            raise ProtocolError(f"the stored message at byte {start} of {len(data)} is cut off") from error
        messages.append(message)
    return messages


def _decode(data: bytes, start: int) -> tuple[StoredMessage, int]:
    """Return the message at ``start`` and where the next one begins.

    Raises:
        struct.error: there are fewer bytes than announced.
    """
    size, magic, _, queue_id, _, queue_offset, _, sys_flag, _ = _HEAD.unpack_from(data, start)
    if magic not in _TOPIC_LENGTH:
        raise ProtocolError(f"the bytes at {start} begin with {magic:08X}, which no stored message does")
    end = start + size
    if not start + _HEAD.size <= end <= len(data):
        raise struct.error
    at = start + _HEAD.size + _HOST_BYTES[bool(sys_flag & _BORN_V6)]
    (store_ms,) = _TIME.unpack_from(data, at)
    at += _TIME.size + _HOST_BYTES[bool(sys_flag & _STORE_V6)]
    _, _, body_length = _COUNTS.unpack_from(data, at)
    body, at = _read_part(data, at + _COUNTS.size, body_length, end)
    topic, at = _read_counted(data, at, end, _TOPIC_LENGTH[magic])
    properties, at = _read_counted(data, at, end, _PROPERTIES_LENGTH)
    return StoredMessage(
        topic=topic.decode("utf-8", "replace"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        sys_flag=sys_flag,
        store_ms=store_ms,
        properties=decode_properties(properties.decode("utf-8", "replace")),
        stored_body=body,
    ), end


def _read_part(data: bytes, start: int, length: int, end: int) -> tuple[bytes, int]:
    if start + length > end:
        raise struct.error
    return data[start : start + length], start + length


def _read_counted(data: bytes, start: int, end: int, counter: struct.Struct) -> tuple[bytes, int]:
    (length,) = counter.unpack_from(data, start)
    return _read_part(data, start + counter.size, length, end)


# -- properties -------------------------------------------------------------------------------------------------------


def decode_properties(text: str) -> dict[str, str]:
    """Return the properties of ``text`` by name; what has no name or no value is passed over, as in Java."""
    pairs = (each.partition(_NAME_END) for each in text.split(_PROPERTY_END))
    return {name: value for name, _, value in pairs if name and value}


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return ``properties`` as a broker wants them; separators inside are written as ``_``."""
    return "".join(f"{_clean(name)}{_NAME_END}{_clean(value)}{_PROPERTY_END}" for name, value in properties.items())


def _clean(text: str) -> str:
    return text.replace(_NAME_END, "_").replace(_PROPERTY_END, "_")


# -- bodies -----------------------------------------------------------------------------------------------------------


def compress_body(body: bytes) -> tuple[bytes, int]:
    """Return ``body`` as it is sent, and its sysFlag: zlib from 4 096 bytes on if that makes it smaller."""
    if len(body) < _COMPRESS_FROM_BYTES:
        return body, 0
    smaller = zlib.compress(body, _COMPRESS_LEVEL)
    return (smaller, COMPRESSED | _ZLIB << _COMPRESSION_SHIFT) if len(smaller) < len(body) else (body, 0)


def decompress_body(message: StoredMessage) -> bytes:
    """Return the body as it was sent.

    Raises:
        BodyError: it cannot be decompressed.
        MissingExtraError: it was compressed by lz4 or zstd, and pyarrow is not installed.
    """
    if not message.sys_flag & COMPRESSED:
        return message.stored_body
    kind = message.sys_flag >> _COMPRESSION_SHIFT & _COMPRESSION_MASK
    if kind not in _DECOMPRESSORS:
        raise BodyError(f"{_describe_place(message)} is compressed in a way ({kind}) that is not known")
    try:
        return _DECOMPRESSORS[kind](message.stored_body)
    except (zlib.error, OSError, ValueError) as error:
        raise BodyError(f"{_describe_place(message)} cannot be decompressed: {error}") from error


def _describe_place(message: StoredMessage) -> str:
    return f"the body of {message.topic} [{message.queue_id}] offset {message.queue_offset}"


def _inflate(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    plain = stream.decompress(body, _MAX_BODY_BYTES)
    if not stream.eof:
        raise ValueError(f"it is cut off, or larger than {_MAX_BODY_BYTES} bytes")
    return plain


def _make_decompressor(codec: Literal["lz4", "zstd"]) -> Callable[[bytes], bytes]:
    def plain(body: bytes) -> bytes:
        try:
            import pyarrow as pa  # noqa: PLC0415 - optional extra; only producers set to lz4 or zstd need it
        except ImportError as error:
            raise MissingExtraError(f"a RocketMQ message compressed by {codec}", "reconcile") from error
        stream: Any = pa.CompressedInputStream(pa.BufferReader(body), codec)
        with stream:
            inflated: bytes = stream.read(_MAX_BODY_BYTES + 1)
        if len(inflated) > _MAX_BODY_BYTES:
            raise ValueError(f"it is larger than {_MAX_BODY_BYTES} bytes")
        return inflated

    return plain


_DECOMPRESSORS: Final[Mapping[int, Callable[[bytes], bytes]]] = {
    0: _inflate,  # before 5.0 there was no other
    1: _make_decompressor("lz4"),
    2: _make_decompressor("zstd"),
    _ZLIB: _inflate,
}
