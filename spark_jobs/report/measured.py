"""What a run measured besides its verdicts: how long things took, who did them, the worst of each.

Plain data like the rest of a result; durations are milliseconds, times epoch milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["AGES", "Exemplar", "Group", "Instance", "Latency", "Life", "Stay", "Topic"]


AGES: Final = (
    *(("under 1 min", 60_000), ("1 to 5 min", 300_000), ("5 to 15 min", 900_000), ("15 to 60 min", 3_600_000)),
    *(("1 to 24 h", 86_400_000), ("over 24 h", None)),
)
"""How old an open event is, before the end of the data: what a band is called, and the age it ends before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Percentiles of one duration over ``count`` events.

    ``curve`` is the distribution as (share of events, duration) from the fastest to the slowest; empty where only the
    percentiles were asked for.
    """

    count: int = 0
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    curve: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One consumer group on one topic: who consumed what."""

    topic: str
    group: str
    messages: int
    deliveries: int
    failures: int
    redeliveries: int
    unmatched: int
    process: Latency
    queue: Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What was sent to one topic: sends that either side recorded, how many failed, how many are on one side only."""

    topic: str
    sends: int
    failures: int
    unmatched: int
    publish: Latency


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """One of the slowest events by one measure."""

    msg_id: str | None
    kind: str
    topic: str | None
    group: str | None
    event_ms: int | None
    took_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One client host and service with settled events that one side lacks.

    ``lost_native`` and ``lost_otlp`` count the events that the native side and OTLP lack without explanation,
    ``attributed`` those whose loss has a named reason; ``first_ms`` and ``last_ms`` frame all of them.
    """

    host: str | None
    service: str | None
    events: int
    lost_native: int
    lost_otlp: int
    attributed: int
    first_ms: int | None
    last_ms: int | None


@dataclass(frozen=True, slots=True)
class Stay:
    """When one side says an event began and ended; either may be unknown."""

    start_ms: int | None
    end_ms: int | None
    success: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One event of a sampled message, by both sides: what its swim lanes are drawn from; ``None`` has no record."""

    kind: str
    group: str | None
    attempt_id: str | None
    retry_times: int | None
    status: str
    store_host: str | None
    native: Stay | None
    otlp: Stay | None
