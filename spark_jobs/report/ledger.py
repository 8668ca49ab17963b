"""What a result says of the drop ledger: what was counted as lost, and how much of it was missing."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Ledger", "LedgerLine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLine:
    """One cause of one component: ``counted = attributed + surplus``, in the counter's own unit (messages or spans).

    Attributed is what keys that this side lacks were paid with, and deliveries whose native end alone is lost.
    """

    side: str
    component: str
    cause: str
    service: str | None
    counted: int
    attributed: int
    surplus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The ledgers of a run; ``attributed`` and ``surplus`` are per side that lost (``native``, ``otlp``).

    ``lines`` are the largest first; ``notes`` are sentences about what the counts cannot say.
    """

    files: tuple[str, ...] = ()
    rows_read: int = 0
    attributed: dict[str, int] = field(default_factory=dict)
    surplus: dict[str, int] = field(default_factory=dict)
    lines: tuple[LedgerLine, ...] = ()
    notes: tuple[str, ...] = ()
    over_time: tuple[tuple[int, str, int], ...] = ()  # start of the counter's bucket in epoch ms, side, counted
