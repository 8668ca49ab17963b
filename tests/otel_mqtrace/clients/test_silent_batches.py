"""A batch of which nothing is recorded: where its messages lie is read at once, the rest by whoever looks."""

from __future__ import annotations

import sys
from dataclasses import asdict

import pytest
from confluent_kafka import Message
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_mqtrace.clients.confluent_kafka.messages import incoming, placed
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.consume import ConsumeHook
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.testing import RecordingExporter, recording_provider

SENT = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
MESSAGES = [
    Message(topic="orders", partition=0, offset=7, key=b"k", value=b"paid", headers=[SENT, ("TAGS", b"paid")]),
    Message(topic="refunds", partition=1, offset=8, value=None, headers=[SENT]),
    Message(topic="orders", partition=2, offset=9, value=b""),
]


@pytest.mark.parametrize("name", ["headers", "body_length", "timestamp_ms", "keys"])
def test_whoever_looks_at_a_message_of_a_batch_sees_all_of_it(name):
    """Whatever is looked at first."""
    late, whole = placed(MESSAGES), incoming(MESSAGES)
    assert [getattr(each, name) for each in late] == [getattr(each, name) for each in whole]
    assert list(map(asdict, late)) == list(map(asdict, whole))


def test_a_message_alone_is_not_kept_for_the_sake_of_its_headers():
    """It may be large, and who polls seldom would have it until then; what travels with it is as it was."""
    message = Message(topic="orders", partition=0, offset=7, value=b"paid", headers=[SENT])
    references = sys.getrefcount(message)
    (only,) = placed([message])
    assert sys.getrefcount(message) == references
    message.set_headers([])
    assert only.headers == [SENT]
    assert (only.topic, only.partition, only.offset, only.body_length) == ("orders", 0, 7, None)


class _OfATest:
    """A stand-in of an application's test, which says where it lies and what travels with it, and no more."""

    def topic(self):
        return "orders"

    def partition(self):
        return 0

    offset = partition

    def headers(self):
        return [SENT]


def test_whoever_looks_at_the_headers_of_a_message_asks_for_nothing_else():
    """Most who look at all do so for the headers, of every message."""
    assert [each.headers for each in placed([_OfATest(), _OfATest()])] == [[SENT], [SENT]]


def test_what_is_recorded_after_all_is_read_at_once():
    """A sampler may be exchanged meanwhile; soon the messages are the application's, which may change them."""
    exporter = RecordingExporter()
    tracing = Tracing.create(settings=Settings(), tracer_provider=recording_provider(exporter))
    hook = ConsumeHook(tracing=tracing, group_name="billing")
    messages = [Message(topic="orders", partition=0, offset=number, headers=[SENT]) for number in range(2)]
    (call,) = hook.before(placed(messages), batch=True, unchanging=True, silent=True)
    for message in messages:
        message.set_headers([])
    hook.after(call)
    links = exporter.take("process orders").links
    assert [f"{link.context.trace_id:032x}" for link in links] == ["0af7651916cd43dd8448eb211c80319c"] * 2


def test_what_a_message_does_not_have_is_missing():
    """As of any other object."""
    first, *_ = placed(MESSAGES)
    with pytest.raises(AttributeError, match="no_such_thing"):
        first.no_such_thing  # noqa: B018 - the look is the point


def test_a_message_alone_in_its_topic_is_the_parent_of_what_its_handler_sends():
    """Others of the batch have no common one."""
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    hook = ConsumeHook(tracing=Tracing.create(settings=Settings(), tracer_provider=provider), group_name="billing")
    calls = hook.before(placed(MESSAGES), batch=True, unchanging=True, silent=hook.asks_nothing)
    assert [call.indexes for call in calls] == [(0, 2), (1,)]
    several, alone = (trace.get_current_span(call.otel_ctx).get_span_context() for call in calls)
    assert f"{alone.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert several.trace_id != alone.trace_id
