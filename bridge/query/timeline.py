"""This module knows the events of a story as one list in order of time, as every reader of it shows them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from bridge.page.wording import ABSENT, visible
from bridge.query.story import Half, Outcome
from otel_mqtrace.model import ContextCode, TransactionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bridge.query.story import Consume, MessageStory

__all__ = ["Event", "Kind", "Tone", "events", "first_ms"]


class Kind(str, Enum):
    """What an event is; the value is the word in the JSON."""

    SEND = "send"
    TRANSACTION_END = "end_transaction"
    RECALL = "recall"
    CONSUME = "consume"


class Tone(str, Enum):
    """How an event is to be taken; every tone has a colour, and never a colour alone."""

    GOOD = "good"
    BAD = "bad"
    CARE = "care"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event: what, from when to when, who, and how it ended, in words and as a tone.

    ``from_ms`` is when it is known or must have begun; ``until_ms`` is ``None`` for what has no end in the trace;
    ``took_ms`` is ``None`` for what takes no time. ``attempt`` counts the deliveries to a group from 1.
    """

    name: str
    kind: Kind
    from_ms: int | None
    until_ms: int | None
    took_ms: int | None
    group: str | None
    outcome: str
    tone: Tone
    attempt: int | None = None
    topic: str | None = None
    store_host: str | None = None
    client_host: str | None = None
    begin_known: bool = True


_TONES = {
    Outcome.SUCCESS: Tone.GOOD,
    Outcome.FAILED: Tone.BAD,
    Outcome.UNFINISHED: Tone.OPEN,
    Outcome.UNKNOWN: Tone.OPEN,
}
_STATE_TONES = {
    TransactionState.COMMIT_MESSAGE: Tone.GOOD,
    TransactionState.ROLLBACK_MESSAGE: Tone.BAD,
    TransactionState.UNKNOW: Tone.OPEN,
    None: Tone.OPEN,
}
_STATE_WORDS = {
    TransactionState.COMMIT_MESSAGE: "committed",
    TransactionState.ROLLBACK_MESSAGE: "rolled back",
    TransactionState.UNKNOW: "undecided",
    None: "unknown",
}


def events(story: MessageStory) -> tuple[Event, ...]:
    """Return every event of ``story`` in order of time; those without a time come last."""
    rank = {kind: number for number, kind in enumerate(Kind)}

    def order(event: Event) -> tuple[float, int, str, int]:
        start = math.inf if event.from_ms is None else event.from_ms
        return (start, rank[event.kind], event.group or "", event.attempt or 0)

    return tuple(sorted(_events(story), key=order))


def first_ms(timeline: Iterable[Event]) -> int | None:
    """Return when the first event began."""
    return next((event.from_ms for event in timeline if event.from_ms is not None), None)


def _events(story: MessageStory) -> Iterator[Event]:
    several = len({send.topic for send in story.sends}) > 1
    for send in story.sends:
        yield Event(
            name=f"send to {visible(send.topic or ABSENT, limit=80)}" if several else "send",
            kind=Kind.SEND,
            from_ms=send.begin_ms,
            until_ms=send.begin_ms if send.end_ms is None else send.end_ms,
            took_ms=send.cost_ms,
            group=send.group,
            outcome=send.outcome.value,
            tone=_TONES[send.outcome],
            topic=send.topic,
            store_host=send.store_host,
            client_host=send.client_host,
        )
    for end in story.transaction_ends:
        yield Event(
            name="transaction",
            kind=Kind.TRANSACTION_END,
            from_ms=end.at_ms,
            until_ms=end.at_ms,
            took_ms=None,
            group=end.group,
            outcome=f"{_STATE_WORDS[end.state]}{' on check' if end.from_check else ''}",
            tone=_STATE_TONES[end.state],
            topic=end.topic,
            store_host=end.store_host,
            client_host=end.client_host,
        )
    for recall in story.recalls:
        yield Event(
            name="recall",
            kind=Kind.RECALL,
            from_ms=recall.at_ms,
            until_ms=recall.at_ms,
            took_ms=None,
            group=recall.group,
            outcome=recall.outcome.value,
            tone=_TONES[recall.outcome],
            topic=recall.topic,
        )
    for group in story.groups:
        for number, attempt in enumerate(group.attempts, start=1):
            yield _of_consume(group.group, number, attempt)


def _of_consume(group: str | None, number: int, consume: Consume) -> Event:
    late = consume.context_code is ContextCode.TIME_OUT
    return Event(
        name=f"consume (delivery {number})" if number > 1 else "consume",
        kind=Kind.CONSUME,
        from_ms=consume.from_ms,
        until_ms=consume.end_ms,
        took_ms=consume.elapsed_ms,
        group=group,
        outcome=_consume_words(consume),
        tone=Tone.CARE if late and consume.outcome is Outcome.SUCCESS else _TONES[consume.outcome],
        attempt=number,
        topic=consume.topic,
        client_host=consume.client_host,
        begin_known=consume.missing is not Half.BEGIN,
    )


def _consume_words(consume: Consume) -> str:
    """Return the outcome and, where it says more than that, the code."""
    code = consume.context_code
    plain = code is None or code is ContextCode.SUCCESS or code is ContextCode.FAILED
    return consume.outcome.value if plain or code is None else f"{consume.outcome.value}, {code.name}"
