"""A counted loss: one row of a drop ledger.

Readers of ledgers return these, and the drop budget uses them; neither imports the other.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CountedDrop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedDrop:
    """``count`` messages or spans that ``side`` (``native`` or ``otlp``) lost by ``cause``, and what is known of them.

    ``None`` is unknown. ``process`` is the process id modulo 65536 as four hex digits, as message ids hold it. A bucket
    is ``[bucket_start_ms, bucket_start_ms + bucket_ms)`` in epoch milliseconds; without one the whole run is meant.
    ``of_start``: only the record of a delivery's start was lost; that of its end is counted by itself. ``before``: what
    a counter had counted when it was first read, since whenever it began; how it grew from there is counted by itself.
    """

    side: str
    component: str
    cause: str
    count: int
    service: str | None = None
    instance: str | None = None
    group: str | None = None
    process: str | None = None
    bucket_start_ms: int | None = None
    bucket_ms: int | None = None
    of_start: bool = False
    before: bool = False
