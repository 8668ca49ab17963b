"""This module knows the way of a trace message to delivered spans: decoded, taken apart, paired, made spans, delivered.

What was taken is either delivered by :meth:`SpanForwarding.deliver`, or waits for its other half and is on hold.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Protocol

from bridge.codec.reading import Reading
from bridge.forwarder.meaning import SpanRules
from bridge.forwarder.pairing import Pairing, Place, Record
from bridge.forwarder.settled import EVERYTHING, SettledMemory
from otel_mqtrace._clock import SystemClock
from otel_mqtrace.wire.native import decode_body, explode
from otel_mqtrace.wire.native.building import maker_of

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable, Sequence

    from bridge.forwarder.pairing import Event
    from otel_mqtrace._clock import Clock
    from otel_mqtrace.landing.layout import LandedMessage

__all__ = ["Delivery", "SpanCounts", "SpanForwarding"]

_DELIVER_AT: Final = 2_048
_SETTLE_AT: Final = 20_000
_NS_PER_MS: Final = 1_000_000
_record: Final = maker_of(Record)


class Delivery(Protocol):
    """Where the spans of events go; ``OtlpDelivery`` is one."""

    rejected: int

    def deliver(self, events: Sequence[Event], rules: SpanRules) -> None:
        """Have the spans of all ``events`` accepted, or raise ``PeerError``."""
        ...


@dataclass(slots=True)
class SpanCounts:
    """What became of the records so far.

    ``halves`` are spans of one half; ``overflowed`` of them were not waited for because too many waited. ``repeated``
    records said nothing new. ``bad_records`` are in the landing only. ``rejected`` spans were taken and thrown away.
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
        return {each.name: getattr(self, each.name) for each in fields(self)}


class SpanForwarding:
    """Turns trace messages into delivered spans.

    Args:
        delivery: Where the spans go.
        pairing: What waits for what, and how long.
        rules: What the records cannot say of themselves.
        reading: How bodies are read.
        memory: What an earlier process has forwarded beyond its last commit.
        clock: Time; only the wall clock is asked.

    Not thread-safe: one thread forwards.
    """

    def __init__(  # noqa: PLR0913 - every collaborator by name
        self,
        delivery: Delivery,
        *,
        pairing: Pairing | None = None,
        rules: SpanRules | None = None,
        reading: Reading | None = None,
        memory: SettledMemory | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._delivery = delivery
        self._pairing = pairing or Pairing()
        self._rules = rules or SpanRules()
        self._reading = reading or Reading()
        self._memory = memory or SettledMemory()
        self._clock = clock or SystemClock()
        self._ready: list[Event] = []
        self._arrived_ms: dict[int | None, int] = {}
        self._counts = SpanCounts()
        self._since_settled = 0
        self._delivered = 0

    @property
    def counts(self) -> SpanCounts:
        """What became of everything so far."""
        paired = self._pairing.counts
        self._counts.halves, self._counts.overflowed = paired.halves, paired.overflowed
        self._counts.repeated, self._counts.pending = paired.repeated, self._pairing.pending
        self._counts.rejected = self._delivery.rejected
        return self._counts

    @property
    def has_delivered(self) -> bool:
        """Whether the receiver has accepted anything."""
        return self._counts.spans > 0

    @property
    def due(self) -> bool:
        """Whether so much was taken since the last :meth:`deliver` that it is worth a commit."""
        return self._since_settled >= _SETTLE_AT

    def take(self, messages: Iterable[LandedMessage]) -> list[LandedMessage]:
        """Read ``messages`` and make spans of what is complete; large heaps of spans are delivered at once.

        Returns:
            Those that are new: an earlier process may have forwarded some, but for records that waited.

        Raises:
            PeerError: as :meth:`deliver`.
        """
        now_ms, new = self._now_ms(), []
        for message in messages:
            arrival_ms = min(message.arrival_ms, now_ms)  # a clock that is ahead must not make anything wait longer
            self._arrived_ms[message.partition] = max(arrival_ms, self._arrived_ms.get(message.partition, 0))
            left = self._memory.left_of(message)
            if left is EVERYTHING:
                new.append(message)
            for record in self._records(message, arrival_ms, left):
                self._ready += self._pairing.take(record)
        if len(self._ready) >= _DELIVER_AT:
            self._hand_over()
        return new

    def expire(self, behind: Collection[int | None] = ()) -> None:
        """Let go what waited too long: measured by how far the slowest partition that is ``behind`` has been read.

        With none behind, everything there is has been read, and the wall clock tells how old it is.
        """
        now_ms = min((self._arrived_ms.get(each, 0) for each in behind), default=None)
        self._ready += self._pairing.expire(self._now_ms() if now_ms is None else now_ms)

    def flush(self) -> None:
        """Let go everything that waits."""
        self._ready += self._pairing.flush()

    def deliver(self) -> int:
        """Have everything delivered that does not wait; return how many spans were since the last time.

        Raises:
            PeerError: the receiver did not accept it; it is kept for the next attempt.
        """
        self._hand_over()
        delivered, self._delivered, self._since_settled = self._delivered, 0, 0
        return delivered

    def hold(self) -> set[Place]:
        """Remember what is delivered, and return where the records lie that still wait: nothing there is done yet.

        Raises:
            UsageError: the memory cannot be written.
        """
        self._memory.remember(self._pairing.waiting())
        return set(self._pairing.held())

    def _records(self, message: LandedMessage, arrival_ms: int, left: Container[int]) -> Iterable[Record]:
        place = Place(message.source, message.partition, message.offset)
        decoded = decode_body(message.body, msg_type_map=self._reading.msg_type_map, charset=self._reading.charset)
        is_new = left is EVERYTHING
        if is_new:
            self._counts.bad_records += len(decoded.errors)
        for index, trace_ctx in zip(decoded.record_indexes, decoded.contexts, strict=True):
            if not (is_new or index in left):
                continue
            self._counts.records += 1
            self._since_settled += 1
            messages = explode(trace_ctx)
            for each in messages:
                yield _record(each, place, arrival_ms, message.arrival_ms, None, len(messages), index)

    def _hand_over(self) -> None:
        if self._ready:
            self._delivery.deliver(self._ready, self._rules)
            self._counts.spans += len(self._ready)
            self._delivered += len(self._ready)
            self._ready = []

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // _NS_PER_MS
