"""This module knows the shop's sending side: plain confluent-kafka code that has never heard of tracing."""

from __future__ import annotations

import logging
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from bridge.demo.events import ORDERS, PAYMENTS
from bridge.demo.orders import OVERSIZE_BYTES, Order, OrderKind
from otel_mqtrace import semconv
from otel_mqtrace._errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["QUIET", "OrderDesk"]

QUIET: Final = logging.getLogger("bridge.demo.kafka")
"""Where the clients' own log lines go: to whoever configures logging, not to the terminal."""

_TIMEOUT_S: Final = 30.0
_DELAY_LEVEL: Final = b"3"


class OrderDesk:
    """Takes orders and sends them: payments in transactions, everything else one by one.

    ``refused`` counts orders that the client would not even accept.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        conf: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "message.max.bytes": OVERSIZE_BYTES // 2,
            "compression.type": "lz4",
        }
        self._producer = confluent_kafka.Producer(conf, logger=QUIET)
        self._cashier = confluent_kafka.Producer({**conf, "transactional.id": "payments-1"}, logger=QUIET)
        self._cashier.init_transactions(_TIMEOUT_S)
        self.refused = 0

    def take(self, orders: Iterable[Order]) -> None:
        """Send every order and return when the broker has answered for each. A transaction must not be torn apart."""
        orders = list(orders)
        for order in orders:
            if order.transaction is None:
                self._send(order)
        for _, payments in groupby((order for order in orders if order.transaction is not None), key=_transaction):
            self._pay(list(payments))
        _flushed(self._producer)

    def _send(self, order: Order) -> None:
        try:
            self._producer.produce(ORDERS, order.body(), key=str(order.number), headers=_headers(order))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.MSG_SIZE_TOO_LARGE:
                raise
            self.refused += 1
        self._producer.poll(0)

    def _pay(self, payments: list[Order]) -> None:
        self._cashier.begin_transaction()
        for order in payments:
            self._cashier.produce(PAYMENTS, order.body(), key=str(order.number), headers=_headers(order))
        # Flushed first: what is still queued when a transaction aborts is purged, and the run would depend on timing.
        _flushed(self._cashier)
        end = self._cashier.abort_transaction if payments[0].aborted else self._cashier.commit_transaction
        end(_TIMEOUT_S)


def _transaction(order: Order) -> int | None:
    return order.transaction


def _flushed(producer: Any) -> None:
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
