"""This module knows what can be told of one message: every event of its life, as data.

Times are epoch milliseconds as the writers' clocks said them; ``None`` is what no record says. ``evidence`` are the
records an event rests on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.query.evidence import BadSighting, Sighting
    from otel_mqtrace.model import ContextCode, MessageType, TransactionState

__all__ = ["Consume", "Finding", "GroupStory", "Half", "MessageStory", "Outcome", "Recall", "Send", "TransactionEnd"]


class Outcome(str, Enum):
    """How a send, a consume or a recall ended; the value is the word in the JSON."""

    SUCCESS = "success"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # it began, and no record says that it ended
    UNKNOWN = "unknown"  # its record does not say


class Half(str, Enum):
    """The half of a consume that no record was found of."""

    BEGIN = "SubBefore"
    END = "SubAfter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One send attempt that got an answer. ``of_batch`` is how many messages were sent by it."""

    begin_ms: int | None
    end_ms: int | None
    cost_ms: int | None
    outcome: Outcome
    group: str | None
    region_id: str | None
    topic: str | None
    tags: str | None
    keys: str | None
    body_bytes: int | None
    msg_type: MessageType | None
    store_host: str | None
    client_host: str | None
    offset_msg_id: str | None
    of_batch: int
    evidence: tuple[Sighting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionEnd:
    """A producer's word on a half message; ``from_check`` when a broker had asked for it. Written before it is sent."""

    at_ms: int | None
    state: TransactionState | None
    from_check: bool | None
    transaction_id: str | None
    group: str | None
    region_id: str | None
    topic: str | None
    tags: str | None
    keys: str | None
    store_host: str | None
    client_host: str | None
    evidence: tuple[Sighting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall:
    """A request to take a delayed message back."""

    at_ms: int | None
    outcome: Outcome
    group: str | None
    region_id: str | None
    topic: str | None
    evidence: tuple[Sighting, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consume:
    """One delivery to one group's listener.

    ``cost_ms`` is RocketMQ's: the listener's time divided by the messages it was given. ``end_estimated`` says that
    ``end_ms`` is the begin plus that cost, because 4.x clients write no time at the end. ``missing`` is the half that
    was not found.
    """

    begin_ms: int | None
    end_ms: int | None
    end_estimated: bool
    cost_ms: int | None
    outcome: Outcome
    context_code: ContextCode | None
    retry_times: int | None
    request_id: str | None
    region_id: str | None
    topic: str | None
    keys: str | None
    client_host: str | None
    missing: Half | None
    evidence: tuple[Sighting, ...]

    @property
    def from_ms(self) -> int | None:
        """When it began as far as can be told: the end less the cost where the begin is missing."""
        if self.begin_ms is not None or self.end_ms is None:
            return self.begin_ms
        return self.end_ms - max(self.cost_ms or 0, 0)

    @property
    def elapsed_ms(self) -> int | None:
        """From begin to end on the consumer's clock; the cost where one is missing or the clock was set back."""
        if self.begin_ms is None or self.end_ms is None or self.end_ms < self.begin_ms:
            return self.cost_ms
        return self.end_ms - self.begin_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStory:
    """What one consumer group made of the message, in order; ``group`` is ``None`` where no record names it."""

    group: str | None
    attempts: tuple[Consume, ...]

    @property
    def outcome(self) -> Outcome:
        """How the last delivery ended."""
        return self.attempts[-1].outcome


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a reader should know. ``code`` is stable; a ``problem`` wants looking into, others are remarks."""

    code: str
    text: str
    problem: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStory:
    """One message's life as the trace tells it, each part in order of time.

    ``records`` counts different ones, ``repeats`` those that were read again.
    """

    msg_id: str
    topics: tuple[str, ...]
    tags: tuple[str, ...]
    keys: tuple[str, ...]
    sends: tuple[Send, ...] = ()
    transaction_ends: tuple[TransactionEnd, ...] = ()
    recalls: tuple[Recall, ...] = ()
    groups: tuple[GroupStory, ...] = ()
    bad: tuple[BadSighting, ...] = ()
    records: int = 0
    repeats: int = 0
