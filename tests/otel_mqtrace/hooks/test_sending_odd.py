"""What a send hook makes of a call that is odd, late or not to be traced."""

from __future__ import annotations

from dataclasses import replace

import pytest
from opentelemetry import trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.hooks.transaction import TransactionHook
from otel_mqtrace.model import TransactionState
from otel_mqtrace.spans.mapping import trace_context_of

EARLIER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_suppressed_send_is_not_touched(sender, exporter):
    """A Kafka-based exporter would trace itself for ever."""
    with suppress_instrumentation():
        assert sender().before("orders") is None


def test_only_included_topics_are_traced(sender, exporter):
    hook = sender(topic_include=("orders*", "audit"), topic_exclude=("*.dlq",))
    assert [topic for topic in ("orders", "orders.dlq", "audit", "other") if hook.before(topic)] == ["orders", "audit"]


# -- transactions --------------------------------------------------------------------------------------------------
def test_a_transaction_without_propagation_ends_under_the_physical_id(tracing_with, exporter):
    tracing = tracing_with(propagation=False)
    hook, transaction = SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo())
    transaction.begin()
    call = hook.before("orders", transaction_id=transaction.transaction_id)
    transaction.joined(call)
    hook.after(call, partition=0, offset=5)
    transaction.ended(TransactionState.COMMIT_MESSAGE, start_ns=transaction.now_ns())
    beans = [trace_context_of(exporter.take()).beans[0] for _ in range(2)]
    assert [bean.msg_id for bean in beans] == ["orders-0@5", "orders-0@5"]


def test_a_message_still_on_its_way_when_its_transaction_ends_has_one_id_on_both_spans(tracing_with, exporter):
    tracing = tracing_with(propagation=False)
    hook, transaction = SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo())
    transaction.begin()
    call = hook.before("orders", transaction_id=transaction.transaction_id)
    transaction.joined(call)
    transaction.ended(TransactionState.ROLLBACK_MESSAGE, start_ns=transaction.now_ns())
    hook.after(call, error="_PURGE_QUEUE", partition=0, offset=5)
    end, send = (trace_context_of(exporter.take()).beans[0] for _ in range(2))
    assert end.msg_id == send.msg_id
    assert len(send.msg_id) == 32
    assert (end.transaction_state, end.transaction_id) == (TransactionState.ROLLBACK_MESSAGE, send.transaction_id)


@pytest.mark.parametrize("shape", [list, dict])
def test_names_that_are_no_text_cost_neither_span_nor_trace_headers(sender, exporter, shape):
    """They reach the broker as ``b'TAGS'`` and ``7``: no name of ours, so nothing is read from them or replaced."""
    hook = sender()
    own = [(b"TAGS", b"paid"), (b"traceparent", EARLIER.encode()), (7, b"x"), ("KEYS", b"k")]
    call = hook.before("orders", headers=shape(own))
    hook.after(call, partition=0, offset=1)

    span = exporter.take("send orders")
    assert span.attributes["mqtrace.keys"] == ("k",)
    assert "mqtrace.tags" not in span.attributes
    assert (call.headers[:4], span.links) == (own, ())
    (trace_header, unique), names = call.headers[4:], [name for name, _ in call.headers[4:]]
    assert names == ["traceparent", "UNIQ_KEY"]
    assert f"{span.context.span_id:016x}" in trace_header[1].decode()
    assert unique[1].decode() == span.attributes["messaging.message.id"]


def test_a_name_that_cannot_be_printed_is_the_clients_to_refuse(sender, exporter):
    class Unspeakable:
        def __str__(self):
            raise ZeroDivisionError

    name = Unspeakable()
    hook = sender()
    call = hook.before("orders", headers=[(name, b"x")])
    hook.after(call, exception=ZeroDivisionError())
    assert call.headers[0] == (name, b"x")
    assert exporter.take("send orders").attributes["error.type"] == "ZeroDivisionError"


def test_an_empty_id_is_none(sender, exporter):
    hook = sender()
    call = hook.before("orders", headers=[("UNIQ_KEY", b"")])
    hook.after(call, partition=0, offset=1)
    receiver = ConsumeHook(tracing=hook._tracing)
    for received in receiver.before([IncomingMessage(topic="orders", partition=0, offset=1, headers=call.headers)]):
        receiver.after(received)
    sent = exporter.take("send orders").attributes["messaging.message.id"]
    assert sent
    assert exporter.take("process orders").attributes["messaging.message.id"] == sent


def test_a_span_that_cannot_be_handed_out_is_ended(sender, exporter, monkeypatch):
    """What fails after it was opened must not leave it open for ever."""
    monkeypatch.setattr(guard, "_failures", {})

    class Broken:
        asked = 0

        @property
        def collected(self):
            self.asked += 1
            if self.asked > 1:  # once the span is open
                raise ZeroDivisionError
            return False

    tracing = replace(sender()._tracing, metrics=Broken())
    unsampled = TracerProvider(sampler=ALWAYS_OFF).get_tracer("x")
    ended = []
    monkeypatch.setattr(trace.NonRecordingSpan, "end", lambda span, end_time=None: ended.append(span))
    assert SendHook(tracing=replace(tracing, tracer=unsampled)).before("orders") is None
    assert len(ended) == 1
    assert guard.failures() == {"SendHook.before": 1}
