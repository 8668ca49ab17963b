"""The plan of faults is drawn before anything runs, covers everything, and blames each message for one thing only."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.demo.faults import EXPECTED, MIN_MESSAGES, FaultKind, plan_faults
from bridge.demo.orders import CONSUME, PUBLISH, TRANSACTION_END, OrderKind, events_of, order_book
from otel_mqtrace._errors import UsageError

HALVES_AND_CRASH = {FaultKind.AFTER_LOST, FaultKind.BEFORE_LOST, FaultKind.CRASHED}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**63), messages=st.integers(MIN_MESSAGES, 400))
def test_any_seed_and_length_holds_every_fault(seed: int, messages: int) -> None:
    book = order_book(messages, seed=seed)
    plan = plan_faults(book, seed=seed)
    rows = Counter((fault.kind, event.kind) for event, fault in plan.items())
    everywhere = {
        (kind, event) for kind in set(FaultKind) - HALVES_AND_CRASH for event in (PUBLISH, CONSUME, TRANSACTION_END)
    }
    assert rows.keys() == everywhere | {(kind, CONSUME) for kind in HALVES_AND_CRASH}
    assert len({event.msg_id for event in plan}) == len(plan)
    assert plan.keys() <= {event for order in book[:-1] for event in events_of(order)}
    assert not {event.msg_id for event in plan} & {one.msg_id for one in book if one.kind is OrderKind.OVERSIZE}


def test_the_plan_is_the_seed_s() -> None:
    book = order_book(500, seed=7)
    assert plan_faults(book, seed=7) == plan_faults(book, seed=7)
    assert plan_faults(book, seed=7) != plan_faults(book, seed=8)


def test_more_messages_carry_more_faults_up_to_a_bound() -> None:
    sizes = {messages: len(plan_faults(order_book(messages, seed=7), seed=7)) for messages in (400, 1000, 2000)}
    assert sizes == {400: 27, 1000: 54, 2000: 108}


def test_only_altered_events_name_a_field() -> None:
    plan = plan_faults(order_book(2000, seed=7), seed=7)
    for fault in plan.values():
        assert (fault.field is not None) == (fault.kind in {FaultKind.ALTERED_NATIVE, FaultKind.ALTERED_OTLP})


def test_a_crash_meets_only_orders_that_need_no_retry() -> None:
    book = order_book(2000, seed=7)
    declines = {order.msg_id: order.declines for order in book}
    crashed = [event for event, fault in plan_faults(book, seed=7).items() if fault.kind is FaultKind.CRASHED]
    assert crashed
    assert all(declines[event.msg_id] == 0 and event.where == "billing" for event in crashed)


def test_too_few_messages_are_refused_with_the_fix() -> None:
    with pytest.raises(UsageError, match="--messages 100"):
        plan_faults(order_book(30, seed=7), seed=7)


def test_every_fault_has_one_expectation() -> None:
    assert EXPECTED.keys() == set(FaultKind)
    assert all(len(one.statuses) == 1 for one in EXPECTED.values())
