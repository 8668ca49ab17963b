"""Join the trace records of one event, and bound how long one half waits for the other.

A listener call leaves ``SubBefore`` and ``SubAfter`` for each message, with the same request id and message id, in any
order and on different partitions. A send that the broker refused leaves its own ``Pub``, which waits for an accepted
attempt, because only one can be the root of the trace. Every other record is an event at once.

The caller gives ``expire`` how far the trace topic has been read, in the topic's own time. A record that has waited
``timeout_ms`` goes out alone, and so does the oldest when more than ``max_pending`` wait. Nothing beyond the positions
of ``uncommitted`` is committed. No I/O and no clock: the same records give the same events in any order and batches.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict
from dataclasses import asdict, dataclass
from enum import Enum
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native.decode import MODEL_FIELDS, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


DEFAULT_TIMEOUT_MS: Final = 60_000
DEFAULT_MAX_PENDING: Final = 100_000
"""Records that wait at most; one takes about a kilobyte."""
_PUB, _SUB_BEFORE, _SUB_AFTER = TraceType.PUB, TraceType.SUB_BEFORE, TraceType.SUB_AFTER
_MSG_ID, _REQUEST_ID, _SUCCESS, _TIMESTAMP_MS = map(
    MODEL_FIELDS.index, ("msg_id", "request_id", "success", "timestamp_ms")
)
_IN_ORDER: Final = itemgetter(
    *map(MODEL_FIELDS.index, ("timestamp_ms", "region_id", "region_name", "group_name", "request_id", "cost_ms")),
    *range(MODEL_FIELDS.index("region_id")),
)


class Position(NamedTuple):
    """Where a trace message lies in its source; numbers as in :class:`~otel_mqtrace.landing.LandedMessage`."""

    source: str
    partition: int | None
    offset: int | None


class Half(str, Enum):
    """Which record of a listener call is all there is of it."""

    BEFORE = "before"
    AFTER = "after"


class Origin(NamedTuple):
    """The trace message of a record, and when the trace topic got it, in epoch milliseconds.

    ``stored_ms`` is the time in the words of the topic, whose clock may be ahead of the forwarder's; ``arrival_ms``
    never is. ``since_ms`` is from when on its records wait.
    """

    position: Position
    arrival_ms: int
    stored_ms: int
    since_ms: int


Record = Row[Origin]
"""One trace record about one message: origin, index in its trace message, type, messages of its batch, values."""


class Event(NamedTuple):
    """The input of one span.

    ``record`` is the event's record, the later one of two; ``before`` is the first half of a complete listener call.
    ``half`` names the half that stands alone. ``is_root`` is ``False`` for a send whose later attempt succeeded.
    """

    record: Record
    before: Record | None = None
    half: Half | None = None
    is_root: bool = True


_new_event: Final[Callable[[tuple[Record, Record | None, Half | None, bool]], Event]] = partial(tuple.__new__, Event)
"""``Event._make`` without code of Python's: it is called for every span."""


@dataclass(slots=True)
class SpanCounts:
    """The outcome of the records so far; the caller of a pairing adds what is read and delivered.

    ``halves`` are spans of one half; ``overflowed`` of them stopped waiting because too many waited. ``repeated``
    records equalled earlier ones, ``pending`` ones wait. ``bad_records`` are in the landing only. ``rejected`` spans
    were taken and thrown away.
    """

    records: int = 0
    bad_records: int = 0
    spans: int = 0
    halves: int = 0
    overflowed: int = 0
    repeated: int = 0
    rejected: int = 0
    pending: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        return asdict(self)


_Key = str | tuple[str, str]
"""Of a send its message id, of a listener call request id and message id."""
_Waiting = Record | dict[tuple[Any, ...], Record]
"""The first half of a call, or the attempts of a send by their values, in the order they came."""


