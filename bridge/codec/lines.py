"""Read a line of a landing as leniently as Spark reads it: its JSON objects, their texts, base64."""

from __future__ import annotations

import binascii
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DECODER: Final = json.JSONDecoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SPACE: Final = re.compile(r"[ \t\n\r]*")
# A quote that is never closed takes the rest along.
_QUOTED: Final = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|["'].*""", re.DOTALL)
_ESCAPED_OR_QUOTE: Final = re.compile(r"""\\(.)|(")""", re.DOTALL)


def read_objects(line: bytes) -> Iterator[tuple[Any, str]]:
    """Yield each JSON object of a line with its text, then what follows that is no object: its value or ``None``.

    Landings that are joined without a newline between them have several on a line.
    """
    text, at = line.decode("utf-8", "replace"), 0
    while True:
        value, end = read_json(text, at)
        if not isinstance(value, dict):
            yield value, text[at:]
            return
        yield value, text[at:end]
        if end == len(text):
            return
        at = end


def read_json(text: str, at: int = 0) -> tuple[Any, int]:
    """Return the value that begins at ``at``, ``None`` where none does, and where the next one begins.

    As in Spark quotes may be single ones; such a value takes the rest of ``text`` along.
    """
    value, end = _read(text, at)
    if value is None and text.find("'", at) >= 0:
        return _read(_QUOTED.sub(_double_quoted, text[at:]), 0)[0], len(text)
    return value, end


def text_of_json(value: Any) -> str | None:
    """Return a value as text: a text as it is, ``None`` for null, anything else as its own JSON."""
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f'"{json.dumps(value)}"'
    text = value if isinstance(value, str) else _ENCODER.encode(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded


def _read(text: str, at: int) -> tuple[Any, int]:
    try:
        value, end = _DECODER.raw_decode(text, _past_space(text, at))
    except (ValueError, RecursionError):
        return None, at
    return value, _past_space(text, end)


def _past_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()


def _double_quoted(quoted: re.Match[str]) -> str:
    inside = quoted[1] if quoted[2] is None else quoted[2]
    return quoted[0] if inside is None else f'"{_ESCAPED_OR_QUOTE.sub(_escaped, inside)}"'


def _escaped(part: re.Match[str]) -> str:
    return "'" if part[1] == "'" else '\\"' if part[2] else part[0]


_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_BLANKS: Final = (
    "\t\n\x0b\f\r\x1c\x1d\x1e\x1f \u1680\u2028\u2029\u205f\u3000"
    "\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009\u200a"
)
"""What Java takes for white space (``Character.isWhitespace``)."""
_ASCII_BLANKS: Final = "".join(blank for blank in _BLANKS if blank.isascii()).encode()
_WITHOUT_BLANKS: Final = str.maketrans("", "", _BLANKS)


def decode_base64(text: str) -> bytes | None:
    """Return the bytes of a base64 text as Spark's ``try_to_binary`` reads it; ``None`` for any other text.

    White space may stand between the digits; the padding is missing or complete, and nothing follows it.
    """
    if not text.isascii():
        text = text.translate(_WITHOUT_BLANKS)
        if not text.isascii():
            return None
    data = text.encode()
    digits = data.rstrip(b"=")
    padding = len(data) - len(digits)
    if others := digits.translate(None, _ALPHABET):
        if others.translate(None, _ASCII_BLANKS):
            return None
        digits = digits.translate(None, _ASCII_BLANKS)
    missing = -len(digits) % 4
    if missing == 3 or padding not in {0, missing}:  # noqa: PLR2004 - one digit holds only 6 bits
        return None
    return binascii.a2b_base64(digits + b"=" * missing)
