"""Who says how the messages of a simple consumer were handled: a block, a word, an end."""

from __future__ import annotations

import pytest
import rocketmq
from opentelemetry import baggage, context, trace

from otel_mqtrace import process
from otel_mqtrace.clients.rocketmq.consumer_state import consumer_state
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import RocketMqInstrumentor
from otel_mqtrace.model import ContextCode


def _code(span):
    return span.attributes["mqtrace.context_code"]


def test_a_block_takes_the_message_over(send, consumer, spans, topic):
    send(b"hello")
    (message,) = consumer.receive(16, 30)
    with pytest.raises(ValueError, match="no such order"), process(message):  # noqa: PT012 - the shape of a handler
        consumer.ack(message)
        raise ValueError("no such order")
    assert _code(spans.take(f"process {topic}")) == "EXCEPTION"


def test_a_decorated_function_finds_its_message(send, consumer, spans, topic):
    """Among other arguments, and without an ``offset`` on it."""

    @process
    def handle(_shop, message):
        return ContextCode.FAILED if message.body == b"2" else None

    send(b"1", b"2")
    for message in consumer.receive(16, 30):
        handle("berlin", message)
    assert [_code(span) for span in spans.take_all(f"process {topic}")] == ["SUCCESS", "FAILED"]


def test_a_message_acknowledged_before_it_is_handled_has_one_span(send, consumer, spans, topic):
    """At most once: from then on the blocks speak for this consumer's messages."""
    send(b"1", b"2")
    first, second = consumer.receive(1, 30) + consumer.receive(1, 30)
    consumer.ack(first)
    with process(first):
        pass
    assert _code(spans.take(f"process {topic}")) == "SUCCESS"
    consumer.ack(second)
    spans.take(f"process {topic}")


def test_what_is_said_of_the_message_at_hand_counts(send, consumer, spans, topic):
    """``process.failed()`` without a block."""
    send(b"hello")
    (message,) = consumer.receive(16, 30)
    process.failed()
    consumer.ack(message)
    assert _code(spans.take(f"process {topic}")) == "FAILED"


def test_baggage_comes_back_with_the_message(producer, consumer_of, spans, topic, message):
    token = context.attach(baggage.set_baggage("tenant", "acme"))
    producer.send(message())
    context.detach(token)
    consumer = consumer_of(topic)
    (received,) = consumer.receive(16, 30)
    assert baggage.get_baggage("tenant") == "acme"
    consumer.ack(received)
    assert baggage.get_baggage("tenant") is None
    spans.take_all()


def test_explicit_mode_leaves_every_message_to_its_block(instrument, started, consumer_of, spans, topic, message):
    """``process_spans=explicit``."""
    instrument(process_spans="explicit")
    started(rocketmq.Producer).send(message())
    spans.take(f"send {topic}")
    consumer = consumer_of(topic)
    (received,) = consumer.receive(16, 30)
    assert not trace.get_current_span().get_span_context().is_valid
    consumer.ack(received)
    spans.assert_empty()
    with process(received):
        pass
    assert spans.take(f"process {topic}").attributes["mqtrace.group_name"] == "billing"


def test_a_shutdown_because_of_an_exception_says_so_of_the_message_at_hand(send, consumer, spans, topic):
    """The others were only received."""
    send(b"1", b"2")
    with pytest.raises(ValueError, match="no such order"):  # noqa: PT012 - the shape of an application
        try:
            consumer.receive(16, 30)
            raise ValueError("no such order")
        finally:
            consumer.shutdown()
    assert [_code(span) for span in spans.take_all(f"process {topic}")] == ["EXCEPTION", "RETURNNULL"]


def test_switching_tracing_off_ends_what_is_open(send, consumer, spans, topic):
    send(b"hello")
    (message,) = consumer.receive(16, 30)
    RocketMqInstrumentor().uninstrument()
    assert not trace.get_current_span().get_span_context().is_valid
    assert _code(spans.take(f"process {topic}")) == "RETURNNULL"
    consumer.ack(message)


def test_a_consumer_that_is_collected_leaves_no_open_span(send, consumer_of, topic, spans, clock):
    send(b"x")
    consumer = consumer_of(topic)
    (message,) = consumer.receive(16, 30)
    clock.advance(ms=5)
    consumer_state(consumer).abandon()  # what the collector calls
    clock.advance(ms=500)
    spans.assert_empty()
    assert not trace.get_current_span().get_span_context().is_valid
    drain_deferred_ends()
    span = spans.take(f"process {topic}")
    assert (_code(span), span.end_time - span.start_time) == ("RETURNNULL", 5_000_000)
    assert message.body == b"x"
