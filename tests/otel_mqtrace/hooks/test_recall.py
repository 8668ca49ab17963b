"""The manual door for a recall: a delayed message taken back, or not."""

from __future__ import annotations

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.hooks.transaction import RecallHook
from otel_mqtrace.model import TraceType
from otel_mqtrace.spans.mapping import trace_context_of


@pytest.fixture
def hook(tracing_with):
    return RecallHook(tracing_with(), ClientInfo(system="rocketmq", group_name="reminders-producer"))


def test_a_recall_is_a_record_of_its_own(hook, exporter, clock):
    call = hook.before("reminders")
    clock.advance(ms=7)
    hook.after(call, msg_id="0102")
    span = exporter.take("recall reminders")
    said = trace_context_of(span)
    assert (said.trace_type, said.success, said.cost_ms) == (TraceType.RECALL, True, 7)
    assert (said.group_name, said.beans[0].topic, said.beans[0].msg_id) == ("reminders-producer", "reminders", "0102")
    assert span.kind is SpanKind.CLIENT


def test_a_recall_ends_once_and_says_why_it_failed(hook, exporter):
    call = hook.before("reminders")
    hook.after(call, exception=ValueError("too late"), description="too late")
    hook.after(call, msg_id="0102")
    span = exporter.take("recall reminders")
    assert (span.attributes["error.type"], span.status.status_code) == ("ValueError", StatusCode.ERROR)
    assert trace_context_of(span).success is False
    exporter.assert_empty()


def test_without_a_call_nothing_ends(hook, exporter):
    """What ``before`` did not open, ``after`` passes over."""
    hook.after(None, msg_id="0102")
    exporter.assert_empty()
