"""The timeline of one message: every event of its life as data, built from its trace records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from bridge.page.wording import ABSENT, visible
from otel_mqtrace.model import KEY_SEPARATOR, ContextCode, TraceType, TransactionState
from otel_mqtrace.wire.native import absent, started_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from bridge.query.matching import BadSighting, Sighting
    from otel_mqtrace.model import MessageType


class Outcome(str, Enum):
    """How a send, a consume or a recall ended; the value is the word in the JSON."""

    SUCCESS = "success"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # it began, and no record has its end
    UNKNOWN = "unknown"  # not in its record


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
    """A producer's decision on a half message; ``from_check`` after a broker's check. Written before it is sent."""

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

    ``cost_ms`` is RocketMQ's: the listener's time divided by its number of messages. ``end_estimated``: ``end_ms`` is
    the begin plus that cost, because 4.x clients write no time at the end. ``missing`` is the missing half.
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
        """When it began; without a recorded begin, the end less the cost."""
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
class GroupTimeline:
    """What one consumer group made of the message, in order; ``group`` is ``None`` where no record names it."""

    group: str | None
    attempts: tuple[Consume, ...]

    @property
    def outcome(self) -> Outcome:
        """How the last delivery ended."""
        return self.attempts[-1].outcome


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding for the reader. ``code`` is stable; a ``problem`` needs a look, others are remarks."""

    code: str
    text: str
    problem: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTimeline:
    """One message's life in the trace, each part in order of time; ``repeats`` are records that were read again."""

    msg_id: str
    topics: tuple[str, ...]
    tags: tuple[str, ...]
    keys: tuple[str, ...]
    sends: tuple[Send, ...] = ()
    transaction_ends: tuple[TransactionEnd, ...] = ()
    recalls: tuple[Recall, ...] = ()
    groups: tuple[GroupTimeline, ...] = ()
    bad: tuple[BadSighting, ...] = ()
    records: int = 0
    repeats: int = 0


def text_or_none(text: str | None) -> str | None:
    """Return a text of a record, ``None`` for a placeholder."""
    return None if absent(text) else text


def consumed_by(halves: Iterable[Sighting]) -> tuple[GroupTimeline, ...]:
    """Return every group that consumed, in the order of their first deliveries, each with all of its attempts.

    The begins among ``halves`` are in order of time, and so are the ends.
    """
    by_request: dict[str | None, list[Sighting]] = {}
    for half in halves:
        by_request.setdefault(text_or_none(half.trace_ctx.request_id), []).append(half)
    by_group: dict[str | None, list[Consume]] = {}
    for request_id, of_request in by_request.items():
        for before, after in _pairs(of_request, joined=request_id is not None):
            group = _first(half.trace_ctx.group_name for half in (before, after) if half is not None)
            by_group.setdefault(group, []).append(_consume(before, after))
    groups = (
        GroupTimeline(group=group, attempts=tuple(sorted(them, key=_consume_order))) for group, them in by_group.items()
    )
    return tuple(sorted(groups, key=lambda group: (_consume_order(group.attempts[0]), group.group or "")))


def _pairs(halves: Sequence[Sighting], *, joined: bool) -> list[tuple[Sighting | None, Sighting | None]]:
    """Return (begin, end) pairs; without a request id every half stands alone."""
    befores = [half for half in halves if half.trace_ctx.trace_type is TraceType.SUB_BEFORE]
    afters = [half for half in halves if half.trace_ctx.trace_type is TraceType.SUB_AFTER]
    pairs: list[tuple[Sighting | None, Sighting | None]] = []
    for before in befores:
        after = next((one for one in afters if joined and _can_be_one_call(before, one)), None)
        if after is not None:
            afters.remove(after)
        pairs.append((before, after))
    return [*pairs, *((None, after) for after in afters)]


def _can_be_one_call(before: Sighting, after: Sighting) -> bool:
    return len(_list_distinct(half.trace_ctx.group_name for half in (before, after))) <= 1


def _first(texts: Iterable[str | None]) -> str | None:
    return next(iter(_list_distinct(texts)), None)


