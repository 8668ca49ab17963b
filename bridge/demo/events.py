"""This module knows which trace events an order leaves behind, and how to recognise one in a TraceContext."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bridge.demo.orders import MAX_RETRIES, Order, OrderKind
from otel_mqtrace.model import TraceType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mqtrace.model import TraceContext

__all__ = [
    "BILLING",
    "CONSUME",
    "ORDERS",
    "PAYMENTS",
    "PUBLISH",
    "RETRY_TOPICS",
    "SHIPPING",
    "TRANSACTION_END",
    "Event",
    "event_of",
    "events_of",
]

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
"""Nobody in the demo reads it: the embedded broker would show aborted messages to any reader."""
BILLING: Final = "billing"
SHIPPING: Final = "shipping"
RETRY_TOPICS: Final = tuple(f"{ORDERS}.{BILLING}.retry.{attempt}" for attempt in range(1, MAX_RETRIES + 1))

PUBLISH: Final = "publish"
CONSUME: Final = "consume"
TRANSACTION_END: Final = "transaction_end"


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """The identity of one event: enough to tell it from every other event of the run.

    ``where`` is the topic of a publish, the group of a consume, empty for the end of a transaction; ``attempt`` is the
    redelivery count of a consume (each redelivery has a topic of its own, so publishes need none).
    """

    kind: str
    msg_id: str
    where: str
    attempt: int = 0


def events_of(order: Order) -> Iterator[Event]:
    """Yield every event the order leaves when nothing is lost, publishes and consumes in the order they happen."""
    if order.kind is OrderKind.PAYMENT:
        yield Event(PUBLISH, order.msg_id, PAYMENTS)
        yield Event(TRANSACTION_END, order.msg_id, "")
        return
    yield Event(PUBLISH, order.msg_id, ORDERS)
    if order.kind is OrderKind.OVERSIZE:
        return
    yield Event(CONSUME, order.msg_id, SHIPPING)
    yield Event(CONSUME, order.msg_id, BILLING)
    for attempt, topic in enumerate(RETRY_TOPICS[: order.declines], start=1):
        yield Event(PUBLISH, order.msg_id, topic)
        yield Event(CONSUME, order.msg_id, BILLING, attempt)


_KINDS: Final = {
    TraceType.PUB: PUBLISH,
    TraceType.SUB_BEFORE: CONSUME,
    TraceType.SUB_AFTER: CONSUME,
    TraceType.END_TRANSACTION: TRANSACTION_END,
}


def event_of(trace_ctx: TraceContext) -> Event | None:
    """Return the event that a context with one message reports, or ``None`` for anything else."""
    kind = _KINDS.get(trace_ctx.trace_type)
    if kind is None or len(trace_ctx.beans) != 1:
        return None
    (bean,) = trace_ctx.beans
    if bean.msg_id is None:
        return None
    if kind == CONSUME:
        return Event(kind, bean.msg_id, trace_ctx.group_name or "", bean.retry_times or 0)
    return Event(kind, bean.msg_id, bean.topic or "" if kind == PUBLISH else "")
