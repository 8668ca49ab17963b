"""Decode bytes in the charset of a writer: UTF-8 since 5.0.0, before that the platform's.

An incomplete character must not swallow the U+0002 after it, as Python's GB18030 decoder does at the end of its input.
So unclean bytes are decoded piece by piece, and a body decodes the same whole and in parts.
"""

from __future__ import annotations

import codecs
from functools import lru_cache
from typing import Final

from otel_mqtrace._errors import UsageError
from otel_mqtrace.wire.native.layout import RECORD_TERMINATOR

_ANY: Final = bytes(range(256))
_ASCII: Final = _ANY[:128]
_TERMINATOR: Final = RECORD_TERMINATOR.encode()


def text_of(body: bytes, charset: str) -> str:
    """Return the text of a body, U+FFFD for what is none in ``charset``.

    Raises:
        UsageError: no such charset.
    """
    cuttable = is_cuttable(charset)
    try:
        return body.decode(charset)
    except UnicodeError:
        pieces = body.split(_TERMINATOR) if cuttable else [body]
        return RECORD_TERMINATOR.join(piece.decode(charset, errors="replace") for piece in pieces)


def check_charset(charset: str) -> None:
    """Raise ``UsageError`` for an unknown charset."""
    is_cuttable(charset)


@lru_cache(maxsize=32)
def is_cuttable(charset: str) -> bool:
    """Return whether ASCII stands for itself in ``charset`` everywhere, so that bytes can be cut at a terminator.

    Raises:
        UsageError: no such charset.
    """
    try:
        _ANY.decode(charset, errors="replace")  # there are codecs of names, such as Punycode, that refuse some bytes
        shifting = codecs.lookup(charset).name.startswith("iso2022")  # ASCII only until the first escape
        return not shifting and _ASCII.decode(charset, errors="replace") == _ASCII.decode()
    except (LookupError, UnicodeError):
        raise UsageError(f"unknown charset {charset!r}; use a text encoding such as utf-8 or gbk") from None
