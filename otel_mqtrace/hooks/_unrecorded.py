"""This module knows how often something never became a span, by reason; it is counted in any thread.

``handed_over_unhandled``: messages left to their blocks, of which no block came. ``outcome_too_late``: blocks that did
not end well, around messages whose span had ended with the poll after them.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import Final

__all__ = ["OUTCOME_TOO_LATE", "UNHANDLED", "note_unrecorded", "unrecorded"]

UNHANDLED: Final = "handed_over_unhandled"
OUTCOME_TOO_LATE: Final = "outcome_too_late"
_REASONS: Final = (UNHANDLED, OUTCOME_TOO_LATE)
_counts: Final = {reason: count(1) for reason in _REASONS}
_last: Final = {reason: deque([0], maxlen=1) for reason in _REASONS}


def note_unrecorded(reason: str) -> None:
    """Count one; without a lock, for a finaliser may come by in the middle of anything."""
    _last[reason].append(next(_counts[reason]))


def unrecorded() -> dict[str, int]:
    """Return how often each happened since the process started."""
    return {reason: _last[reason][-1] for reason in _REASONS}
