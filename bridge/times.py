"""Parse durations and times as people write them."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Final

from otel_mqtrace._clock import LAST_MS
from otel_mqtrace._errors import UsageError

UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_MS: Final = 36_500 * UNIT_MS["d"]
_DURATION: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)?", re.ASCII)
_AGO: Final = re.compile(r"(?P<number>\d{1,9})(?P<unit>[smhd])", re.ASCII)
_WHOLE_NUMBER: Final = re.compile(r"-?\d+", re.ASCII)
_MOST_DIGITS: Final = 15  # those of LAST_MS


def parse_duration_ms(text: str, *, name: str) -> int:
    """Parse ``60s``, ``5m``, ``1.5h``, ``250ms`` or ``0`` (a plain number means seconds), at most ``36500d``.

    Raises:
        UsageError: the duration is invalid or longer; the line names the option.
    """
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise UsageError(
            f"{name}: invalid duration '{text}': use for example 60s, 5m, 250ms or 2d (a plain number means seconds)"
        )
    wanted_ms = float(found["number"]) * UNIT_MS[found["unit"] or "s"]
    if wanted_ms > _LONGEST_MS:
        raise UsageError(f"{name}: duration '{text}' is longer than a hundred years; write at most 36500d")
    return round(wanted_ms)


def parse_instant_ms(text: str, *, name: str, now_ms: int | None = None) -> int:
    """Parse epoch milliseconds or ISO 8601 (UTC unless it names an offset), from 1970 to 9999.

    With ``now_ms`` also the time that a number of seconds, minutes, hours or days ago was, as in ``15m``.

    Raises:
        UsageError: it is none of these, or out of that range; the line names the option.
    """
    ago = None if now_ms is None else _AGO.fullmatch(text)
    if ago is not None and now_ms is not None:
        return max(now_ms - int(ago["number"]) * UNIT_MS[ago["unit"]], 0)
    if _WHOLE_NUMBER.fullmatch(text):
        instant_ms = int(text) if len(text) <= _MOST_DIGITS else -1
    else:
        try:
            instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
        except ValueError as error:
            forms = "2026-11-21T09:30:00Z or epoch milliseconds" + ("" if now_ms is None else ", or 15m, 2h, 3d (ago)")
            raise UsageError(f"{name}: invalid time '{text}': use {forms}") from error
        aware = instant if instant.tzinfo else instant.replace(tzinfo=timezone.utc)
        instant_ms = round(aware.timestamp() * 1000)
    if not 0 <= instant_ms <= LAST_MS:
        raise UsageError(f"{name} '{text}' is not between the years 1970 and 9999")
    return instant_ms
