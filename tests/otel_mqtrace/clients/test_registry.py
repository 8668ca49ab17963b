"""Which consumer handed a message over: many threads ask and tell, and the last few thousand are remembered."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
from confluent_kafka import Message
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import _Span

from otel_mqtrace import process
from otel_mqtrace.clients.confluent_kafka.consume.consumer_state import ConsumerState
from otel_mqtrace.clients.confluent_kafka.messages import incoming, registry
from otel_mqtrace.clients.registry import LiveObjects, MessageRegistry
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from otel_mqtrace.testing import recording_provider
from tests.support.consuming import poll


class _Owner:
    leaders = None


@pytest.fixture
def impatient():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_consumers_in_several_threads_hand_over_at_once(impatient):
    remembered = MessageRegistry(None, max_messages=8)
    number = remembered.register(owner := _Owner())

    def hand_over(thread):
        messages = [Message(topic=f"t{thread}", partition=0, offset=n) for n in range(50)]
        for _ in range(400):
            for message in messages:
                remembered.add([message], incoming([message]), number, [None])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hand_over, range(8)))
    assert len(remembered) == 8
    del owner


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
    tracing = Tracing.create(settings=Settings(), tracer_provider=recording_provider(spans))
    state = ConsumerState({"group.id": "billing"})
    broken = _SecondLookFails(Message(topic="orders", partition=0, offset=1))
    with pytest.raises(MemoryError):
        state.hand_over(tracing, broken, start_ns=tracing.clock.wall_ns(), batch=False)
    state.closing()
    assert spans.take("process orders").attributes["mqtrace.success"] is True


def _handed_over(spans, **settings):
    tracing = Tracing.create(settings=Settings(**settings), tracer_provider=recording_provider(spans))
    state = ConsumerState({"group.id": "billing"})
    message = Message(topic="orders", partition=0, offset=1)
    state.hand_over(tracing, [message], start_ns=None, batch=False)
    return state, message


def _spans_kept(before):
    gc.collect()
    return len([each for each in gc.get_objects() if type(each) is _Span and id(each) not in before])


def _spans_now():
    return {id(each) for each in gc.get_objects() if type(each) is _Span}


def test_what_is_remembered_of_a_handled_message_keeps_no_span(spans, tracer):
    before = _spans_now()
    with tracer.start_as_current_span("around the poll"):
        state, message = _handed_over(spans)
        state.closing()
    assert len(registry) > 0
    assert len(spans.take_all()) == 2
    assert _spans_kept(before) == 0
    del message


def test_a_consumer_that_is_gone_is_forgotten_with_its_messages(spans):
    """Nobody else could handle them in its name."""
    registry.clear()
    state, message = _handed_over(spans)
    state.closing()
    assert len(registry) == 1
    del state
    gc.collect()
    assert len(registry) == 0
    spans.take_all()
    del message


def test_switching_off_forgets_every_message(instrument, spans, fill, consumer_of, topic):
    fill(topic, {"value": b"1"})
    instrument()
    message = poll(consumer_of(topic))
    assert len(registry) > 0
    MqTraceInstrumentor().uninstrument()
    assert (len(registry), message.value()) == (0, b"1")
    spans.take_all()


def test_a_late_block_still_has_the_parent_and_the_baggage(instrument, spans, fill, consumer_of, topic):
    """The span has ended and only its ids were kept: what the block does is its child all the same."""
    headers = [("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"), ("baggage", "tenant=7")]
    fill(topic, {"value": b"1", "headers": headers})
    instrument()
    consumer = consumer_of(topic)
    message = poll(consumer)
    consumer.poll(0)
    ended = spans.take()
    with process(message) as handling:
        assert trace.get_current_span().get_span_context() == ended.get_span_context()
        assert baggage.get_baggage("tenant") == "7"
        assert not handling.span.is_recording()


class Thing:
    """Something that can be referred to weakly, and is freed by the collector alone."""

    def __init__(self):
        self.itself = self


def _while_others_come_and_go(come, ask, *, times):
    """Call ``ask`` that often while another thread keeps making things; what either raises is raised here."""
    over = Event()

    def make():
        kept = []
        while not over.is_set():
            kept.append(come())
            if len(kept) > 200:
                kept.clear()

    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(make)
        try:
            for _ in range(times):
                ask()
        finally:
            over.set()
        making.result(30)


def test_asking_does_not_fail_while_something_is_made(impatient):
    """A set of weak references would say that it changed its size."""
    alive = LiveObjects()

    def come():
        thing = Thing()
        alive.add(thing)
        return thing

    _while_others_come_and_go(come, alive.all, times=400)


def test_what_is_gone_is_not_among_what_exists():
    alive = LiveObjects()
    here, gone = Thing(), Thing()
    alive.add(here)
    alive.add(gone)
    del gone
    gc.collect()
    assert alive.all() == [here]
