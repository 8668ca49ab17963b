"""The settings of sending, with a real client and a real broker: what lies on the topic, and what both sides say."""

from __future__ import annotations

import confluent_kafka
import pytest
from opentelemetry.trace import SpanKind

from otel_mqtrace.hooks.attributes import OPT_IN
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.wire.native import decode_body, encode_context


@pytest.fixture
def send(kafka, topic):
    def produce(**message):
        with confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "client.id": "shop"}) as producer:
            producer.produce(topic, **message)
            assert producer.flush(10) == 0

    return produce


def _native(span):
    (trace_ctx,) = decode_body(encode_context(trace_context_of(span)).body).contexts
    return trace_ctx.beans[0]


def test_propagation_off_leaves_the_message_as_it_is_and_both_sides_meet_by_place(
    instrument, spans, topic, send, consumer_of
):
    """No header on the wire; ``{topic}-{partition}@{offset}`` in both native records."""
    instrument(propagation=False)
    send(value=b"x", headers=[("tenant", b"eu")])
    consumer = consumer_of(topic)
    message = consumer.poll(10)
    assert message.headers() == [("tenant", b"eu")]
    consumer.poll(0)
    sent, processed = spans.take(f"send {topic}"), spans.take(f"process {topic}")
    assert (sent.kind, processed.parent, processed.links) == (SpanKind.CLIENT, None, ())
    assert _native(sent).msg_id == _native(processed).msg_id == f"{topic}-0@0"


def test_a_creation_context_is_kept_across_the_broker(instrument, spans, topic, send, consumer_of):
    """Whoever created the message is the receiver's parent; the send is only a link's length away."""
    earlier = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    instrument(creation_context="keep")
    send(value=b"x", headers={"traceparent": earlier})
    consumer = consumer_of(topic)
    assert dict(consumer.poll(10).headers())["traceparent"] == earlier.encode()
    consumer.poll(0)
    sent, processed = spans.take(f"send {topic}"), spans.take(f"process {topic}")
    assert (sent.kind, [link.context.span_id for link in sent.links]) == (SpanKind.CLIENT, [0xB7AD6B7169203331])
    assert processed.parent.span_id == 0xB7AD6B7169203331
    assert _native(sent).msg_id == _native(processed).msg_id


@pytest.mark.parametrize(("asked", "name"), [("messaging/legacy", "{} send"), ("messaging/dup", "send {}")])
def test_old_names_are_an_environment_variable_away(instrument, spans, topic, send, monkeypatch, asked, name):
    """What the incumbent's dashboards ask for, with what it never said: the offset, the client, our own."""
    monkeypatch.setenv(OPT_IN, asked)
    instrument()
    send(value=b"x")
    span = spans.take(name.format(topic))
    expected = {
        "messaging.system": "kafka",
        "messaging.destination": topic,
        "messaging.destination_kind": "queue",
        "messaging.operation": "publish",
        "messaging.kafka.partition": 0,
        "messaging.kafka.message.offset": 0,
        "messaging.client_id": "shop",
    }
    assert {name: span.attributes.get(name) for name in expected} == expected
    assert _native(span).offset_msg_id == f"{topic}-0@0"


def test_a_topic_left_out_by_its_share_is_sent_untouched_but_for_the_flag(instrument, spans, topic, send, consumer_of):
    instrument(topic_sampling={topic: 0.0})
    send(value=b"x")
    consumer = consumer_of(topic)
    message = consumer.poll(10)
    consumer.poll(0)
    assert message.value() == b"x"
    assert dict(message.headers())["traceparent"].endswith(b"-00")
    spans.assert_empty()


def test_captured_headers_and_the_application_s_hook_are_on_the_span(instrument, spans, topic, send):
    instrument(
        capture_headers="tenant,authorization",
        produce_hook=lambda span, call: span.set_attribute("seen", call.topic),
    )
    send(value=b"x", headers={"tenant": b"eu", "authorization": b"hunter2", "other": b"-"})
    attributes = spans.take(f"send {topic}").attributes
    assert attributes["messaging.header.tenant"] == ("eu",)
    assert attributes["messaging.header.authorization"] == ("REDACTED",)
    assert "messaging.header.other" not in attributes
    assert attributes["seen"] == topic
