"""This module knows how one value of a policy file is read, refused in one line, and written so that it reads back."""

from __future__ import annotations

import difflib
import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "choice",
    "choices",
    "count",
    "duration_ms",
    "flag",
    "in_duration",
    "in_toml",
    "number",
    "parse_duration_ms",
    "ratio",
    "refuse_unknown",
    "text",
]

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_MS: Final = 36_500 * _UNITS["d"]
_MOST: Final = (1 << 31) - 1
_MOST_CHARACTERS: Final = 1_000
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")


def parse_duration_ms(text: str, *, name: str) -> int:
    """Read ``60s``, ``5m``, ``1.5h``, ``250ms`` or ``0`` (bare numbers are seconds), at most ``36500d``.

    Raises:
        UsageError: it is no duration, or a longer one; the line names the option.
    """
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise UsageError(f"{name} '{text}' is no duration; write seconds, or a number and ms, s, m, h or d, as in 60s")
    wanted_ms = float(found[1]) * _UNITS[found[2] or "s"]
    if wanted_ms > _LONGEST_MS:
        raise UsageError(f"{name} '{text}' is longer than a hundred years; write at most 36500d")
    return round(wanted_ms)


def duration_ms(value: Any, name: str) -> int:
    """Read a duration that stands in TOML as text or as a number of seconds."""
    return parse_duration_ms(str(value), name=name)


def in_duration(value_ms: int) -> str:
    """Return the duration as TOML text in the largest unit that leaves no fraction."""
    unit = next(unit for unit in ("d", "h", "m", "s", "ms") if value_ms % _UNITS[unit] == 0)
    return in_toml(f"{value_ms // _UNITS[unit]}{unit if value_ms else 's'}")


def count(value: Any, name: str) -> int:
    """Read a whole number from 0."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} = {value!r} is no count; write a whole number from 0")
    if value > _MOST:
        raise UsageError(f"{name} = {value!r} is too large; write at most {_MOST}")
    return value


def number(value: Any, name: str) -> float:
    """Read a finite number from 0: nothing that is measured or counted here can be less."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise UsageError(f"{name} = {value!r} is no number")
    if value < 0:
        raise UsageError(f"{name} = {value!r} is below 0, which nothing measured can be; write a number from 0")
    return float(value)


def ratio(value: Any, name: str) -> float:
    """Read a share above 0 and up to 1."""
    share = number(value, name)
    if not 0 < share <= 1:
        raise UsageError(f"{name} = {value!r} is no ratio; write a number above 0, at most 1")
    return share


def flag(value: Any, name: str) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise UsageError(f"{name} = {value!r} is neither true nor false")
    return value


def text(value: Any, name: str) -> str:
    """Read a text."""
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise UsageError(f"{name} = {value!r:.60} is no text of at most {_MOST_CHARACTERS} characters")
    return value


def choice(what: str, *words: str) -> Callable[[Any, str], str]:
    """Return a reader of one of ``words``; ``what`` is what the line calls it."""

    def read(value: Any, name: str) -> str:
        if value not in words:
            wanted = ", ".join(f'"{word}"' for word in words[:-1]) + f' or "{words[-1]}"'
            raise UsageError(f"{name} = {value!r} is no {what}; write {wanted}{_meant(str(value), words)}")
        return str(value)

    return read


def choices(what: str, words: Iterable[str]) -> Callable[[Any, str], tuple[str, ...]]:
    """Return a reader of a list of ``words``."""
    known = tuple(words)

    def read(value: Any, name: str) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise UsageError(f'{name} = {value!r} is no list; write ["{known[0]}"]')
        for each in value:
            if each not in known:
                raise UsageError(f"{name}: {each!r} is no {what}; known are {', '.join(known)}{_meant(each, known)}")
        return tuple(value)

    return read


def refuse_unknown(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    """Raise for the first key that is none, with the one that was probably meant."""
    names = sorted(known)
    unknown = sorted(set(table) - set(names))
    if unknown:
        meant = _meant(unknown[0], names)
        raise UsageError(f"{where}: unknown key '{unknown[0]}'{meant}; known are {', '.join(names)}")


def _meant(word: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(known), 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def in_toml(value: Any) -> str:
    """Return a value as TOML has it: text, numbers, flags, lists of texts."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(in_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