def _consume(before: Sighting | None, after: Sighting | None) -> Consume:
    halves = tuple(half for half in (before, after) if half is not None)
    first = halves[0]
    begin_ms = None if before is None else before.trace_ctx.timestamp_ms
    end_ms = None if after is None else after.trace_ctx.timestamp_ms
    cost_ms = None if after is None else after.trace_ctx.cost_ms
    estimated_ms = None if end_ms is not None or begin_ms is None or cost_ms is None else begin_ms + cost_ms
    return Consume(
        begin_ms=begin_ms,
        end_ms=end_ms if estimated_ms is None else estimated_ms,
        end_estimated=estimated_ms is not None,
        cost_ms=cost_ms,
        outcome=Outcome.UNFINISHED if after is None else _ENDED[after.trace_ctx.success],
        context_code=None if after is None else after.trace_ctx.context_code,
        retry_times=None if before is None else before.bean.retry_times,
        request_id=text_or_none(first.trace_ctx.request_id),
        region_id=text_or_none(first.trace_ctx.region_id),
        topic=_first(half.bean.topic for half in halves),
        keys=_first(half.bean.keys for half in halves),
        client_host=_first(half.bean.client_host for half in halves),
        missing=Half.BEGIN if before is None else Half.END if after is None else None,
        evidence=halves,
    )


def _consume_order(consume: Consume) -> tuple[float, float, float, str]:
    begin, end = _or_last(consume.from_ms), _or_last(consume.end_ms)
    return begin, _or_last(consume.retry_times), end, repr(consume.evidence[0].trace_ctx)


def _or_last(value: int | None) -> float:
    """Return a value to sort by: behind all others where it is not known."""
    return math.inf if value is None else value


_ENDED = {True: Outcome.SUCCESS, False: Outcome.FAILED, None: Outcome.UNKNOWN}


def build_timeline(msg_id: str, sightings: Sequence[Sighting], bad: Iterable[BadSighting] = ()) -> MessageTimeline:
    """Return the story of the message ``msg_id`` from the sightings of its records, given in any order.

    ``bad`` are the bad records of all trace messages that were read; those that lie in one of this message's, or name
    its id, become part of the story.
    """
    of_type: dict[TraceType, list[Sighting]] = {trace_type: [] for trace_type in TraceType}
    for sighting in sorted(sightings, key=_order):
        of_type[sighting.trace_ctx.trace_type].append(sighting)
    in_order = [sighting for of_one in of_type.values() for sighting in of_one]
    held = {place.rank[:-1] for sighting in in_order for place in sighting.places}
    return MessageTimeline(
        msg_id=msg_id,
        topics=_list_distinct(sighting.bean.topic for sighting in in_order),
        tags=_list_distinct(sighting.bean.tags for sighting in in_order),
        keys=_list_distinct(
            key for sighting in in_order for key in (text_or_none(sighting.bean.keys) or "").split(KEY_SEPARATOR)
        ),
        sends=tuple(map(_send, of_type[TraceType.PUB])),
        transaction_ends=tuple(map(_transaction_end, of_type[TraceType.END_TRANSACTION])),
        recalls=tuple(map(_recall, of_type[TraceType.RECALL])),
        groups=consumed_by([*of_type[TraceType.SUB_BEFORE], *of_type[TraceType.SUB_AFTER]]),
        bad=tuple(one for one in bad if one.place.rank[:-1] in held or msg_id in one.names),
        records=len(in_order),
        repeats=sum(sighting.seen - 1 for sighting in in_order),
    )


def _send(sighting: Sighting) -> Send:
    trace_ctx, bean = sighting.trace_ctx, sighting.bean
    begin_ms = started_ms(trace_ctx)
    return Send(
        begin_ms=begin_ms,
        end_ms=None if begin_ms is None or trace_ctx.cost_ms is None else begin_ms + trace_ctx.cost_ms,
        cost_ms=trace_ctx.cost_ms,
        outcome=_ENDED[trace_ctx.success],
        body_bytes=bean.body_length,
        msg_type=bean.msg_type,
        offset_msg_id=text_or_none(bean.offset_msg_id),
        of_batch=sighting.of_batch,
        **_texts(sighting, "topic", "tags", "keys", "store_host", "client_host"),
    )


def _transaction_end(sighting: Sighting) -> TransactionEnd:
    bean = sighting.bean
    return TransactionEnd(
        at_ms=sighting.trace_ctx.timestamp_ms,
        state=bean.transaction_state,
        from_check=bean.from_transaction_check,
        **_texts(sighting, "transaction_id", "topic", "tags", "keys", "store_host", "client_host"),
    )


def _recall(sighting: Sighting) -> Recall:
    return Recall(
        at_ms=sighting.trace_ctx.timestamp_ms,
        outcome=_ENDED[sighting.trace_ctx.success],
        **_texts(sighting, "topic"),
    )


