"""The range of arrivals that a query covers, and the progress of one pass over an archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.query.search import Searched
from bridge.times import parse_instant_ms
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.landing import LandedMessage


@dataclass(frozen=True, slots=True)
class ArrivalRange:
    """From ``begin_ms`` to ``end_ms``, both included, in epoch milliseconds; ``None`` is open."""

    begin_ms: int | None = None
    end_ms: int | None = None

    def __contains__(self, instant_ms: int) -> bool:
        return self.overlaps(instant_ms, instant_ms)

    def overlaps(self, first_ms: int, last_ms: int) -> bool:
        """Return whether any instant from ``first_ms`` to ``last_ms`` is inside."""
        return (self.begin_ms is None or last_ms >= self.begin_ms) and (self.end_ms is None or first_ms <= self.end_ms)


ALWAYS: Final = ArrivalRange()


def arrival_range(begin: str | None, end: str | None, *, now_ms: int) -> ArrivalRange:
    """Return the range that ``--begin`` and ``--end`` name.

    Raises:
        UsageError: a text is not a time, or the range ends before it begins.
    """
    begin_ms = None if begin is None else parse_instant_ms(begin, name="--begin", now_ms=now_ms)
    end_ms = None if end is None else parse_instant_ms(end, name="--end", now_ms=now_ms)
    if begin_ms is not None and end_ms is not None and end_ms < begin_ms:
        raise UsageError(f"--end {end} is before --begin {begin}: exchange them")
    return ArrivalRange(begin_ms, end_ms)


MOST_REMARKS: Final = 20
"""Limit of one pass's remarks; the number of further ones is added."""


class Scan:
    """The counts of one pass over an archive.

    ``where`` is the archive's name for people; ``on_progress`` gets the bytes or offsets read and their total now and
    then.
    """

    def __init__(
        self, where: str, *, arrivals: ArrivalRange = ALWAYS, on_progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._where = where
        self._arrivals = arrivals
        self._on_progress = on_progress or (lambda _done, _all: None)
        self._begin(0)

    def close(self) -> None:
        """Close the connections, if there are any."""

    def _begin(self, whole: int) -> None:
        self._done, self._whole = 0, whole
        self._seen_messages = self._body_bytes = 0
        self._first_ms: int | None = None
        self._last_ms: int | None = None
        self._remarks: list[str] = []

    def _saw(self, message: LandedMessage) -> None:
        self._seen_messages += 1
        self._body_bytes += len(message.body)
        arrival_ms = message.arrival_ms
        if not arrival_ms:
            return  # a file that has no arrival times
        self._first_ms = arrival_ms if self._first_ms is None else min(self._first_ms, arrival_ms)
        self._last_ms = arrival_ms if self._last_ms is None else max(self._last_ms, arrival_ms)

    def _advance(self, units: int) -> None:
        self._done += units
        self._on_progress(min(self._done, self._whole), self._whole)

    def _remark(self, text: str) -> None:
        self._remarks.append(text)

    @property
    def searched(self) -> Searched:
        """What the last pass read, and what it could not."""
        more = len(self._remarks) - MOST_REMARKS
        return Searched(
            where=self._where,
            messages=self._seen_messages,
            body_bytes=self._body_bytes,
            first_arrival_ms=self._first_ms,
            last_arrival_ms=self._last_ms,
            remarks=(*self._remarks[:MOST_REMARKS], *([f"and {more} more"] if more > 0 else [])),
        )
