"""This module knows how every span ends: exported, dropped for a named reason, failed, or still pending.

``offered = exported + Σ dropped + failed + pending`` holds at every instant; each lane counts for itself, because a
span that reached one exporter may be lost on the way to the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace._clock import MonotonicNs

__all__ = [
    "ALREADY_SHUTDOWN",
    "ENCODE_ERROR",
    "QUEUE_FULL",
    "SHUTDOWN_TIMEOUT",
    "TOO_LARGE",
    "WANTS_ERROR",
    "ExportOutcome",
    "LaneStats",
    "LossLog",
    "lost",
]

QUEUE_FULL: Final = "queue_full"
"""The queue had no room: the newest span was refused, or the oldest evicted under that policy."""
ALREADY_SHUTDOWN: Final = "already_shutdown"
"""Offered after ``shutdown()``."""
SHUTDOWN_TIMEOUT: Final = "shutdown_timeout"
"""Still queued when ``shutdown()`` ran out of time."""
TOO_LARGE: Final = "too_large"
"""An exporter found it larger than a message may be, even alone."""
ENCODE_ERROR: Final = "encode_error"
"""An exporter could not say it in its format."""
WANTS_ERROR: Final = "wants_error"
"""The exporter's own ``wants`` raised."""


class LaneStats(TypedDict):
    """What was handed to one lane since this process began (a fork begins anew), not what was written from it.

    Each hand-over counts: an ended span once; a lane whose exporter ``exports_starts`` counts a span it wants at its
    start as well as at its end, so that one process span is 2 offered. It does not matter how many messages it is for.
    """

    offered: int
    exported: int
    dropped: dict[str, int]
    failed: int
    pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOutcome:
    """What became of one batch, in spans.

    An exporter that knows better than all-or-nothing returns it from ``take_outcome()``, which the lane asks once after
    each ``export``.
    """

    exported: int = 0
    failed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The size of the batch it accounts for."""
        return self.exported + self.failed + sum(self.dropped.values())


def lost(stats: LaneStats) -> int:
    """Return how many spans will never arrive: dropped for any reason, or failed."""
    return stats["failed"] + sum(stats["dropped"].values())


class LossLog:
    """Turns growing losses into at most one line per interval, with totals, so that a dead peer cannot flood a log."""

    def __init__(self, lane: str, *, interval_ns: int = 30_000_000_000) -> None:
        self._lane = lane
        self._interval_ns = interval_ns
        self._told = 0
        self._told_ns: MonotonicNs | None = None

    def line(self, stats: LaneStats, now: MonotonicNs, *, last: bool = False) -> str | None:
        """Return the line to log now, or ``None``: nothing new was lost, or it is too soon and not the last chance."""
        total = lost(stats)
        too_soon = self._told_ns is not None and now - self._told_ns < self._interval_ns
        if total <= self._told or (too_soon and not last):
            return None
        new, self._told, self._told_ns = total - self._told, total, now
        reasons = {reason: count for reason, count in stats["dropped"].items() if count} | (
            {"failed": stats["failed"]} if stats["failed"] else {}
        )
        told = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
        return f"mqtrace: {self._lane}: {new} spans lost since the last line; totals of {stats['offered']}: {told}"
