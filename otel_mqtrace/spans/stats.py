"""The account of a lane: spans exported, dropped for a named reason, failed, or pending.

``offered = exported + Σ dropped + failed + pending`` holds at every instant; each lane counts for itself, because a
span that reached one exporter may be lost on the way to the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping

QUEUE_FULL: Final = "queue_full"
"""The queue had no room: the newest span was refused, or the oldest evicted under that policy."""
ALREADY_SHUTDOWN: Final = "already_shutdown"
"""Offered after ``shutdown()``."""
SHUTDOWN_TIMEOUT: Final = "shutdown_timeout"
"""Still queued when ``shutdown()`` ran out of time."""
TOO_LARGE: Final = "too_large"
"""An exporter found it larger than a message may be, even alone."""
ENCODE_ERROR: Final = "encode_error"
"""An exporter could not encode it in its format."""
TRUNCATED: Final = "truncated"
"""OpenTelemetry's span limits had taken something of its trace record: what is left is exported, if it has a name."""
EXPORT_FAILED: Final = "export_failed"
"""What the ledger and the self-metrics call ``failed``."""
WANTS_ERROR: Final = "wants_error"
"""The exporter's own ``wants`` raised."""


class LaneStats(TypedDict):
    """What was handed to one lane since this process began (a fork starts over), not what was written from it.

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
    """The outcome of one batch, in spans, that an exporter with partial success returns from ``take_outcome()``.

    ``lost`` may name lost spans of the batch, position → reason, for the ledger.
    """

    exported: int = 0
    failed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    lost: Mapping[int, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The size of the batch it accounts for."""
        return self.exported + self.failed + sum(self.dropped.values())


def lost(stats: LaneStats) -> int:
    """Return how many spans will never arrive: dropped for any reason, or failed."""
    return stats["failed"] + sum(stats["dropped"].values())
