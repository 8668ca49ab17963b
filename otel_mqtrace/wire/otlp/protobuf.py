"""Write protobuf (https://protobuf.dev/programming-guides/encoding), ``KeyValue`` and ``AnyValue``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_MAX_ENTRIES: Final = 4_096
_MAX_KEY_LENGTH: Final = 256
_K = TypeVar("_K")
_V = TypeVar("_V")


class BoundedCache(dict[_K, _V], Generic[_K, _V]):
    """Results of ``compute``, a function of one text or number; texts above 256 characters are not cached."""

    def __init__(self, compute: Callable[[_K], _V]) -> None:
        super().__init__()
        self._compute = compute

    def __missing__(self, key: _K) -> _V:
        value = self._compute(key)
        if not isinstance(key, str) or len(key) <= _MAX_KEY_LENGTH:
            if len(self) >= _MAX_ENTRIES:
                self.clear()
            self[key] = value
        return value


VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
"""Wire types."""
TEXT_VALUE, BOOL_VALUE, INT_VALUE, DOUBLE_VALUE, ARRAY_VALUE, KVLIST_VALUE, BYTES_VALUE = range(1, 8)
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


_BOOL: Final = tag(BOOL_VALUE, VARINT)
_INT: Final = tag(INT_VALUE, VARINT)
_DOUBLE: Final = tag(DOUBLE_VALUE, FIXED64)
_pack_double: Final = Struct("<d").pack


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


def any_value(value: object) -> bytes:  # noqa: PLR0911 - one for each kind of value
    """Return the ``AnyValue`` of a text, a flag, a number, bytes, ``None``, a sequence or a mapping of such.

    Raises:
        ValueError: an integer outside int64.
        TypeError: a value of any other kind.
    """
    if value is None:
        return b""
    if isinstance(value, bool):
        return _BOOL + varint(value)
    if isinstance(value, str):
        return delimited(TEXT_VALUE, text_bytes(value))
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise ValueError(f"{value} is outside int64")
        return _INT + varint(value)
    if isinstance(value, float):
        return _DOUBLE + _pack_double(value)
    if isinstance(value, bytes):
        return delimited(BYTES_VALUE, value)
    if isinstance(value, Sequence):
        return delimited(ARRAY_VALUE, b"".join([delimited(1, any_value(each)) for each in value]))
    if isinstance(value, Mapping):
        return delimited(KVLIST_VALUE, b"".join([attribute(1, str(name), each) for name, each in value.items()]))
    raise TypeError(f"OTLP has no value for a {type(value).__name__}")


def attribute(field: int, name: str, value: object) -> bytes:
    """Return the ``KeyValue`` in ``field``; raises as :func:`any_value` does."""
    return delimited(field, delimited(1, text_bytes(name)) + delimited(2, any_value(value)))


_BITS_7: Final = 1 << 7
_BITS_14: Final = 1 << 14
_LOW_BITS: Final = [bytes((low | 0x80, high | 0x80)) for high in range(_BITS_7) for low in range(_BITS_7)]
"""The first two bytes of a longer number, by its lower 14 bits: made once, they cost half."""


def number_attribute(field: int, name: str) -> Callable[[int], bytes]:
    """Return what writes the attribute ``name`` of an int64 that differs nearly each time.

    Only its upper bits are cached: those of milliseconds since 1970 change every 16 seconds.
    """
    key = delimited(1, text_bytes(name)) + tag(2)
    heads = [b""]
    for length in range(1, 11):
        value = varint(1 + length) + _INT
        heads.append(tag(field) + varint(len(key) + len(value) + length) + key + value)

    def beside(upper: int) -> tuple[bytes, bytes]:
        written = varint(upper)
        return heads[2 + len(written)], written

    two_bytes, longer = heads[2], BoundedCache(beside)

    def write(number: int) -> bytes:
        if number >= _BITS_14:
            head, upper = longer[number >> 14]
            return head + _LOW_BITS[number & _BITS_14 - 1] + upper
        if number >= _BITS_7:
            return two_bytes + bytes((number & 0x7F | 0x80, number >> 7))
        value = varint(number)
        return heads[len(value)] + value

    return write


def attribute_heads(field: int, name: str, any_value_field: int) -> BoundedCache[int, bytes]:
    """Return, by the length of a value in bytes, what stands before it."""
    key = delimited(1, text_bytes(name))

    def head(length: int) -> bytes:
        any_value = tag(any_value_field) + varint(length)
        whole = key + tag(2) + varint(len(any_value) + length) + any_value
        return tag(field) + varint(len(whole) + length) + whole

    return BoundedCache(head)
