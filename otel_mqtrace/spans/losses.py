"""This module knows who is told of losses, and how often: the log in sums, the application's callback, the ledger.

All of it on the lane's own thread, after the fact: the thread that lost a span only counted it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from otel_mqtrace.spans.stats import EXPORT_FAILED, LaneStats, lost

if TYPE_CHECKING:
    from otel_mqtrace._clock import MonotonicNs
    from otel_mqtrace.spans.ledger import Ledger

__all__ = ["LossLog", "LossWatch", "OnDrop"]

_logger = logging.getLogger(__name__)
OnDrop = Callable[[str, Mapping[str, int]], None]
"""``on_drop(lane, {reason: spans lost since the last call})``, called by the lane's worker."""


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


class LossWatch:
    """Compares a lane's account with what was told before, and tells the difference; never raises."""

    def __init__(self, lane: str, *, on_drop: OnDrop | None = None, ledger: Ledger | None = None) -> None:
        self._lane = lane
        self._on_drop = on_drop
        self._ledger = ledger
        self._log = LossLog(lane)
        self._told: dict[str, int] = {}
        self._looking = threading.RLock()  # a shutdown may look while the lane does, or from a signal handler in here

    def look(self, stats: LaneStats, now: MonotonicNs, *, last: bool = False) -> None:
        """Tell everybody what is new in ``stats``; ``last`` says that there will be no later occasion."""
        with self._looking:
            line = self._log.line(stats, now, last=last)
            new = self._news(stats) if self._on_drop is not None else {}
        if line is not None:
            _logger.warning("%s", line)
        if self._on_drop is not None and new:
            self._call_back(self._on_drop, new)
        if self._ledger is not None:
            self._ledger.save_due(now, last=last)

    def _news(self, stats: LaneStats) -> dict[str, int]:
        """Return what was lost since the last call, by reason; older ``stats`` than the last ones tell nothing."""
        totals = {**stats["dropped"], EXPORT_FAILED: stats["failed"]}
        new = {reason: total - self._told.get(reason, 0) for reason, total in totals.items()}
        new = {reason: count for reason, count in new.items() if count > 0}
        self._told |= {reason: totals[reason] for reason in new}
        return new

    def _call_back(self, on_drop: OnDrop, new: Mapping[str, int]) -> None:
        try:
            on_drop(self._lane, new)
        except Exception:
            _logger.debug("on_drop raised", exc_info=True)
