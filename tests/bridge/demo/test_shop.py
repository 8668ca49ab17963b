"""The order system follows the order book, with tracing or without."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import cimpl

from bridge.demo.orders import (
    ORDERS,
    PAYMENTS,
    RETRY_TOPICS,
    OrderKind,
    order_book,
)
from bridge.demo.shop import CardDeclinedError, OrderDesk, Tally, charge
from otel_mqtrace._errors import PeerError
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

BOOK = order_book(100, seed=7)
QUIET = logging.getLogger("tests.shop")
WAIT_S = 15.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as running:
        for topic in (ORDERS, PAYMENTS, *RETRY_TOPICS):
            running.create_topic(topic, 2)
        yield running


def everything_on(kafka: EmbeddedKafka, topic: str, count: int) -> list[dict[str, bytes]]:
    conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"tests-{topic}", "auto.offset.reset": "earliest"}
    consumer = cimpl.Consumer(conf, logger=QUIET)
    consumer.subscribe([topic])
    found = []
    while len(found) < count:
        message = consumer.poll(WAIT_S)
        assert message is not None, f"{topic}: {len(found)} of {count}"
        found.append(dict(message.headers()))
    consumer.close()
    return found


def test_a_message_carries_tags_keys_and_delay(kafka: EmbeddedKafka) -> None:
    """RocketMQ's property names are the headers; only delayed orders have a delay."""
    desk = OrderDesk(kafka.bootstrap_servers)
    plain = next(order for order in BOOK if order.kind is OrderKind.PLAIN)
    delayed = next(order for order in BOOK if order.kind is OrderKind.DELAYED)
    desk.take([plain, delayed])
    by_id = {headers["UNIQ_KEY"].decode(): headers for headers in everything_on(kafka, ORDERS, 2)}
    assert by_id[plain.msg_id]["KEYS"].decode() == plain.keys
    assert by_id[plain.msg_id]["TAGS"].decode() == plain.tags
    assert "DELAY" in by_id[delayed.msg_id]
    assert "DELAY" not in by_id[plain.msg_id]


def test_card_is_declined_as_often_as_ordered() -> None:
    assert charge(b'{"order": 4, "declines": 0}', 0)
    assert not charge(b'{"order": 4, "declines": 2}', 1)
    assert charge(b'{"order": 4, "declines": 2}', 2)
    with pytest.raises(CardDeclinedError):
        charge(b'{"order": 5, "declines": 1}', 0)


def test_waiting_ends_loudly() -> None:
    tally = Tally()
    tally.add()
    tally.wait_for(1)
    with pytest.raises(PeerError, match="stand still at 1 of 2"):
        tally.wait_for(2, patience_s=0.01)
    tally.fail(RuntimeError("no disk"))
    with pytest.raises(PeerError, match="died: no disk"):
        tally.wait_for(2)
