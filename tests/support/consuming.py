"""How the tests of a traced consumer ask a real one for messages."""

from __future__ import annotations

from opentelemetry import trace


def poll(consumer, *, timeouts=20):
    """Return the first thing that a poll gives, a message or an error; fail when nothing comes for that many seconds."""
    for _ in range(timeouts):
        message = consumer.poll(1)
        if message is not None:
            return message
    raise AssertionError("no message came")


def consume(consumer, count):
    """Return ``count`` messages handed over by one call."""
    messages = consumer.consume(count, 10)
    assert len(messages) == count
    return messages


def current_span_id():
    """Return the id of the span that is current here; 0 when there is none."""
    return trace.get_current_span().get_span_context().span_id
