"""This module knows the way of a trace message to delivered spans: decoded, taken apart, paired, made spans, delivered.

What was taken is either delivered by :meth:`SpanForwarding.deliver`, or waits for its other half and is ``held``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, Protocol

from bridge.codec.native import decode_body, explode
from bridge.codec.reading import Reading
from bridge.forwarder.pairing import Pairing, Place, Record
from bridge.forwarder.spans import SpanRules, span_of
from otel_mqtrace._clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from bridge.forwarder.pairing import Event
    from bridge.landing.layout import LandedMessage
    from otel_mqtrace._clock import Clock

__all__ = ["Delivery", "SpanCounts", "SpanForwarding"]

_DELIVER_AT: Final = 2_048
_SETTLE_AT: Final = 20_000
_NS_PER_MS: Final = 1_000_000


class Delivery(Protocol):
    """Where spans go; ``OtlpDelivery`` is one."""

    rejected: int

    def deliver(self, spans: Sequence[ReadableSpan]) -> None:
        """Have all of ``spans`` accepted, or raise ``PeerError``."""
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
        clock: Time; only the wall clock is asked.

    Not thread-safe: one thread forwards.
    """

    def __init__(
        self,
        delivery: Delivery,
        *,
        pairing: Pairing | None = None,
        rules: SpanRules | None = None,
        reading: Reading | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._delivery = delivery
        self._pairing = pairing or Pairing()
        self._rules = rules or SpanRules()
        self._reading = reading or Reading()
        self._clock = clock or SystemClock()
        self._ready: list[ReadableSpan] = []
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
    def due(self) -> bool:
        """Whether so much was taken since the last :meth:`deliver` that it is worth a commit."""
        return self._since_settled >= _SETTLE_AT

    def take(self, messages: Iterable[LandedMessage]) -> None:
        """Read ``messages`` and make spans of what is complete; large heaps of spans are delivered at once.

        Raises:
            PeerError: as :meth:`deliver`.
        """
        now_ms = self._now_ms()
        for message in messages:
            arrival_ms = min(message.arrival_ms, now_ms)  # a clock that is ahead must not make anything wait longer
            self._arrived_ms[message.partition] = max(arrival_ms, self._arrived_ms.get(message.partition, 0))
            for record in self._records(message, arrival_ms):
                self._say(self._pairing.take(record))
        if len(self._ready) >= _DELIVER_AT:
            self._hand_over()

    def expire(self, behind: Collection[int | None] = ()) -> None:
        """Let go what waited too long: measured by how far the slowest partition that is ``behind`` has been read.

        With none behind, everything there is has been read, and the wall clock tells how old it is.
        """
        now_ms = min((self._arrived_ms.get(each, 0) for each in behind), default=None)
        self._say(self._pairing.expire(self._now_ms() if now_ms is None else now_ms))

    def flush(self) -> None:
        """Let go everything that waits."""
        self._say(self._pairing.flush())

    def deliver(self) -> int:
        """Have everything delivered that does not wait; return how many spans were since the last time.

        Raises:
            PeerError: the receiver did not accept it; it is kept for the next attempt.
        """
        self._hand_over()
        delivered, self._delivered, self._since_settled = self._delivered, 0, 0
        return delivered

    def held(self) -> set[Place]:
        """Return where the records lie that still wait: nothing from there on may be called done."""
        return set(self._pairing.held())

    def _records(self, message: LandedMessage, arrival_ms: int) -> Iterable[Record]:
        place = Place(message.source, message.partition, message.offset)
        decoded = decode_body(message.body, msg_type_map=self._reading.msg_type_map, charset=self._reading.charset)
        self._counts.records += len(decoded.contexts)
        self._counts.bad_records += len(decoded.errors)
        self._since_settled += len(decoded.contexts)
        for trace_ctx in decoded.contexts:
            messages = explode(trace_ctx)
            for each in messages:
                yield Record(trace_ctx=each, place=place, arrival_ms=arrival_ms, messages=len(messages))

    def _say(self, events: Iterable[Event]) -> None:
        self._ready += (span_of(event, self._rules) for event in events)

    def _hand_over(self) -> None:
        if self._ready:
            self._delivery.deliver(self._ready)
            self._counts.spans += len(self._ready)
            self._delivered += len(self._ready)
            self._ready = []

    def _now_ms(self) -> int:
        return self._clock.wall_ns() // _NS_PER_MS
