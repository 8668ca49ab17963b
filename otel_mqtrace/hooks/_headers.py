"""This module knows message headers as a list of pairs: read the last of a name, write exactly one.

The caller's object is never changed. Names are case-sensitive, values are bytes, text or ``None``. A name that
is no text is read as confluent-kafka writes it (``b"TAGS"`` reaches the broker as ``b'TAGS'``) and goes out as it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.propagators.textmap import Getter, Setter

from otel_mqtrace import semconv

__all__ = [
    "HEADER_GETTER",
    "HEADER_SETTER",
    "TELLING",
    "Header",
    "HeaderIndex",
    "HeaderValue",
    "Headers",
    "header_name",
    "header_text",
    "indexed",
    "pairs_of",
    "rewritten",
]

TELLING: Final = frozenset(
    {semconv.HEADER_UNIQ_KEY.lower(), semconv.HEADER_DELAY.lower(), "traceparent", "tracestate", "baggage"}
)
"""In lower case, headers that carry a trace, name a message or delay it."""
HeaderValue = bytes | str | None
Header = tuple[str, HeaderValue]
Headers = Sequence[Header]
HeaderIndex = Mapping[str, HeaderValue]
"""Name → its last value that is not ``None``: headers are gone through once, then asked many times."""


def pairs_of(headers: object) -> list[Header] | None:
    """Return a copy of ``headers`` as pairs, or ``None`` for what no client accepts (the client itself will say so)."""
    if headers is None:
        return []
    if isinstance(headers, Mapping):
        return list(headers.items())
    if not isinstance(headers, list):
        return None
    for pair in headers:
        if not isinstance(pair, tuple) or len(pair) != 2:  # noqa: PLR2004
            return None
    return headers.copy()


def indexed(headers: Headers) -> HeaderIndex:
    """Return ``headers`` for reading: the last value of each name counts, ``None`` is no value."""
    if not headers:
        return {}
    return {name if isinstance(name, str) else header_name(name): value for name, value in headers if value is not None}


def header_name(name: object) -> str:
    """Return the name of a header as it reaches the broker; an empty one for what cannot be printed."""
    if isinstance(name, str):
        return name
    try:
        return str(name)
    except Exception:  # noqa: BLE001 - the client will say so itself
        return ""


def header_text(headers: HeaderIndex, name: str) -> str | None:
    """Return the value of ``name`` as text, or ``None``; bytes that are not UTF-8 lose what cannot be read."""
    value = headers.get(name)
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)


def rewritten(headers: Headers, replaced: Mapping[str, str], dropped: frozenset[str] = frozenset()) -> list[Header]:
    """Return a new list in which each name of ``replaced`` stands exactly once and no name of ``dropped`` is left.

    ``dropped`` is in lower case.
    """
    written: list[Header] = [(name, value.encode()) for name, value in replaced.items()]
    if not headers:
        return written
    gone = dropped if replaced.keys() <= dropped else dropped.union(name.lower() for name in replaced)
    return [pair for pair in headers if header_name(pair[0]).lower() not in gone] + written


class _HeaderGetter(Getter[HeaderIndex]):
    def get(self, carrier: HeaderIndex, key: str) -> list[str] | None:
        text = header_text(carrier, key)
        return None if text is None else [text]

    def keys(self, carrier: HeaderIndex) -> list[str]:
        return list(carrier)


class _DictSetter(Setter[dict[str, str]]):
    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        carrier[key] = value


HEADER_GETTER: Final = _HeaderGetter()
HEADER_SETTER: Final = _DictSetter()
