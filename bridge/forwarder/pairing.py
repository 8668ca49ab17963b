"""Join the trace records of one event, and bound how long one half waits for the other.

Theory of operation. A listener call leaves two records for each message, ``SubBefore`` and ``SubAfter``, that share
request id and message id. They arrive in any order, in different trace messages, on different partitions: the first one
waits for the second. A send that the broker refused leaves its own ``Pub``, and another attempt may follow: it waits
for the accepted one, because only one of them can be the root of the trace. Every other record is an event at once.

The caller tells ``expire`` how far the trace topic has been read, in the topic's own time. A record that has waited
``timeout_ms`` goes out alone, and so does the oldest when more than ``max_pending`` wait. ``held`` returns the places
of waiting records: nothing behind them is committed. No I/O and no clock: the same records give the same events,
whatever their order and their batches.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from otel_mqtrace.model import TraceBean, TraceContext, TraceType
from otel_mqtrace.wire.native.decode import maker_of
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEFAULT_MAX_PENDING", "DEFAULT_TIMEOUT_MS", "Event", "Half", "Pairing", "PairingCounts", "Place", "Record"]

DEFAULT_TIMEOUT_MS: Final = 60_000
DEFAULT_MAX_PENDING: Final = 100_000
"""Records that wait at most; one takes about a kilobyte."""
_HALVES: Final = (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)
_CALL, _SEND = "call", "send"
_FIRST: Final = "first"
"""The half that waits for the other: of a call there is never more than one."""


class Place(NamedTuple):
    """Where a trace message lies in its source; numbers as in :class:`~otel_mqtrace.landing.layout.LandedMessage`."""

    source: str
    partition: int | None
    offset: int | None


class Half(str, Enum):
    """Which record of a listener call is all there is of it."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One trace record about one message: ``trace_ctx`` has one bean.

    ``arrival_ms`` is when the trace topic got it, in epoch milliseconds; ``stored_ms`` is the same in the words of the
    topic, whose clock may be ahead (by default the same number). ``writer`` is the dialect it was read as;
    ``messages`` is how many messages were sent by the call that it reports; ``index`` counts the records of its trace
    message from 0.
    """

    trace_ctx: TraceContext
    place: Place
    arrival_ms: int
    stored_ms: int | None = None
    writer: str | None = None
    messages: int = 1
    index: int = 0

    @property
    def bean(self) -> TraceBean:
        """The message."""
        return self.trace_ctx.beans[0] if self.trace_ctx.beans else TraceBean()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What one span will say.

    ``record`` is the event's record, the later one of two; ``before`` is the first half of a complete listener call.
    ``half`` names the half that stands alone. ``is_root`` is ``False`` for a send that another attempt made good.
    """

    record: Record
    before: Record | None = None
    half: Half | None = None
    is_root: bool = True


_event: Final = maker_of(Event)
_IS_ROOT: Final = True


@dataclass(slots=True)
class PairingCounts:
    """What became of the records so far: ``halves`` went out alone, ``overflowed`` of them because too many waited."""

    paired: int = 0
    halves: int = 0
    overflowed: int = 0
    repeated: int = 0


_Key = tuple[str, ...]


