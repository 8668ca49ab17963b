"""The order book and the plan of faults depend on the seed alone, and hold everything the demo needs."""

from itertools import chain, repeat
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.demo.command import MIN_MESSAGES
from bridge.demo.faults import FaultKind, plan_faults
from bridge.demo.shop import CONSUME, PUBLISH, TRANSACTION_END, OrderKind, events_of, order_book, serve_all
from otel_mqtrace._errors import PeerError

HALVES_AND_CRASH = {FaultKind.AFTER_LOST, FaultKind.BEFORE_LOST, FaultKind.CRASHED}


def test_seed_decides_the_book_and_the_plan():
    book = order_book(500, seed=7)
    assert book == order_book(500, seed=7) != order_book(500, seed=8)
    assert order_book(600, seed=7)[:499] == book[:499]
    assert plan_faults(book, seed=7) == plan_faults(book, seed=7) != plan_faults(book, seed=8)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**63), messages=st.integers(MIN_MESSAGES, 400))
def test_plan_holds_every_fault_on_a_message_of_its_own(seed, messages):
    book = order_book(messages, seed=seed)
    plan = plan_faults(book, seed=seed)
    rows = {(fault.kind, event.kind) for event, fault in plan.items()}
    everywhere = {
        (kind, event) for kind in set(FaultKind) - HALVES_AND_CRASH for event in (PUBLISH, CONSUME, TRANSACTION_END)
    }
    assert rows == everywhere | {(kind, CONSUME) for kind in HALVES_AND_CRASH}
    assert len({event.msg_id for event in plan}) == len(plan)
    assert plan.keys() <= {event for order in book[:-1] for event in events_of(order)}
    assert not {event.msg_id for event in plan} & {one.msg_id for one in book if one.kind is OrderKind.OVERSIZE}
    for fault in plan.values():
        assert (fault.field is not None) == (fault.kind in {FaultKind.ALTERED_NATIVE, FaultKind.ALTERED_OTLP})


def _serving(*turns):
    return SimpleNamespace(serve=chain(turns, repeat(0)).__next__)


def test_serving_without_progress_or_with_a_failure_raises_an_error():
    serve_all([_serving(1, 0, 2), _serving(0, 1)], 4)
    with pytest.raises(PeerError, match="stand still at 1 of 2"):
        serve_all([_serving(1)], 2, patience_ms=1)
    with pytest.raises(PeerError, match="died: no disk"):
        serve_all([SimpleNamespace(serve=Mock(side_effect=[1, RuntimeError("no disk")]))], 2)