def _texts(sighting: Sighting, *of_bean: str) -> dict[str, Any]:
    return {
        "group": text_or_none(sighting.trace_ctx.group_name),
        "region_id": text_or_none(sighting.trace_ctx.region_id),
        "evidence": (sighting,),
        **{name: text_or_none(getattr(sighting.bean, name)) for name in of_bean},
    }


def _list_distinct(texts: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in map(text_or_none, texts) if text is not None))


def _order(sighting: Sighting) -> tuple[float, str]:
    return _or_last(started_ms(sighting.trace_ctx)), repr(sighting.trace_ctx)


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


OUTCOME_TONES = {
    Outcome.SUCCESS: Tone.GOOD,
    Outcome.FAILED: Tone.BAD,
    Outcome.UNFINISHED: Tone.OPEN,
    Outcome.UNKNOWN: Tone.OPEN,
}
STATES = {
    TransactionState.COMMIT_MESSAGE: ("committed", Tone.GOOD),
    TransactionState.ROLLBACK_MESSAGE: ("rolled back", Tone.BAD),
    TransactionState.UNKNOW: ("undecided", Tone.OPEN),
    None: ("unknown", Tone.OPEN),
}
"""The word and the tone of a transaction's end."""


def events(story: MessageTimeline) -> tuple[Event, ...]:
    """Return every event of ``story`` in order of time; those without a time come last."""
    rank = {kind: number for number, kind in enumerate(Kind)}

    def order(event: Event) -> tuple[float, int, str, int]:
        return (_or_last(event.from_ms), rank[event.kind], event.group or "", event.attempt or 0)

    return tuple(sorted(_events(story), key=order))


def describe_end(end: TransactionEnd) -> str:
    """Return the producer's decision in words, and whether a check of the broker asked for it."""
    return f"{STATES[end.state][0]}{' on check' if end.from_check else ''}"


def _events(story: MessageTimeline) -> Iterator[Event]:
    several = len({send.topic for send in story.sends}) > 1
    for send in story.sends:
        name = f"send to {visible(send.topic or ABSENT, limit=80)}" if several else "send"
        until_ms = send.begin_ms if send.end_ms is None else send.end_ms
        how = (send.cost_ms, send.outcome.value, OUTCOME_TONES[send.outcome])
        yield _event(send, Kind.SEND, name, send.begin_ms, until_ms, *how)
    for end in story.transaction_ends:
        how = (None, describe_end(end), STATES[end.state][1])
        yield _event(end, Kind.TRANSACTION_END, "transaction", end.at_ms, end.at_ms, *how)
    for recall in story.recalls:
        how = (None, recall.outcome.value, OUTCOME_TONES[recall.outcome])
        yield _event(recall, Kind.RECALL, "recall", recall.at_ms, recall.at_ms, *how)
    for group in story.groups:
        for number, consume in enumerate(group.attempts, start=1):
            name = f"consume (delivery {number})" if number > 1 else "consume"
            late = consume.context_code is ContextCode.TIME_OUT and consume.outcome is Outcome.SUCCESS
            how = (
                consume.elapsed_ms,
                _describe_consume(consume),
                Tone.CARE if late else OUTCOME_TONES[consume.outcome],
            )
            event = _event(consume, Kind.CONSUME, name, consume.from_ms, consume.end_ms, *how)
            yield replace(event, group=group.group, attempt=number, begin_known=consume.missing is not Half.BEGIN)


def _event(  # noqa: PLR0913, PLR0917 - what differs from kind to kind
    source: Send | TransactionEnd | Recall | Consume,
    kind: Kind,
    name: str,
    from_ms: int | None,
    until_ms: int | None,
    took_ms: int | None,
    outcome: str,
    tone: Tone,
) -> Event:
    shared: dict[str, Any] = {
        field: getattr(source, field, None) for field in ("group", "topic", "store_host", "client_host")
    }
    when: dict[str, Any] = {"from_ms": from_ms, "until_ms": until_ms, "took_ms": took_ms}
    return Event(name=name, kind=kind, outcome=outcome, tone=tone, **when, **shared)


def _describe_consume(consume: Consume) -> str:
    code = consume.context_code
    if code is None or code in {ContextCode.SUCCESS, ContextCode.FAILED}:
        return consume.outcome.value
    return f"{consume.outcome.value}, {code.name}"
