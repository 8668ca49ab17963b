"""This module knows how an array of texts is read from JSON in an attribute: as leniently as Spark reads it.

What readers of spans write is JSON to the letter; what a program put into an attribute as a text may be anything.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

__all__ = ["json_texts"]

_DECODER: Final = json.JSONDecoder()
_SPACE: Final = " \t\n\r"
_ONE_PLAIN_TEXT: Final = re.compile(r'\["([^"\\\x00-\x1f]*)"\]')
# A quote that is never closed takes the rest along.
_QUOTED: Final = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|["'].*""", re.DOTALL)
_ESCAPED_OR_QUOTE: Final = re.compile(r"""\\(.)|(")""", re.DOTALL)


def json_texts(text: str) -> list[str | None] | None:
    """Return the elements of a JSON array as texts; ``None`` where the text does not begin with one.

    What is no text is its own JSON. Quotes may be single; what follows the array is not looked at.
    """
    plain = _ONE_PLAIN_TEXT.fullmatch(text)
    if plain:
        return [plain[1]]
    value = _value(text)
    if value is None and "'" in text:
        value = _value(_QUOTED.sub(_double_quoted, text))
    return [_element_text(item) for item in value] if isinstance(value, list) else None


def _value(text: str) -> Any:
    try:
        return _DECODER.raw_decode(text.lstrip(_SPACE))[0]
    except (ValueError, RecursionError):
        return None


def _double_quoted(quoted: re.Match[str]) -> str:
    inside = quoted[1] if quoted[2] is None else quoted[2]
    return quoted[0] if inside is None else f'"{_ESCAPED_OR_QUOTE.sub(_escaped, inside)}"'


def _escaped(part: re.Match[str]) -> str:
    return "'" if part[1] == "'" else '\\"' if part[2] else part[0]


def _element_text(item: Any) -> str | None:
    if item is None:
        return None
    if isinstance(item, float) and not math.isfinite(item):
        return f'"{json.dumps(item)}"'
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()  # half of a surrogate pair is no text
