"""The process span: its parent and links, and who opens it."""

from contextlib import nullcontext

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
)
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.in_flight import ExplicitMode
from tests.support.mailbox import SENDER, TRACEPARENT

UNSAMPLED = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
HERE = 0xA


def _message(*headers, offset=7):
    return IncomingMessage(topic="orders", partition=0, offset=offset, headers=headers)


def _hangs(span):
    return span.parent and span.parent.span_id, [link.context.span_id for link in span.links]


MODES = ("auto", "link", "parent", "both")
AMBIENT = NonRecordingSpan(SpanContext(0xB, HERE, False, TraceFlags(1)))


@pytest.mark.parametrize("as_record", [False, True])
@pytest.mark.parametrize(
    ("process_context", "alone", "beside_a_span"),
    [
        ("auto", (SENDER, [SENDER]), (HERE, [SENDER])),
        ("link", (None, [SENDER]), (HERE, [SENDER])),
        ("parent", (SENDER, []), (SENDER, [HERE])),
        ("both", (SENDER, [SENDER]), (SENDER, [SENDER, HERE])),
    ],
)
def test_parent_and_links_follow_the_option(tracing_with, exporter, process_context, alone, beside_a_span, as_record):
    hook = ConsumeHook(tracing=tracing_with(process_context=process_context))
    for ambient, expected in ((nullcontext(), alone), (trace.use_span(AMBIENT), beside_a_span)):
        with ambient:
            recorded = hook.record("orders", (0, 7, None, 1, None), [TRACEPARENT], None) if as_record else None
            hook.after(recorded or hook.before([_message(TRACEPARENT)])[0])
        assert _hangs(exporter.take("process orders")) == expected


@pytest.mark.parametrize("process_context", MODES)
def test_several_senders_are_linked_without_a_parent(processed, process_context):
    messages = [_message(TRACEPARENT, offset=n) for n in range(2)]
    assert _hangs(processed(*messages, batch=True, process_context=process_context)) == (None, [SENDER, SENDER])


@pytest.mark.parametrize("process_context", MODES)
def test_untraced_message_gets_the_current_span_as_parent(processed, process_context):
    with trace.use_span(AMBIENT):
        assert _hangs(processed(_message(), process_context=process_context)) == (HERE, [])


def test_baggage_without_a_span_is_no_parent(processed):
    token = context.attach(baggage.set_baggage("mine", "1"))
    try:
        assert _hangs(processed(_message(TRACEPARENT))) == (SENDER, [SENDER])
    finally:
        context.detach(token)


class TestConsumeHook:
    def test_hook_gets_the_span_and_its_messages(self, tracing_with, processed, exporter):
        calls = []

        def hook(span, messages):
            span.set_attribute("tenant", "t1")
            calls.append((span.name, [message.offset for message in messages]))

        messages = [_message(TRACEPARENT, offset=n) for n in range(2)]
        tracing = tracing_with({"consume_hook": hook}, receive_spans=True)
        ConsumeHook(tracing=tracing).received(messages, start_ns=0, batch=True)
        assert exporter.take("poll orders").attributes["tenant"] == "t1"
        assert processed(*messages, batch=True, collaborators={"consume_hook": hook}).attributes["tenant"] == "t1"
        assert calls == [("poll orders", [0, 1]), ("process orders", [0, 1])]

    def test_exception_of_the_hook_is_counted_and_costs_no_span(self, processed, monkeypatch):
        monkeypatch.setattr(guard, "_failures", counted := {})
        span = processed(_message(TRACEPARENT), collaborators={"consume_hook": lambda span, messages: 1 / 0})
        assert span.attributes["mqtrace.success"] is True
        assert counted == {"consume_hook": 1}
        counted.clear()

    def test_hooks_are_not_called_for_a_non_recording_span(self, tracing_with):
        hooks = dict.fromkeys(("produce_hook", "consume_hook"), lambda *_: 1 / 0)
        tracing = tracing_with({**hooks, "tracer_provider": TracerProvider(sampler=ALWAYS_OFF)})
        consume, send = ConsumeHook(tracing=tracing), SendHook(tracing=tracing)
        consume.after(consume.before([_message(TRACEPARENT)])[0])
        send.after(send.before("orders"), partition=0, offset=1)


def test_suppressed_message_is_not_processed(tracing_with):
    with suppress_instrumentation():
        assert ConsumeHook(tracing=tracing_with()).before([_message(TRACEPARENT)]) == []


def test_unrecorded_message_is_still_propagated(tracing_with):
    hook = ConsumeHook(tracing=tracing_with())
    (call,) = hook.before([_message(UNSAMPLED, ("baggage", b"order=42"))])
    span_ctx = trace.get_current_span(call.otel_ctx).get_span_context()
    assert span_ctx.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert not span_ctx.trace_flags.sampled
    assert baggage.get_baggage("order", call.otel_ctx) == "42"
    hook.after(call)


def test_explicit_setting_expects_blocks_for_ever_and_automatic_mode_none():
    blocks = ExplicitMode("explicit")
    assert [blocks.expect_blocks(5_000) for _ in range(3)] == [True] * 3
    assert not ExplicitMode("auto").expect_blocks(1)


def test_late_blocks_are_expected_for_a_thousand_messages():
    blocks = ExplicitMode("auto")
    blocks.record_late_block("billing")
    for _ in range(5_000):
        assert blocks.expect_blocks(1)
        blocks.record_block()
    assert all(blocks.expect_blocks(1) for _ in range(1_000))
    assert not blocks.expect_blocks(1)


def test_blocks_for_one_message_of_ten_end_the_explicit_mode():
    blocks = ExplicitMode("auto")
    blocks.record_shared_batch()
    assert blocks.expect_blocks(10)
    blocks.record_block()
    assert not blocks.expect_blocks(10)


@pytest.mark.parametrize("seen", [1, 3])
def test_late_block_warning_is_logged_once(seen, caplog):
    blocks = ExplicitMode("auto")
    for _ in range(seen):
        blocks.record_late_block("billing")
        blocks.expect_blocks(1_000)
        assert not blocks.expect_blocks(1)
    assert caplog.text.count("group billing") == 1
