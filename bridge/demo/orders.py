"""The orders of the demo, drawn from a seed, and the trace events that each leaves behind."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from otel_mqtrace.model import TraceType

if TYPE_CHECKING:
    from collections.abc import Iterator

    from otel_mqtrace.model import TraceContext


def draw(seed: int, *names: object) -> int:
    """Return an evenly spread number in [0, 2**64) that depends on ``seed`` and ``names`` and on nothing else."""
    text = "\x1f".join(map(str, (seed, *names)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


MAX_RETRIES: Final = 2
ORDERS_PER_TRANSACTION: Final = 5
OVERSIZE_BYTES: Final = 96 * 1024
"""Above the producer's ``message.max.bytes``: the send fails in the call itself."""

_BLOCK: Final = 100
_STRIDE: Final = 37  # coprime with the block: walks every slot once, never in order
_ABORTED_EVERY: Final = 3
_GOODS: Final = ("生鲜", "Bücher", "fresh", "TagA", "電子", "toys")
_ICONS: Final = ("🧾", "📦", "🍎", "👩‍🚀", "📚")


class OrderKind(Enum):
    """How an order travels."""

    PLAIN = "plain"
    DELAYED = "delayed"
    PAYMENT = "payment"  # in a transaction
    OVERSIZE = "oversize"  # refused by the client


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One message of the demo and its fate.

    ``declines`` is how often billing fails before it succeeds (more than ``MAX_RETRIES``: it never does). ``slow``
    delays shipping. ``transaction`` numbers the transaction of a payment, ``aborted`` how that one ends.
    """

    number: int
    msg_id: str
    kind: OrderKind
    tags: str
    keys: str
    declines: int = 0
    slow: bool = False
    transaction: int | None = None
    aborted: bool = False

    def body(self) -> bytes:
        """Return what the application sends: JSON, padded beyond every limit for an oversize order."""
        facts = {"order": self.number, "declines": self.declines, "slow": self.slow, "goods": self.tags}
        padding = {"drawing": "x" * OVERSIZE_BYTES} if self.kind is OrderKind.OVERSIZE else {}
        return json.dumps({**facts, **padding}, ensure_ascii=False).encode()


# (slots of a block, kind, declines, slow); what is left is plain
_MIX: Final[tuple[tuple[int, OrderKind, int, bool], ...]] = (
    (15, OrderKind.PAYMENT, 0, False),
    (5, OrderKind.DELAYED, 0, False),
    (1, OrderKind.OVERSIZE, 0, False),
    (8, OrderKind.PLAIN, 1, False),
    (3, OrderKind.PLAIN, 2, False),
    (2, OrderKind.PLAIN, 3, False),
    (2, OrderKind.PLAIN, 0, True),
)
_SLOTS: Final = tuple((kind, declines, slow) for count, kind, declines, slow in _MIX for _ in range(count))
_PLAIN: Final = (OrderKind.PLAIN, 0, False)


def order_book(messages: int, *, seed: int) -> list[Order]:
    """Return ``messages`` orders; the last one is clean: its arrival proves that all before it have settled."""
    fates = [_fate(number, seed) for number in range(messages - 1)] + [_PLAIN]
    payments = 0
    book = []
    for number, (kind, declines, slow) in enumerate(fates):
        transaction = payments // ORDERS_PER_TRANSACTION if kind is OrderKind.PAYMENT else None
        payments += kind is OrderKind.PAYMENT
        order = Order(
            number=number,
            msg_id=_message_id(number, seed),
            kind=kind,
            tags=_GOODS[draw(seed, "tags", number) % len(_GOODS)],
            keys=f"订单-{number:06d} {_ICONS[draw(seed, 'icon', number) % len(_ICONS)]}-{number % 97}",
            declines=declines,
            slow=slow,
            transaction=transaction,
            aborted=transaction is not None and transaction % _ABORTED_EVERY == _ABORTED_EVERY - 1,
        )
        book.append(order)
    return book


def _fate(number: int, seed: int) -> tuple[OrderKind, int, bool]:
    slot = (number * _STRIDE + draw(seed, "rotation", number // _BLOCK)) % _BLOCK
    return _SLOTS[slot] if slot < len(_SLOTS) else _PLAIN


def _message_id(number: int, seed: int) -> str:
    """Return a unique id of RocketMQ's shape (ip, pid, class loader, time, counter) made of seed and number."""
    return f"7F000001{seed & 0xFFFF:04X}{draw(seed, 'process') & 0xFFFFFFFF:08X}{number:08X}{number & 0xFFFF:04X}"


ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
"""No group of the demo reads it: the embedded broker shows aborted messages to any reader."""
BILLING: Final = "billing"
SHIPPING: Final = "shipping"
RETRY_TOPICS: Final = tuple(f"{ORDERS}.{BILLING}.retry.{attempt}" for attempt in range(1, MAX_RETRIES + 1))

PUBLISH: Final = "publish"
CONSUME: Final = "consume"
TRANSACTION_END: Final = "transaction_end"


@dataclass(frozen=True, slots=True, order=True)
class Event:
    """The identity of one event within the run.

    ``where`` is the topic of a publish, the group of a consume, empty for the end of a transaction; ``attempt`` is the
    redelivery count of a consume (each redelivery has another topic, so publishes need none).
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
