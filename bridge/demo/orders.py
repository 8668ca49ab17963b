"""This module knows the shop's order book: what each order is, and what will happen to it, from the seed alone.

Every block of a hundred orders holds the same mix (``_MIX``), in an order of its own. The fate of an order is written
into its message, so that the handlers are pure business code and two runs with one seed do exactly the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bridge.demo.lots import draw

__all__ = [
    "MAX_RETRIES",
    "ORDERS_PER_TRANSACTION",
    "OVERSIZE_BYTES",
    "Order",
    "OrderKind",
    "order_book",
]

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

    ``declines`` is how often billing fails before it succeeds (more than ``MAX_RETRIES``: it never does). ``slow`` asks
    shipping to take its time. ``transaction`` numbers the transaction of a payment, ``aborted`` how that one ends.
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
    """Return ``messages`` orders; the last one is plain and clean: it tells that everything before it has settled."""
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
