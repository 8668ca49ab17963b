"""This module knows how protobuf writes a field, and OpenTelemetry's messages an attribute.

Only what spans are written with (https://protobuf.dev/programming-guides/encoding). Nothing is read here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from bridge.forwarder.answers import Answers

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.util.types import AttributeValue

__all__ = [
    "ARRAY_VALUE",
    "FIXED32",
    "FIXED64",
    "TEXT_VALUE",
    "VARINT",
    "attribute",
    "attribute_heads",
    "delimited",
    "tag",
    "text_bytes",
    "texts",
    "varint",
]

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
"""Wire types."""
TEXT_VALUE, BOOL_VALUE, INT_VALUE, ARRAY_VALUE = 1, 2, 3, 5
"""Fields of ``AnyValue``."""
_INT64: Final = 1 << 63
_UINT64: Final = 1 << 64


@lru_cache(maxsize=4_096)
def varint(number: int) -> bytes:
    """Return ``number``, an int64, seven bits to a byte."""
    number %= _UINT64
    written = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        written.append(number & 0x7F | 0x80)
        number >>= 7
    written.append(number)
    return bytes(written)


@lru_cache(maxsize=256)
def tag(field: int, wire_type: int = DELIMITED) -> bytes:
    """Return what stands before the value of ``field``."""
    return varint(field << 3 | wire_type)


def delimited(field: int, value: bytes) -> bytes:
    """Return ``field`` with a text, some bytes or a message."""
    return tag(field) + varint(len(value)) + value


def text_bytes(text: str) -> bytes:
    """Return ``text`` in UTF-8, with a question mark for each character that it cannot carry."""
    return text.encode("utf-8", "replace")


def texts(each: Iterable[str]) -> bytes:
    """Return the ``ArrayValue`` of several texts."""
    written: list[bytes] = []
    for text in each:
        value = text_bytes(text)
        written += (_item_head(len(value)), value)
    return b"".join(written)


@lru_cache(maxsize=1_024)
def _item_head(length: int) -> bytes:
    any_value = tag(TEXT_VALUE) + varint(length)
    return tag(1) + varint(len(any_value) + length) + any_value


def attribute(field: int, name: str, value: AttributeValue) -> bytes:
    """Return the ``KeyValue`` in ``field``; nothing for a number that int64 cannot say."""
    if isinstance(value, bool):
        any_value = tag(BOOL_VALUE, VARINT) + varint(value)
    elif isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            return b""
        any_value = tag(INT_VALUE, VARINT) + varint(value)
    elif isinstance(value, str):
        any_value = delimited(TEXT_VALUE, text_bytes(value))
    elif isinstance(value, tuple):
        any_value = delimited(ARRAY_VALUE, texts(map(str, value)))
    else:
        raise TypeError(f"{name} is a {type(value).__name__}, which no record has")
    return delimited(field, delimited(1, text_bytes(name)) + delimited(2, any_value))


def attribute_heads(field: int, name: str, any_value_field: int) -> Answers[int, bytes]:
    """Return, by the length of a value in bytes, what stands before it."""
    key = delimited(1, text_bytes(name))

    def head(length: int) -> bytes:
        any_value = tag(any_value_field) + varint(length)
        whole = key + tag(2) + varint(len(any_value) + length) + any_value
        return tag(field) + varint(len(whole) + length) + whole

    return Answers(head)
