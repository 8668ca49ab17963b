"""Read JSON and whole numbers as leniently as Spark reads them."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

__all__ = ["read_json", "text_of_json", "whole_number"]

_DECODER: Final = json.JSONDecoder()
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_SPACE: Final = " \t\n\r"
# A quote that is never closed takes the rest along.
_QUOTED: Final = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|["'].*""", re.DOTALL)
_ESCAPED_OR_QUOTE: Final = re.compile(r"""\\(.)|(")""", re.DOTALL)


def read_json(text: str) -> Any:
    """Return the value that ``text`` begins with; ``None`` where it begins with none."""
    value = _read(text)
    return _read(_QUOTED.sub(_double_quoted, text)) if value is None and "'" in text else value


def text_of_json(value: Any) -> str | None:
    """Return a value as text: a text as it is, ``None`` for null, anything else as its own JSON."""
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f'"{json.dumps(value)}"'
    text = value if isinstance(value, str) else _ENCODER.encode(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()  # half of a surrogate pair is no text


def _read(text: str) -> Any:
    try:
        return _DECODER.raw_decode(text.lstrip(_SPACE))[0]
    except (ValueError, RecursionError):
        return None


def _double_quoted(quoted: re.Match[str]) -> str:
    inside = quoted[1] if quoted[2] is None else quoted[2]
    return quoted[0] if inside is None else f'"{_ESCAPED_OR_QUOTE.sub(_escaped, inside)}"'


def _escaped(part: re.Match[str]) -> str:
    return "'" if part[1] == "'" else '\\"' if part[2] else part[0]


_AROUND: Final = "".join(map(chr, (*range(0x21), 0x7F)))
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,19})")


def whole_number(text: str, *, bits: int) -> int | None:
    """Return the number that ``text`` is, as Spark's ``try_cast`` reads it; ``None`` where it is none.

    Args:
        text: ASCII digits, a sign before them, blanks and control characters around them.
        bits: the width of a signed integer that must hold the number.
    """
    found = _INTEGER.fullmatch(text.strip(_AROUND))
    number = None if found is None else int(found[1] + found[2])
    return number if number is not None and -(1 << bits - 1) <= number < 1 << bits - 1 else None
