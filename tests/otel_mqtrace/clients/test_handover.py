"""Which consumer handed a message over: many threads ask and tell, and the last few thousand are remembered."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Message

from otel_mqtrace.clients.confluent_kafka.consume.consumer_state import ConsumerState
from otel_mqtrace.clients.confluent_kafka.consume.handover import Handover
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks import _guard
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.testing import recording_provider


class _Owner:
    leaders = None


@pytest.fixture
def impatient():
    """Threads take turns a thousand times as often as usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_consumers_in_several_threads_hand_over_at_once(impatient):
    """None of them ever fails, and no more is remembered than was asked for."""
    remembered = Handover(max_remembered=8)
    owner = _Owner()

    def hand_over(thread):
        messages = [Message(topic=f"t{thread}", partition=0, offset=n) for n in range(50)]
        for _ in range(400):
            for message in messages:
                remembered.note(message, ("t", 0, message.offset()), weakref.ref(owner), None)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hand_over, range(8)))
    assert len(remembered) == 8


class _SecondLookFails(Sequence):
    """Messages that can be gone through once."""

    def __init__(self, *messages):
        self._messages = messages
        self._looks = 0

    def __len__(self):
        return len(self._messages)

    def __getitem__(self, index):
        raise MemoryError

    def __iter__(self):
        self._looks += 1
        if self._looks > 1:
            raise MemoryError
        return iter(self._messages)


def test_a_hand_over_that_breaks_half_way_keeps_its_spans(spans):
    """What was opened is ended by the next poll, whatever happens after the opening."""
    tracing = Tracing.create(settings=Settings(), tracer_provider=recording_provider(spans))
    state = ConsumerState({"group.id": "billing"})
    broken = _SecondLookFails(Message(topic="orders", partition=0, offset=1))
    state.hand_over(tracing, broken, start_ns=tracing.clock.wall_ns(), batch=False)
    assert _guard.failures().pop("ConsumerState.hand_over") == 1
    _guard._failures.pop("ConsumerState.hand_over")
    state.closing()
    assert spans.take("process orders").attributes["mqtrace.success"] is True
