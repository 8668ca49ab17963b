"""Polls: counted always, a CLIENT span each by option, true to when they began and to what they returned."""

import pytest
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace import ConsumeHook
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.mailbox import SENDER, TRACEPARENT


@pytest.fixture
def hook_with(tracing_with):
    def make(collaborators=None, **settings):
        tracing = tracing_with(collaborators, **settings)
        return ConsumeHook(tracing=tracing, group_name="billing", servers="broker:9092")

    return make


def _messages(count, *, key=b"k", topic="orders", headers=(TRACEPARENT,)):
    return [
        IncomingMessage(topic=topic, partition=0, offset=n, key=key, headers=headers, body_length=3)
        for n in range(count)
    ]


def _polled(hook, clock, messages, *, batch=False):
    start_ns = hook.now_ns()
    clock.advance(ms=70)
    hook.received(messages, start_ns=start_ns, batch=batch)
    return start_ns


def test_poll_has_no_span_by_default(hook_with, clock):
    hook = hook_with()
    _polled(hook, clock, _messages(1))
    hook.empty(start_ns=hook.now_ns())
    hook.poll_failed(start_ns=hook.now_ns(), error="_ALL_BROKERS_DOWN")


def test_poll_span_has_the_times_of_the_poll(hook_with, exporter, clock):
    start_ns = _polled(hook_with(receive_spans=True), clock, _messages(1))
    span = exporter.take("poll orders")
    assert (span.start_time, span.end_time) == (start_ns, start_ns + 70_000_000)
    assert (span.kind, span.parent, trace_context_of(span)) == (SpanKind.CLIENT, None, None)
    assert span.attributes["messaging.operation.name"] == "poll"
    assert span.attributes["messaging.operation.type"] == "receive"
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert [link.context.span_id for link in span.links] == [SENDER]


@pytest.mark.parametrize("count", [1, 3])
def test_call_for_several_messages_puts_own_attributes_on_links(hook_with, exporter, clock, count):
    _polled(hook_with(receive_spans=True), clock, _messages(count), batch=True)
    span = exporter.take("poll orders")
    assert span.attributes["messaging.batch.message_count"] == count
    assert span.attributes["messaging.destination.partition.id"] == "0"
    assert not {"messaging.kafka.offset", "messaging.kafka.message.key"} & set(span.attributes)
    assert [link.attributes["messaging.kafka.offset"] for link in span.links] == list(range(count))
    assert {link.attributes["messaging.kafka.message.key"] for link in span.links} == {"k"}


def test_poll_of_several_topics_has_no_destination(hook_with, exporter, clock):
    messages = [*_messages(1), *_messages(1, topic="bills")]
    _polled(hook_with(receive_spans=True), clock, messages, batch=True)
    span = exporter.take("poll")
    assert "messaging.destination.name" not in span.attributes
    assert [link.attributes["messaging.destination.name"] for link in span.links] == ["orders", "bills"]


def test_poll_of_more_messages_than_links_is_one_span(hook_with, exporter, clock):
    _polled(hook_with(receive_spans=True), clock, _messages(300), batch=True)
    span = exporter.take("poll orders")
    assert span.attributes["messaging.batch.message_count"] == 300
    assert len(span.links) == 128


def test_empty_poll_has_a_span_only_if_configured(hook_with, exporter):
    hook_with(receive_spans=True).empty(start_ns=0)
    hook_with(empty_poll_spans=True).empty(start_ns=0)
    hook = hook_with(receive_spans=True, empty_poll_spans=True)
    hook.empty(start_ns=hook.now_ns())
    assert "messaging.batch.message_count" not in exporter.take("poll").attributes
    hook.empty(start_ns=hook.now_ns(), batch=True)
    span = exporter.take("poll")
    assert span.attributes["messaging.batch.message_count"] == 0
    assert span.kind is SpanKind.CLIENT
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("failure", "error_type", "description"),
    [
        ({"error": "_ALL_BROKERS_DOWN", "description": "2/2 are down"}, "_ALL_BROKERS_DOWN", "2/2 are down"),
        ({"exception": RuntimeError("Consumer closed")}, "RuntimeError", None),
        ({}, "_OTHER", None),
    ],
    ids=["error", "exception", "unknown"],
)
def test_failed_poll_has_a_span_with_its_error_type(hook_with, exporter, failure, error_type, description):
    hook = hook_with(receive_spans=True)
    hook.poll_failed(start_ns=hook.now_ns(), **failure)
    span = exporter.take("poll")
    assert span.attributes["error.type"] == error_type
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, description)


def test_poll_of_excluded_topics_has_no_span(hook_with, exporter, clock):
    hook = hook_with(receive_spans=True, topic_exclude=("audit",))
    _polled(hook, clock, _messages(2, topic="audit"), batch=True)
    _polled(hook, clock, [*_messages(2, topic="audit"), *_messages(1)], batch=True)
    assert exporter.take("poll orders").attributes["messaging.batch.message_count"] == 1


def test_suppressed_poll_is_not_recorded(hook_with, clock):
    hook = hook_with(receive_spans=True, empty_poll_spans=True)
    with suppress_instrumentation():
        _polled(hook, clock, _messages(1))
        hook.empty(start_ns=0)
        hook.poll_failed(start_ns=0)
