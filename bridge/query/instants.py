"""This module knows how a person says when: ISO 8601, epoch milliseconds, or how long ago."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from otel_mqtrace._clock import LAST_MS
from otel_mqtrace._errors import UsageError

__all__ = ["ALWAYS", "ArrivalRange", "arrival_range", "instant_ms"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_AGO: Final = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhd])")
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH_MS: Final = re.compile(r"[0-9]{10,15}")


@dataclass(frozen=True, slots=True)
class ArrivalRange:
    """From ``begin_ms`` to ``end_ms``, both included, in epoch milliseconds; ``None`` is open."""

    begin_ms: int | None = None
    end_ms: int | None = None

    def __contains__(self, instant_ms: int) -> bool:
        return self.overlaps(instant_ms, instant_ms)

    def overlaps(self, first_ms: int, last_ms: int) -> bool:
        """Whether any instant from ``first_ms`` to ``last_ms`` is inside."""
        return (self.begin_ms is None or last_ms >= self.begin_ms) and (self.end_ms is None or first_ms <= self.end_ms)


ALWAYS: Final = ArrivalRange()


def arrival_range(begin: str | None, end: str | None, *, now_ms: int) -> ArrivalRange:
    """Return the range that ``--begin`` and ``--end`` name.

    Raises:
        UsageError: a text is no instant, or the range ends before it begins.
    """
    begin_ms = None if begin is None else instant_ms(begin, name="--begin", now_ms=now_ms)
    end_ms = None if end is None else instant_ms(end, name="--end", now_ms=now_ms)
    if begin_ms is not None and end_ms is not None and end_ms < begin_ms:
        raise UsageError(f"--end {end} is before --begin {begin}: exchange them")
    return ArrivalRange(begin_ms, end_ms)


def instant_ms(text: str, *, name: str, now_ms: int) -> int:
    """Return ``text`` as epoch milliseconds: ISO 8601 (UTC unless it says otherwise), milliseconds, or ``15m`` ago.

    Raises:
        UsageError: it is none of these; ``name`` is the option to blame.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(now_ms - int(ago["number"]) * _UNIT_MS[ago["unit"]], 0)
    if _EPOCH_MS.fullmatch(text):
        return min(int(text), LAST_MS)
    try:
        moment = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
    except ValueError:
        raise UsageError(
            f"{name} {text!r} is no instant: give 2026-11-21T14:05:00Z, epoch milliseconds, or 15m, 2h, 3d (ago)"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return max((moment - _EPOCH) // timedelta(milliseconds=1), 0)
