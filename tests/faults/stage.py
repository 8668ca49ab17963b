"""Play a corpus: each fault in a time of its own, among clean traffic that never stops."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from otel_mqtrace._clock import Clock
from otel_mqtrace.message_id import UniqueIds
from otel_mqtrace.model import TraceBean
from otel_mqtrace.testing import ManualClock
from tests.faults.calls import Application, Call, Draft, consuming, message, received, sending
from tests.faults.changes import Change, nothing
from tests.faults.recording import Recording
from tests.faults.truth import EXACT, UNHARMED, Expected, Truth

BEGIN_MS = 1_793_489_400_000
"""2026-10-31T23:30:00Z: ids roll over with the month in UTC at once, in New York after 4.5 h; its clocks go back at +6.5 h."""
SLOT_MS = 240_000
_NS_PER_MS = 1_000_000
ORDERS = Application("order-service", "PG_orders", "10.1.0.1")
CONSUMERS = (
    Application("billing-service", "CG_billing", "10.1.0.2"),
    Application("shipping-service", "CG_shipping", "10.1.0.3"),
)


class Process:
    """One process of a client: the message ids it makes, by a wall clock ``utc_offset_ms`` ahead of UTC."""

    def __init__(self, address: str, pid: int, *, utc_offset_ms: Callable[[int], int] = lambda _ms: 0) -> None:
        self._clock = ManualClock(0)
        self._offset_ms = utc_offset_ms
        self._ids = UniqueIds(clock=self._clock, address=address, pid=pid, origin=0x60E53B93)

    def new_id(self, at_ms: int) -> str:
        wall_ms = at_ms + self._offset_ms(at_ms)
        self._clock.advance(ms=wall_ms - self._clock.wall_ns() // _NS_PER_MS)
        return self._ids.new()


@dataclass
class Stage:
    """The corpus while it is made: what was recorded, what is true, and the time of the slot that is played."""

    recording: Recording
    write_spans: Callable[[Iterable[Any]], Iterable[str]]
    usual: Expected = EXACT
    truth: Truth = field(default_factory=Truth)
    now_ms: int = BEGIN_MS
    process: Process = field(default_factory=lambda: Process("10.1.0.1", 4711))
    processes: dict[str, Process] = field(default_factory=dict)
    producer: Application = ORDERS
    burns_ids: bool = False
    messages: int = 0

    def bean(self, *, at_ms: int | None = None, process: Process | None = None, **fields: Any) -> TraceBean:
        self.messages += 1
        new_id = (process or self.process).new_id(self.now_ms if at_ms is None else at_ms)
        return message(new_id, number=self.messages, **fields)

    def sent(self, *, after_ms: int = 1000, **fields: Any) -> TraceBean:
        bean = self.bean(**fields)
        self.play(self.send(bean, after_ms=after_ms))
        return bean

    def attempt(self, consumer: Application) -> str:
        process = self.processes.setdefault(consumer.group, Process(consumer.host, 800 + len(self.processes)))
        return process.new_id(self.now_ms)

    def send(self, bean: TraceBean, *, after_ms: int = 1000, **fields: Any) -> Call:
        if self.burns_ids:
            self.burn()
        return sending(self.producer, self.now_ms + after_ms, bean, **fields)

    def burn(self) -> None:
        self.process.new_id(self.now_ms)

    def deliver(
        self,
        *beans: TraceBean,
        to: Application = CONSUMERS[0],
        after_ms: int = 2000,
        retry_times: int = 0,
        **fields: Any,
    ) -> Call:
        got = [received(bean, retry_times=retry_times) for bean in beans]
        return consuming(to, self.now_ms + after_ms, *got, attempt=self.attempt(to), **fields)

    def chat(self) -> None:
        """Let every service do its usual work: the start and the end of a slot look alike for all."""
        bean = self.bean()
        self.play(self.send(bean, after_ms=10))
        for number, consumer in enumerate(CONSUMERS):
            self.play(self.deliver(bean, to=consumer, after_ms=100 + number))

    def play(self, call: Call, change: Change = nothing, *expected: Expected, fault: str = UNHARMED) -> Draft:
        """Record what is left of a call after ``change`` and expect the verdicts of each of its events."""
        draft = self.record(call, change)
        for event in call.events:
            self.truth.expect(event, fault, *(expected or (self.usual,)))
        return draft

    def several(
        self, calls: Sequence[Call], fault: str, *expected: Expected, changes: Mapping[int, Change] | None = None
    ) -> None:
        """Record what is left of calls about one event and expect its verdicts; ``changes`` by the number of the call."""
        for number, call in enumerate(calls):
            self.record(call, (changes or {}).get(number, nothing))
        self.truth.expect(calls[0].events[0], fault, *expected)

    def record(self, call: Call, change: Change) -> Draft:
        """Record what is left of a call after ``change``, of which nothing is expected yet."""
        draft = Draft.clean(call)
        change(draft)
        for record in draft.records:
            self.recording.land(record)
        self.recording.lines += self.write_spans(draft.spans)
        return draft

    @property
    def clock(self) -> Clock:
        """A clock that stands at the time of the slot."""
        return ManualClock(self.now_ms * _NS_PER_MS)
