"""The order book depends on the seed alone, and always holds the same mix."""

from __future__ import annotations

from collections import Counter

import pytest

from bridge.demo.orders import (
    ORDERS_PER_TRANSACTION,
    OVERSIZE_BYTES,
    OrderKind,
    event_of,
    order_book,
)
from otel_mqtrace.model import TraceBean, TraceContext, TraceType
from tests.support.unique_ids import read_unique_id


def test_one_seed_gives_one_book() -> None:
    assert order_book(300, seed=7) == order_book(300, seed=7)
    assert order_book(300, seed=7) != order_book(300, seed=8)


def test_a_longer_book_begins_like_a_shorter_one() -> None:
    assert order_book(400, seed=7)[:299] == order_book(300, seed=7)[:299]


@pytest.mark.parametrize("seed", [0, 7, 2**40])
def test_every_block_of_a_hundred_holds_the_same_mix(seed: int) -> None:
    book = order_book(301, seed=seed)
    for start in (0, 100, 200):
        block = book[start : start + 100]
        kinds = Counter(order.kind for order in block)
        assert (kinds[OrderKind.PAYMENT], kinds[OrderKind.DELAYED], kinds[OrderKind.OVERSIZE]) == (15, 5, 1)
        assert Counter(order.declines for order in block) == {0: 87, 1: 8, 2: 3, 3: 2}
        assert sum(order.slow for order in block) == 2


def test_message_ids_are_unique_and_readable() -> None:
    """Every id has RocketMQ's shape and no two orders share one."""
    book = order_book(1000, seed=7)
    assert len({order.msg_id for order in book}) == 1000
    assert all(len(order.msg_id) == 32 and read_unique_id(order.msg_id) for order in book)


def test_the_last_order_is_clean() -> None:
    for messages in range(100, 200):
        last = order_book(messages, seed=7)[-1]
        assert (last.kind, last.declines, last.slow) == (OrderKind.PLAIN, 0, False)


def test_a_transaction_never_leaves_its_chunk_and_ends_one_way() -> None:
    book = order_book(1000, seed=7)
    transactions: dict[int, list[tuple[int, bool]]] = {}
    for order in book:
        if order.transaction is not None:
            transactions.setdefault(order.transaction, []).append((order.number // 100, order.aborted))
    assert all(len(set(facts)) == 1 and len(facts) <= ORDERS_PER_TRANSACTION for facts in transactions.values())
    assert {facts[0][1] for facts in transactions.values()} == {True, False}


def test_an_oversize_order_is_beyond_the_limit() -> None:
    """Its body is larger than any client of the demo accepts; every other one is small."""
    for order in order_book(200, seed=7):
        assert (len(order.body()) > OVERSIZE_BYTES) == (order.kind is OrderKind.OVERSIZE)


def test_keys_hold_chinese_and_emoji() -> None:
    keys = [order.keys.split(" ") for order in order_book(100, seed=7)]
    assert all(first.startswith("订单-") and ord(second[0]) > 0xFFFF for first, second in keys)


def test_both_halves_of_a_consume_are_one_event() -> None:
    bean = TraceBean(msg_id="A1", topic="orders", retry_times=1)

    def seen(trace_type: TraceType, *beans: TraceBean) -> object:
        return event_of(TraceContext(trace_type=trace_type, group_name="billing", beans=beans))

    assert seen(TraceType.SUB_BEFORE, bean) == seen(TraceType.SUB_AFTER, bean)
    assert seen(TraceType.SUB_AFTER, TraceBean(msg_id="A1", retry_times=2)) != seen(TraceType.SUB_AFTER, bean)
    assert seen(TraceType.SUB_AFTER, bean, bean) is None
    assert seen(TraceType.PUB, TraceBean(topic="orders")) is None
    assert seen(TraceType.RECALL, bean) is None
