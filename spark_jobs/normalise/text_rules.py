"""This module knows how one text is brought to one form in plain Python: the rules that ``texts`` tells Spark.

Whoever has a column asks them once per distinct text (``distinct``).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from bridge.codec.native.layout import ABSENT_TEXTS, KEY_SEPARATOR, absent

__all__ = ["first_text", "folded_id", "integer", "json_texts", "key_set", "present"]

_HEX: Final = re.compile(r"[0-9A-Fa-f]+")
_AROUND_NUMBERS: Final = "".join(map(chr, (*range(0x21), 0x7F)))  # what Spark's casts cut off
_INTEGER: Final = re.compile(r"([+-]?)0*([0-9]{1,19})")
_DECODER: Final = json.JSONDecoder()
_JSON_SPACE: Final = " \t\n\r"
_ONE_PLAIN_TEXT: Final = re.compile(r'\["([^"\\\x00-\x1f]*)"\]')
_QUOTED: Final = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|["'].*""", re.DOTALL)
_INNER: Final = re.compile(r"""\\(.)|(")""", re.DOTALL)


def present(text: str | None) -> str | None:
    """Return ``text``, or ``None`` where a writer says "nothing" (``bridge.codec.native.layout.absent``)."""
    return None if absent(text) else text


def folded_id(text: str | None) -> str | None:
    """Return an id in upper case when it is hexadecimal, as it is otherwise, ``None`` when absent."""
    if text is None:
        return None
    known = text.strip(" ")
    return known.upper() if _HEX.fullmatch(known) else present(known)


def integer(text: str | None, bits: int) -> int | None:
    """Return the number that Spark's ``try_cast`` sees in a text; ``None`` where it sees none of so many bits."""
    found = None if text is None else _INTEGER.fullmatch(text.strip(_AROUND_NUMBERS))
    number = None if found is None else int(found[1] + found[2])
    return number if number is not None and -(1 << bits - 1) <= number < 1 << bits - 1 else None


def json_texts(text: str | None) -> list[str | None] | None:
    """Return the elements of a JSON array as texts; ``None`` where the text does not begin with one.

    What is no text is its own JSON. Quotes may be single; what follows the array is not looked at.
    """
    if text is None:
        return None
    plain = _ONE_PLAIN_TEXT.fullmatch(text)
    if plain:
        return [plain[1]]
    value = _json_value(text)
    if value is None and "'" in text:
        value = _json_value(_QUOTED.sub(_double_quoted, text))
    return [_element_text(item) for item in value] if isinstance(value, list) else None


def first_text(text: str | None) -> str | None:
    """Return the first element of a JSON array of texts; ``None`` where there is none."""
    return next(iter(json_texts(text) or ()), None)


def key_set(text: str | None) -> list[str] | None:
    """Return the keys in a JSON array of texts as a set, blanks out, distinct, sorted; ``None`` where it is none."""
    keys = json_texts(text)
    if keys is None:
        return None
    return sorted({key for joined in keys if joined for key in joined.split(KEY_SEPARATOR)} - ABSENT_TEXTS)


def _json_value(text: str) -> Any:
    try:
        return _DECODER.raw_decode(text.lstrip(_JSON_SPACE))[0]
    except (ValueError, RecursionError):
        return None


def _double_quoted(quoted: re.Match[str]) -> str:
    inside = quoted[1] if quoted[2] is None else quoted[2]
    return quoted[0] if inside is None else f'"{_INNER.sub(_escaped, inside)}"'


def _escaped(part: re.Match[str]) -> str:
    return "'" if part[1] == "'" else '\\"' if part[2] else part[0]


def _element_text(item: Any) -> str | None:
    if item is None:
        return None
    if isinstance(item, float) and not math.isfinite(item):
        return f'"{json.dumps(item)}"'
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace").decode()