class Pairing:
    """Takes records in any order and gives back events; see the module's docstring.

    Args:
        timeout_ms: How long a record waits for its partner, in the time of the trace topic.
        max_pending: Records that may wait; beyond, the one that arrived first goes out alone and is counted.
    """

    def __init__(self, *, timeout_ms: int = DEFAULT_TIMEOUT_MS, max_pending: int = DEFAULT_MAX_PENDING) -> None:
        self.counts = SpanCounts()
        self._timeout_ms = timeout_ms
        self._max_pending = max_pending
        self._waiting: dict[_Key, _Waiting] = {}
        self._oldest: list[tuple[int, int, _Key]] = []  # a heap by arrival; keys that are gone are passed over
        self._ordinals = itertools.count()
        self._completed = _Completed(max_pending)

    def waiting(self) -> Iterator[Record]:
        """Yield the records that wait."""
        return itertools.chain.from_iterable(map(_records_of, self._waiting.values()))

    def uncommitted(self) -> set[Position]:
        """Return where the waiting records lie: what must be read again if it is not remembered here."""
        return {origin.position for origin, *_ in self.waiting()}

    def add(self, records: Iterable[Record]) -> list[Event]:
        """Return the events that ``records`` complete, without waiting and repeated ones."""
        events: list[Event] = []
        for record in records:
            trace_type = record[2]
            if trace_type is _SUB_BEFORE or trace_type is _SUB_AFTER:
                self._add_half(record, events)
            elif trace_type is _PUB:
                self._add_send(record, events)
            else:
                events.append(Event(record))
        return events

    def expire(self, now_ms: int) -> list[Event]:
        """Return the events of what arrived ``timeout_ms`` before ``now_ms`` or earlier and still waits."""
        until_ms = now_ms - self._timeout_ms
        events: list[Event] = []
        while self._oldest and self._oldest[0][0] <= until_ms:
            events += self._release(heapq.heappop(self._oldest)[2])
        self._completed.forget(until_ms)
        return events

    def flush(self) -> list[Event]:
        """Return the events of everything that waits."""
        events = [event for key in list(self._waiting) for event in self._release(key)]
        self._oldest.clear()
        return events

    def _add_half(self, record: Record, events: list[Event]) -> None:
        origin, _, trace_type, _, values = record
        request_id, msg_id = values[_REQUEST_ID], values[_MSG_ID]
        if request_id is None or msg_id is None:  # without both ids the other half cannot be found
            events.append(self._alone(record))
            return
        key = (request_id, msg_id)
        first: Any = self._waiting.get(key)
        if first is None:
            if key in self._completed:
                self.counts.repeated += 1
            else:
                self._wait(key, record, origin, events)
            return
        its_origin, _, its_type, _, _ = first
        if its_type is trace_type:
            self.counts.repeated += 1
            return
        self._forget(key)
        # A trace message that comes twice brings both halves again, or this is needed.
        if its_origin is not origin and its_origin.position != origin.position:
            self._completed.add(key, origin.since_ms)
        pair = (first, record) if trace_type is _SUB_BEFORE else (record, first)
        events.append(_new_event((*pair, None, True)))

    def _alone(self, record: Record) -> Event:
        self.counts.halves += 1
        _, _, trace_type, _, _ = record
        return Event(record, half=Half.BEFORE if trace_type is _SUB_BEFORE else Half.AFTER)

    def _add_send(self, record: Record, events: list[Event]) -> None:
        origin, _, _, _, values = record
        msg_id = values[_MSG_ID]
        if msg_id is None:
            events.append(Event(record))
        elif values[_SUCCESS] is not False:
            self._completed.add(msg_id, origin.since_ms)
            events.append(_new_event((record, None, None, True)))
            if msg_id in self._waiting:
                events += [Event(other, is_root=False) for other in self._forget(msg_id)]
        elif msg_id in self._completed:
            events.append(Event(record, is_root=False))
        else:
            attempts: Any = self._waiting.get(msg_id)
            if attempts is None:
                self._wait(msg_id, {values: record}, origin, events)
            elif values in attempts:
                self.counts.repeated += 1
            else:
                attempts[values] = record
                self._count_pending(events)

    def _wait(self, key: _Key, first: _Waiting, origin: Origin, events: list[Event]) -> None:
        self._waiting[key] = first
        heapq.heappush(self._oldest, (origin.since_ms, next(self._ordinals), key))
        self._count_pending(events)

    def _count_pending(self, events: list[Event]) -> None:
        self.counts.pending += 1
        while self.counts.pending > self._max_pending:
            released = self._release(heapq.heappop(self._oldest)[2])
            self.counts.overflowed += len(released)
            events += released

    def _forget(self, key: _Key) -> Sequence[Record]:
        records = _records_of(self._waiting.pop(key, {}))
        self.counts.pending -= len(records)
        if len(self._oldest) > 2 * len(self._waiting) + self._max_pending:
            self._oldest = [entry for entry in self._oldest if entry[2] in self._waiting]
            heapq.heapify(self._oldest)
        return records

    def _release(self, key: _Key) -> list[Event]:
        records = self._forget(key)
        if records and isinstance(key, str):  # no attempt was accepted: the first becomes the root
            last, *_ = records[-1]
            self._completed.add(key, last.since_ms)
            first, *others = sorted(records, key=_attempt_order)
            return [Event(first), *(Event(other, is_root=False) for other in others)]
        return [self._alone(record) for record in records]


def _records_of(waiting: _Waiting) -> Sequence[Record]:
    return list(waiting.values()) if isinstance(waiting, dict) else (waiting,)


def _attempt_order(record: Record) -> tuple[int, str]:
    *_, values = record
    return values[_TIMESTAMP_MS] or 0, repr(_IN_ORDER(values))


class _Completed(OrderedDict[_Key, int]):
    """Keys of complete events, for as long as something late may name them again; never more than ``at_most``."""

    def __init__(self, at_most: int) -> None:
        super().__init__()
        self._at_most = at_most

    def add(self, key: _Key, since_ms: int) -> None:
        self.setdefault(key, since_ms)
        if len(self) > self._at_most:
            self.popitem(last=False)

    def forget(self, until_ms: int) -> None:
        while self and next(iter(self.values())) <= until_ms:
            self.popitem(last=False)
