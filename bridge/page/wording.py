"""Format counts, times and untrusted text for a terminal or a page."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence


ABSENT: Final = "—"
"""Shown for an unknown value."""
UNKNOWN_GROUP: Final = "an unknown group"
"""Shown in a sentence or a title for a group that no record names."""
TITLES: Final = ("Sent by", "Transaction of", "Recalled by", "Consumed by")
"""Titles of what a group did: sends, transaction ends, recalls and deliveries."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_UNITS: Final = (
    (86_400_000, 86_400_000, "d"),
    (3_600_000, 3_600_000, "h"),
    (60_000, 60_000, "min"),
    (10_000, 1_000, "s"),
)
"""Lower bound in milliseconds, length of the unit, and its name."""
_WITHOUT_FRACTION_MS: Final = 100

# An id from a trace must not move the cursor, colour the screen or change the writing direction around it.
_UNSEEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\uffff"
    "\U000e0000-\U000e007f]"
)


def visible(text: str, *, limit: int | None = 200, unseen: re.Pattern[str] = _UNSEEN) -> str:
    """Return ``text`` with the characters of ``unseen`` spelled out, cut to ``limit`` if it is given, with a note."""
    shown = unseen.sub(lambda hit: f"⟨U+{ord(hit[0]):04X}⟩", text[:limit])
    return shown if limit is None or len(text) <= limit else f"{shown}… ({len(text):,} characters)"


def utc(instant_ms: int | None) -> str:
    """Return ``2026-11-21 16:05:00.123 UTC``; a time beyond the calendar stays a number."""
    moment = _moment(instant_ms)
    if isinstance(moment, str):
        return moment
    return f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d} UTC"


def utc_time(instant_ms: int | None) -> str:
    """Return the time of day alone: ``16:05:00.123``."""
    moment = _moment(instant_ms)
    return moment if isinstance(moment, str) else f"{moment:%H:%M:%S}.{moment.microsecond // 1000:03d}"


def _moment(instant_ms: int | None) -> datetime | str:
    if instant_ms is None:
        return ABSENT
    try:
        return _EPOCH + timedelta(milliseconds=instant_ms)
    except OverflowError:
        return f"{instant_ms} ms"


def duration(ms: float | None) -> str:
    """Return milliseconds in a suitable unit; 0 is less than a millisecond."""
    if ms is None:
        return ABSENT
    if ms == 0:
        return "< 1 ms"
    return in_unit(ms)


def offset(ms: int | None) -> str:
    """Return the time since the first event: ``+31 ms``."""
    if ms is None:
        return ABSENT
    return f"+{in_unit(ms)}" if ms else "0"


def in_unit(ms: float) -> str:
    """Return milliseconds in a suitable unit: ``1.5 ms``, ``31 ms``, ``12.5 s``, ``3 min``."""
    for floor, unit_ms, unit in _UNITS:
        if abs(ms) >= floor:
            return f"{ms / unit_ms:,.1f} {unit}".replace(".0 ", " ")
    return f"{ms:,.0f} ms" if ms == int(ms) or abs(ms) >= _WITHOUT_FRACTION_MS else f"{ms:.1f} ms"


def plural(number: int, noun: str, several: str | None = None) -> str:
    """Return ``1 attempt`` or ``2 attempts``; ``several`` is the plural of an irregular noun."""
    return f"{number:,} {noun if number == 1 else several or noun + 's'}"


def join_words(texts: Sequence[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1]))) if texts else ""
