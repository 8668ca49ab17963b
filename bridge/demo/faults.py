"""This module knows what the demo breaks, and what a reconciliation has to say about each break.

The plan is drawn from the seed and the order book, before anything runs: neither timing nor batching can change it. A
message carries at most one fault, so that a damaged record that names a message explains that message's fault only.
What must be found is read from ``EXPECTED``, never from the reconciliation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from bridge.demo.events import BILLING, CONSUME, PUBLISH, TRANSACTION_END, Event, events_of
from bridge.demo.lots import draw
from bridge.demo.orders import OrderKind
from otel_mqtrace._errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bridge.demo.orders import Order

__all__ = ["EXPECTED", "MATCHED", "MIN_MESSAGES", "Expectation", "Fault", "FaultKind", "FaultPlan", "plan_faults"]

MIN_MESSAGES: Final = 100
"""One full block of the order book: fewer have no room for one fault of each kind."""


class FaultKind(Enum):
    """What is done to one event; the value is how the demo's table names it."""

    DROPPED_NATIVE = "native record dropped"
    DROPPED_OTLP = "span dropped"
    DUPLICATED_NATIVE = "native record doubled"
    DUPLICATED_OTLP = "span doubled"
    ALTERED_NATIVE = "native field altered"
    ALTERED_OTLP = "span attribute altered"
    MALFORMED_NATIVE = "native bytes damaged"
    MALFORMED_OTLP = "OTLP line damaged"
    AFTER_LOST = "SubAfter lost"
    BEFORE_LOST = "SubBefore lost"
    CRASHED = "handler crashed"


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the verdict of an event has to say: one of ``statuses``, and exactly this reason (``None``: none)."""

    statuses: frozenset[str]
    reason: str | None = None


def _expect(status: str, reason: str | None = None) -> Expectation:
    return Expectation(frozenset({status}), reason)


MATCHED: Final = Expectation(frozenset({"MATCHED_EXACT", "MATCHED_NORMALISED"}))
"""What every event without a fault has to be."""

# Nothing here is written down in a ledger: a record that is missing on one side is a loss that nobody explained.
EXPECTED: Final[dict[FaultKind, Expectation]] = {
    FaultKind.DROPPED_NATIVE: _expect("OTLP_ONLY", "UNEXPLAINED"),
    FaultKind.DROPPED_OTLP: _expect("NATIVE_ONLY", "UNEXPLAINED"),
    FaultKind.DUPLICATED_NATIVE: _expect("DUPLICATED_NATIVE"),
    FaultKind.DUPLICATED_OTLP: _expect("DUPLICATED_OTLP"),
    FaultKind.ALTERED_NATIVE: _expect("MISMATCHED"),
    FaultKind.ALTERED_OTLP: _expect("MISMATCHED"),
    FaultKind.MALFORMED_NATIVE: _expect("OTLP_ONLY", "COUNTERPART_MALFORMED"),
    FaultKind.MALFORMED_OTLP: _expect("NATIVE_ONLY", "COUNTERPART_MALFORMED"),
    FaultKind.AFTER_LOST: _expect("MISMATCHED", "HALF_RECORD"),
    FaultKind.BEFORE_LOST: _expect("MISMATCHED", "HALF_RECORD"),
    FaultKind.CRASHED: _expect("NATIVE_ONLY", "IN_FLIGHT"),
}

_ANY_EVENT: Final = (TRANSACTION_END, PUBLISH, CONSUME)
_CONSUME_ONLY: Final = frozenset({FaultKind.AFTER_LOST, FaultKind.BEFORE_LOST, FaultKind.CRASHED})
_ALTERABLE: Final = {
    PUBLISH: ("body_length", "store_host", "tags", "keys"),
    CONSUME: ("context_code", "keys"),
    TRANSACTION_END: ("tags", "keys"),
}
_MESSAGES_PER_FAULT: Final = 500
_MOST_PER_ROW: Final = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at one event; ``field`` is the altered field under its name in a verdict, ``None`` for other faults."""

    kind: FaultKind
    event: Event
    field: str | None = None


FaultPlan = dict[Event, Fault]


def plan_faults(book: Sequence[Order], *, seed: int) -> FaultPlan:
    """Return what will be broken: the same number of faults for every kind of fault and every kind of event it fits.

    Oversize orders (they fail by themselves) and the last order (it must be clean) are left alone. Raises
    ``UsageError`` when the book is too short to hold every fault.
    """
    quota = min(_MOST_PER_ROW, max(1, len(book) // _MESSAGES_PER_FAULT))
    eligible = [order for order in book[:-1] if order.kind is not OrderKind.OVERSIZE]
    declines = {order.msg_id: order.declines for order in eligible}
    ranked = sorted((event for order in eligible for event in events_of(order)), key=lambda event: _rank(event, seed))
    plan: FaultPlan = {}
    taken: set[str] = set()
    for event_kind, fault_kind in _rows():
        free = (
            event
            for event in ranked
            if event.kind == event_kind
            and event.msg_id not in taken
            and (fault_kind is not FaultKind.CRASHED or _may_crash(event, declines))
        )
        for _ in range(quota):
            event = next(free, None)
            if event is None:
                raise UsageError(f"{len(book)} messages cannot hold every fault: use --messages {MIN_MESSAGES} or more")
            taken.add(event.msg_id)
            plan[event] = Fault(fault_kind, event, _altered_field(fault_kind, event, seed))
    return plan


def _rows() -> Iterable[tuple[str, FaultKind]]:
    # Ends of transactions first: they are the scarcest, and a message takes one fault only.
    for event_kind in _ANY_EVENT:
        for fault_kind in FaultKind:
            if event_kind == CONSUME or fault_kind not in _CONSUME_ONLY:
                yield event_kind, fault_kind


def _rank(event: Event, seed: int) -> int:
    return draw(seed, "fault", event.kind, event.msg_id, event.where, event.attempt)


def _may_crash(event: Event, declines: dict[str, int]) -> bool:
    # A handler that dies sends no retry: only an order that needs none may meet it, or other events would vanish too.
    return event.where == BILLING and declines[event.msg_id] == 0


def _altered_field(fault_kind: FaultKind, event: Event, seed: int) -> str | None:
    if fault_kind not in (FaultKind.ALTERED_NATIVE, FaultKind.ALTERED_OTLP):
        return None
    fields = _ALTERABLE[event.kind]
    return fields[draw(seed, "field", event.msg_id) % len(fields)]