class Pairing:
    """Takes records in any order and gives back events; see the module's theory of operation.

    Args:
        timeout_ms: How long a record waits for its partner, in the time of the trace topic.
        max_pending: Records that may wait; beyond, the one that arrived first goes out alone and is counted.
    """

    def __init__(self, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, max_pending: int = DEFAULT_MAX_PENDING) -> None:
        self.counts = PairingCounts()
        self._timeout_ms = timeout_ms
        self._max_pending = max_pending
        self._waiting: dict[_Key, dict[object, Record]] = {}  # attempts by what they say, in the order they came
        self._pending = 0
        self._oldest: list[tuple[int, int, _Key]] = []  # a heap by arrival; keys that are gone are passed over
        self._ordinals = itertools.count()
        self._settled = _Remembered(max_pending)

    @property
    def pending(self) -> int:
        """How many records wait."""
        return self._pending

    def waiting(self) -> Iterator[Record]:
        """Yield the records that wait."""
        return itertools.chain.from_iterable(records.values() for records in self._waiting.values())

    def held(self) -> Iterator[Place]:
        """Yield where the waiting records lie: what must be read again if it is not remembered here."""
        return (record.place for record in self.waiting())

    def take(self, record: Record) -> list[Event]:
        """Return the events that ``record`` completes; none when it waits or says nothing new."""
        trace_type = record.trace_ctx.trace_type
        if trace_type in _HALVES:
            return self._take_half(record)
        if trace_type is TraceType.PUB:
            return self._take_send(record)
        return [_event(record, None, None, _IS_ROOT)]

    def expire(self, now_ms: int) -> list[Event]:
        """Return the events of what arrived ``timeout_ms`` before ``now_ms`` or earlier and still waits."""
        until_ms = now_ms - self._timeout_ms
        events: list[Event] = []
        while self._oldest and self._oldest[0][0] <= until_ms:
            events += self._release(heapq.heappop(self._oldest)[2])
        self._settled.forget(until_ms)
        return events

    def flush(self) -> list[Event]:
        """Return the events of everything that waits."""
        events = [event for key in list(self._waiting) for event in self._release(key)]
        self._oldest.clear()
        return events

    # -- the two halves of a listener call ---------------------------------------------------------------------------

    def _take_half(self, record: Record) -> list[Event]:
        request_id, msg_id = record.trace_ctx.request_id, record.bean.msg_id
        if request_id is None or msg_id is None or request_id in ABSENT_TEXTS or msg_id in ABSENT_TEXTS:
            return [self._alone(record)]  # nothing that a partner could be told by
        key = (_CALL, request_id, msg_id)
        waiting = self._waiting.get(key)
        if waiting is None:
            return [] if self._is_repeated(key) else self._wait(key, _FIRST, record)
        first = waiting[_FIRST]
        if first.trace_ctx.trace_type is record.trace_ctx.trace_type:
            self.counts.repeated += 1
            return []
        self._forget(key)
        self.counts.paired += 1
        if first.place != record.place:  # a trace message that comes twice brings both halves again, or this is needed
            self._settled.add(key, record.arrival_ms)
        is_before = record.trace_ctx.trace_type is TraceType.SUB_BEFORE
        before, after = (record, first) if is_before else (first, record)
        return [_event(after, before, None, _IS_ROOT)]

    def _is_repeated(self, key: _Key) -> bool:
        repeated = key in self._settled
        self.counts.repeated += repeated
        return repeated

    def _alone(self, record: Record) -> Event:
        self.counts.halves += 1
        is_before = record.trace_ctx.trace_type is TraceType.SUB_BEFORE
        return Event(record=record, half=Half.BEFORE if is_before else Half.AFTER)

    # -- the attempts of a send --------------------------------------------------------------------------------------

    def _take_send(self, record: Record) -> list[Event]:
        msg_id = record.bean.msg_id
        if msg_id is None or msg_id in ABSENT_TEXTS:
            return [_event(record, None, None, _IS_ROOT)]
        key = (_SEND, msg_id)
        if record.trace_ctx.success is False:
            if key in self._settled:
                return [Event(record=record, is_root=False)]
            if record.trace_ctx in self._waiting.get(key, ()):
                self.counts.repeated += 1
                return []
            return self._wait(key, record.trace_ctx, record)
        self._settled.add(key, record.arrival_ms)
        events: list[Event] = [_event(record, None, None, _IS_ROOT)]
        if key in self._waiting:
            events += [Event(record=other, is_root=False) for other in self._forget(key)]
        return events

    def _without_accepted(self, key: _Key, records: list[Record]) -> list[Event]:
        """No attempt was accepted without reserve: the first is the root, or the trace would have none."""
        self._settled.add(key, records[-1].arrival_ms)
        first, *others = sorted(records, key=_attempt_order)
        return [Event(record=first), *(Event(record=other, is_root=False) for other in others)]

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, key: _Key, said: object, record: Record) -> list[Event]:
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = {}
            heapq.heappush(self._oldest, (record.arrival_ms, next(self._ordinals), key))
        waiting[said] = record
        self._pending += 1
        events: list[Event] = []
        while self._pending > self._max_pending:
            released = self._release(heapq.heappop(self._oldest)[2])
            self.counts.overflowed += len(released)
            events += released
        return events

    def _forget(self, key: _Key) -> list[Record]:
        records = list(self._waiting.pop(key, {}).values())
        self._pending -= len(records)
        if len(self._oldest) > 2 * len(self._waiting) + self._max_pending:
            self._oldest = [entry for entry in self._oldest if entry[2] in self._waiting]
            heapq.heapify(self._oldest)
        return records

    def _release(self, key: _Key) -> list[Event]:
        records = self._forget(key)
        if not records:
            return []
        if key[0] == _SEND:
            return self._without_accepted(key, records)
        return [self._alone(record) for record in records]


def _attempt_order(record: Record) -> tuple[int, str]:
    return record.trace_ctx.timestamp_ms or 0, repr(record.trace_ctx)


class _Remembered:
    """Keys that are settled, for as long as something late may name them again; never more than ``at_most``."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._keys: set[_Key] = set()
        self._order: deque[tuple[int, _Key]] = deque()

    def __contains__(self, key: _Key) -> bool:
        return key in self._keys

    def add(self, key: _Key, arrival_ms: int) -> None:
        if key in self._keys:
            return
        self._keys.add(key)
        self._order.append((arrival_ms, key))
        while len(self._order) > self._at_most:
            self._keys.discard(self._order.popleft()[1])

    def forget(self, until_ms: int) -> None:
        while self._order and self._order[0][0] <= until_ms:
            self._keys.discard(self._order.popleft()[1])
