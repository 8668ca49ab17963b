"""The timeline of one message: every event of its life as data, built from its trace records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

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


class Kind(str, Enum):
    """What an event is; the value is the word in the JSON."""

    SEND = "send"
    TRANSACTION_END = "end_transaction"
    RECALL = "recall"
    CONSUME = "consume"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One event as its records have it, with the fields of its kind: those of ``STEP_FIELDS``.

    A send is an attempt that got an answer; ``of_batch`` is how many messages were sent by it. The end of a transaction
    is a producer's decision on a half message, written before it is sent; ``from_check`` after a broker's check. A
    recall is a request to take a delayed message back. A consume is one delivery to one group's listener: ``cost_ms``
    is RocketMQ's, the listener's time divided by its number of messages. ``end_estimated``: ``end_ms`` is the begin
    plus that cost, because 4.x clients write no time at the end. ``missing`` is the missing half.
    """

    kind: Kind
    evidence: tuple[Sighting, ...]
    at_ms: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    end_estimated: bool = False
    cost_ms: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    context_code: ContextCode | None = None
    retry_times: int | None = None
    request_id: str | None = None
    state: TransactionState | None = None
    from_check: bool | None = None
    transaction_id: str | None = None
    group: str | None = None
    region_id: str | None = None
    topic: str | None = None
    tags: str | None = None
    keys: str | None = None
    body_bytes: int | None = None
    msg_type: MessageType | None = None
    store_host: str | None = None
    client_host: str | None = None
    offset_msg_id: str | None = None
    of_batch: int = 1
    missing: Half | None = None

    @property
    def from_ms(self) -> int | None:
        """When it began; without a recorded begin, the end less the cost."""
        if self.begin_ms is None and self.end_ms is not None:
            return self.end_ms - max(self.cost_ms or 0, 0)
        return self.at_ms if self.begin_ms is None else self.begin_ms

    @property
    def elapsed_ms(self) -> int | None:
        """From begin to end on the client's clock; the cost where one is missing or the clock was set back."""
        if self.begin_ms is None or self.end_ms is None or self.end_ms < self.begin_ms:
            return self.cost_ms
        return self.end_ms - self.begin_ms


