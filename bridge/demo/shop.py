"""The shop of the demo: its producer and its consumer groups, in plain confluent-kafka code."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from otel_mqtrace import process, semconv
from otel_mqtrace._clock import SystemClock, compute_deadline
from otel_mqtrace._errors import PeerError
from otel_mqtrace.model import TraceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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


QUIET: Final = logging.getLogger("bridge.demo.kafka")
"""Where the clients' own log lines go: to the application's logging, not to the terminal."""

_TIMEOUT_S: Final = 30.0
_DELAY_LEVEL: Final = b"3"


class OrderDesk:
    """Sends orders, payments in transactions; the client rejects oversize ones."""

    def __init__(self, bootstrap_servers: str) -> None:
        conf: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "message.max.bytes": OVERSIZE_BYTES // 2,
            "compression.type": "lz4",
        }
        self._producer = confluent_kafka.Producer(conf, logger=QUIET)
        self._cashier = confluent_kafka.Producer({**conf, "transactional.id": "payments-1"}, logger=QUIET)
        self._cashier.init_transactions(_TIMEOUT_S)

    def take(self, orders: Iterable[Order]) -> None:
        """Send every order and return when the broker has answered for each. A transaction must not be torn apart."""
        orders = list(orders)
        for order in orders:
            if order.transaction is None:
                self._send(order)
        for _, payments in groupby(
            (order for order in orders if order.transaction is not None), key=attrgetter("transaction")
        ):
            self._pay(list(payments))
        _flush(self._producer)

    def _send(self, order: Order) -> None:
        try:
            self._producer.produce(ORDERS, order.body(), key=str(order.number), headers=_headers(order))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
        self._producer.poll(0)

    def _pay(self, payments: list[Order]) -> None:
        self._cashier.begin_transaction()
        for order in payments:
            self._cashier.produce(PAYMENTS, order.body(), key=str(order.number), headers=_headers(order))
        # Flushed first: what is still queued when a transaction aborts is purged, and the run would depend on timing.
        _flush(self._cashier)
        end = self._cashier.abort_transaction if payments[0].aborted else self._cashier.commit_transaction
        end(_TIMEOUT_S)


def _flush(producer: Any) -> None:
    waiting = producer.flush(_TIMEOUT_S)
    if waiting:
        raise PeerError(f"the embedded broker did not take {waiting} messages within {_TIMEOUT_S:.0f} s")


def _headers(order: Order) -> list[tuple[str, str | bytes | None]]:
    delay = [(semconv.HEADER_DELAY, _DELAY_LEVEL)] if order.kind is OrderKind.DELAYED else []
    return [
        (semconv.HEADER_UNIQ_KEY, order.msg_id.encode()),
        (semconv.HEADER_TAGS, order.tags.encode()),
        (semconv.HEADER_KEYS, order.keys.encode()),
        *delay,
    ]


_POLL_S: Final = 0.01
_SLOW_S: Final = 0.02


class CardDeclinedError(Exception):
    """The card was declined; the order is tried again later."""


class Department:
    """A consumer group that hands every message of its topics to ``handle``."""

    def __init__(
        self, group: str, topics: Sequence[str], handle: Callable[[Any], None], *, bootstrap_servers: str
    ) -> None:
        self._handle = handle
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
            },
            logger=QUIET,
        )
        self._consumer.subscribe(list(topics))

    def serve(self) -> int:
        """Handle the messages that are here, and return how many; the poll that finds none ends the last one's span."""
        handled = 0
        while (message := self._consumer.poll(_POLL_S)) is not None:
            if message.error() is not None:
                raise KafkaException(message.error())
            self._handle(message)
            handled += 1
        return handled

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()


def serve_all(departments: Sequence[Department], count: int, *, patience_ms: float = 60_000) -> None:
    """Let ``departments`` handle ``count`` messages; ``PeerError`` when one fails or none comes for ``patience_ms``."""
    clock = SystemClock()
    handled, deadline_ns = 0, compute_deadline(clock, patience_ms)
    while handled < count:
        try:
            served = sum(department.serve() for department in departments)
        except Exception as error:
            raise PeerError(f"a consumer of the demo died: {error}") from error
        handled += served
        if served:
            deadline_ns = compute_deadline(clock, patience_ms)
        elif clock.monotonic_ns() > deadline_ns:
            raise PeerError(f"the consumers of the demo stand still at {handled} of {count} messages")


class Billing:
    """Charges orders. A declined one goes to the next retry topic until there is none left."""

    TOPICS: Final = (ORDERS, *RETRY_TOPICS)

    def __init__(self, bootstrap_servers: str) -> None:
        self._retries = confluent_kafka.Producer({"bootstrap.servers": bootstrap_servers}, logger=QUIET)

    def handle(self, message: Any) -> None:
        """Charge one order, now or at a later attempt."""
        attempt = int(dict(message.headers()).get(semconv.HEADER_RECONSUME_TIMES, b"0"))
        try:
            with process(message) as work:
                if not charge(message.value(), attempt):
                    work.failed()
                    self._retry(message, attempt)
        except CardDeclinedError:
            self._retry(message, attempt)
        self._retries.poll(0)

    def close(self) -> None:
        """Wait until the broker has answered for every retry."""
        self._retries.flush(_TIMEOUT_S)

    def _retry(self, message: Any, attempt: int) -> None:
        if attempt == len(RETRY_TOPICS):
            return  # given up: it stays unpaid
        kept = [(name, value) for name, value in message.headers() if name != semconv.HEADER_RECONSUME_TIMES]
        headers = [*kept, (semconv.HEADER_RECONSUME_TIMES, str(attempt + 1).encode())]
        self._retries.produce(RETRY_TOPICS[attempt], message.value(), key=message.key(), headers=headers)


def charge(body: bytes, attempt: int) -> bool:
    """Return whether the card was charged; odd orders are declined by exception, even ones by result."""
    order = json.loads(body)
    if attempt >= order["declines"]:
        return True
    if order["order"] % 2:
        raise CardDeclinedError(f"order {order['order']}: card declined, attempt {attempt}")
    return False


def ship(message: Any) -> None:
    """Pack one order; a slow one takes its time."""
    if json.loads(message.value())["slow"]:
        threading.Event().wait(_SLOW_S)
