"""``produce_hook(span, call)``: the application's own word on each send span."""

from __future__ import annotations

import logging

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from otel_mqtrace import SendHook
from otel_mqtrace.hooks import guard
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import RecordingExporter, recording_provider


def _send(tracing):
    hook = SendHook(tracing=tracing)
    call = hook.before("orders", headers={"tenant": b"eu"})
    hook.after(call, partition=0, offset=1)
    return call


def test_a_produce_hook_may_say_more_and_rename(tracing_with, exporter):
    """It sees the message as it will be sent; the native record does not mind what the span is called."""

    def name_it(span, call):
        span.update_name(f"publish {call.topic}")
        span.set_attribute("tenant", dict(call.headers)["tenant"].decode())

    call = _send(tracing_with({"produce_hook": name_it}))
    span = exporter.take("publish orders")
    assert span.attributes["tenant"] == "eu"
    assert trace_context_of(span).beans[0].msg_id == call.attributes["messaging.message.id"]


def test_a_produce_hook_is_not_called_for_a_span_that_records_nothing(tracing_with):
    calls = []
    collaborators = {"produce_hook": lambda *given: calls.append(given)}
    _send(tracing_with({**collaborators, "tracer_provider": TracerProvider(sampler=ALWAYS_OFF)}))
    assert calls == []


@pytest.fixture
def no_failures_yet(monkeypatch):
    monkeypatch.setattr(guard, "_failures", {})


def test_what_a_produce_hook_raises_is_counted_and_logged_once(tracing_with, caplog, no_failures_yet):
    def fail(_span, _call):
        raise ZeroDivisionError

    kept = RecordingExporter()
    tracing = tracing_with({"produce_hook": fail, "tracer_provider": recording_provider(kept)})
    with caplog.at_level(logging.WARNING):
        calls = [_send(tracing) for _ in range(3)]
    assert all("traceparent" in dict(call.headers) for call in calls)
    assert len(kept.take_all("send orders")) == 3
    assert guard.failures() == {"produce_hook": 3}
    assert ["produce_hook" in record.getMessage() for record in caplog.records] == [True]
