"""This module knows message headers as a list of pairs: read the last of a name, write exactly one.

The caller's object is never changed. Names are case-sensitive, values are bytes, text or ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from opentelemetry.propagators.textmap import Getter, Setter

__all__ = ["HEADER_GETTER", "HEADER_SETTER", "Header", "HeaderValue", "Headers", "header_text", "pairs_of", "rewritten"]

HeaderValue = bytes | str | None
Header = tuple[str, HeaderValue]
Headers = Sequence[Header]


def pairs_of(headers: object) -> list[Header] | None:
    """Return a copy of ``headers`` as pairs, or ``None`` for what no client accepts (the client itself will say so)."""
    if headers is None:
        return []
    if isinstance(headers, Mapping):
        return list(headers.items())
    if isinstance(headers, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in headers):  # noqa: PLR2004
        return list(headers)
    return None


def header_text(headers: Headers, name: str) -> str | None:
    """Return the last value of ``name`` as text, or ``None``; bytes that are not UTF-8 lose what cannot be read."""
    for key, value in reversed(headers):
        if key == name and value is not None:
            return value.decode("utf-8", "replace") if isinstance(value, (bytes, bytearray)) else str(value)
    return None


def rewritten(headers: Headers, replaced: Mapping[str, str], dropped: frozenset[str] = frozenset()) -> list[Header]:
    """Return a new list in which each name of ``replaced`` stands exactly once and no name of ``dropped`` is left."""
    gone = {name.lower() for name in (*replaced, *dropped)}
    kept = [(key, value) for key, value in headers if not (isinstance(key, str) and key.lower() in gone)]
    return [*kept, *((name, value.encode()) for name, value in replaced.items())]


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        text = header_text(carrier, key)
        return None if text is None else [text]

    def keys(self, carrier: Headers) -> list[str]:
        return [key for key, _ in carrier]


class _DictSetter(Setter[dict[str, str]]):
    def set(self, carrier: dict[str, str], key: str, value: str) -> None:
        carrier[key] = value


HEADER_GETTER: Final = _HeaderGetter()
HEADER_SETTER: Final = _DictSetter()