STEP_FIELDS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.SEND: (
        *("begin_ms", "end_ms", "cost_ms", "outcome", "group", "region_id", "topic", "tags", "keys", "body_bytes"),
        *("msg_type", "store_host", "client_host", "offset_msg_id", "of_batch"),
    ),
    Kind.TRANSACTION_END: (
        *("at_ms", "state", "from_check", "transaction_id", "group", "region_id", "topic", "tags", "keys"),
        *("store_host", "client_host"),
    ),
    Kind.RECALL: ("at_ms", "outcome", "group", "region_id", "topic"),
    Kind.CONSUME: (
        *("begin_ms", "end_ms", "end_estimated", "cost_ms", "outcome", "context_code", "retry_times", "request_id"),
        *("region_id", "topic", "keys", "client_host", "missing"),
    ),
}
"""The fields of each kind, in the order of the JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimeline:
    """What one consumer group made of the message, in order; ``group`` is ``None`` where no record names it."""

    group: str | None
    attempts: tuple[Step, ...]

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
    sends: tuple[Step, ...] = ()
    transaction_ends: tuple[Step, ...] = ()
    recalls: tuple[Step, ...] = ()
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
    by_group: dict[str | None, list[Step]] = {}
    for request_id, of_request in by_request.items():
        for before, after in _pairs(of_request, joined=request_id is not None):
            consume = _consume(before, after)
            by_group.setdefault(consume.group, []).append(consume)
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


def _consume(before: Sighting | None, after: Sighting | None) -> Step:
    halves = tuple(half for half in (before, after) if half is not None)
    first = halves[0]
    begin_ms = None if before is None else before.trace_ctx.timestamp_ms
    end_ms = None if after is None else after.trace_ctx.timestamp_ms
    cost_ms = None if after is None else after.trace_ctx.cost_ms
    estimated_ms = None if end_ms is not None or begin_ms is None or cost_ms is None else begin_ms + cost_ms
    return Step(
        kind=Kind.CONSUME,
        evidence=halves,
        begin_ms=begin_ms,
        end_ms=end_ms if estimated_ms is None else estimated_ms,
        end_estimated=estimated_ms is not None,
        cost_ms=cost_ms,
        outcome=Outcome.UNFINISHED if after is None else _ENDED[after.trace_ctx.success],
        context_code=None if after is None else after.trace_ctx.context_code,
        retry_times=None if before is None else before.bean.retry_times,
        request_id=text_or_none(first.trace_ctx.request_id),
        group=_first(half.trace_ctx.group_name for half in halves),
        region_id=text_or_none(first.trace_ctx.region_id),
        topic=_first(half.bean.topic for half in halves),
        keys=_first(half.bean.keys for half in halves),
        client_host=_first(half.bean.client_host for half in halves),
        missing=Half.BEGIN if before is None else Half.END if after is None else None,
    )


def _consume_order(consume: Step) -> tuple[float, float, float, str]:
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
        sends=tuple(_make_step(Kind.SEND, one) for one in of_type[TraceType.PUB]),
        transaction_ends=tuple(_make_step(Kind.TRANSACTION_END, one) for one in of_type[TraceType.END_TRANSACTION]),
        recalls=tuple(_make_step(Kind.RECALL, one) for one in of_type[TraceType.RECALL]),
        groups=consumed_by([*of_type[TraceType.SUB_BEFORE], *of_type[TraceType.SUB_AFTER]]),
        bad=tuple(one for one in bad if one.place.rank[:-1] in held or msg_id in one.names),
        records=len(in_order),
        repeats=sum(sighting.seen - 1 for sighting in in_order),
    )


def _make_step(kind: Kind, sighting: Sighting) -> Step:
    trace_ctx, bean = sighting.trace_ctx, sighting.bean
    begin_ms, cost_ms = started_ms(trace_ctx), trace_ctx.cost_ms
    recorded: dict[str, Any] = {
        "at_ms": trace_ctx.timestamp_ms,
        "begin_ms": begin_ms,
        "end_ms": None if begin_ms is None or cost_ms is None else begin_ms + cost_ms,
        "cost_ms": cost_ms,
        "outcome": _ENDED[trace_ctx.success],
        "state": bean.transaction_state,
        "from_check": bean.from_transaction_check,
        "group": text_or_none(trace_ctx.group_name),
        "region_id": text_or_none(trace_ctx.region_id),
        "body_bytes": bean.body_length,
        "msg_type": bean.msg_type,
        "of_batch": sighting.of_batch,
    }
    texts = {name: getattr(bean, name) for name in STEP_FIELDS[kind] if name not in recorded}
    recorded |= {name: text_or_none(text) for name, text in texts.items()}
    return Step(kind=kind, evidence=(sighting,), **{name: recorded[name] for name in STEP_FIELDS[kind]})


def _list_distinct(texts: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in map(text_or_none, texts) if text is not None))


def _order(sighting: Sighting) -> tuple[float, str]:
    return _or_last(started_ms(sighting.trace_ctx)), repr(sighting.trace_ctx)


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


def describe_end(end: Step) -> str:
    """Return the producer's decision in words, and whether a check of the broker asked for it."""
    return f"{STATES[end.state][0]}{' on check' if end.from_check else ''}"


def _events(story: MessageTimeline) -> Iterator[Event]:
    several = len({send.topic for send in story.sends}) > 1
    for send in story.sends:
        name = f"send to {visible(send.topic or ABSENT, limit=80)}" if several else "send"
        until_ms = send.begin_ms if send.end_ms is None else send.end_ms
        yield _event(send, name, until_ms, send.outcome.value, OUTCOME_TONES[send.outcome])
    for end in story.transaction_ends:
        yield _event(end, "transaction", end.at_ms, describe_end(end), STATES[end.state][1])
    for recall in story.recalls:
        yield _event(recall, "recall", recall.at_ms, recall.outcome.value, OUTCOME_TONES[recall.outcome])
    for group in story.groups:
        for number, consume in enumerate(group.attempts, start=1):
            name = f"consume (delivery {number})" if number > 1 else "consume"
            late = consume.context_code is ContextCode.TIME_OUT and consume.outcome is Outcome.SUCCESS
            tone = Tone.CARE if late else OUTCOME_TONES[consume.outcome]
            event = _event(consume, name, consume.end_ms, _describe_consume(consume), tone)
            yield replace(event, attempt=number)


def _event(step: Step, name: str, until_ms: int | None, outcome: str, tone: Tone) -> Event:
    return Event(
        name=name,
        kind=step.kind,
        from_ms=step.from_ms,
        until_ms=until_ms,
        took_ms=step.elapsed_ms,
        group=step.group,
        outcome=outcome,
        tone=tone,
        topic=step.topic,
        store_host=step.store_host,
        client_host=step.client_host,
        begin_known=step.missing is not Half.BEGIN,
    )


def _describe_consume(consume: Step) -> str:
    code = consume.context_code
    if code is None or code in {ContextCode.SUCCESS, ContextCode.FAILED}:
        return consume.outcome.value
    return f"{consume.outcome.value}, {code.name}"
