"""No message is lost to the limits that the application's TracerProvider sets on spans."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_mqtrace import ConsumeHook
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import RecordingExporter


@pytest.fixture
def exporter():
    return RecordingExporter()


def _provider(exporter, limits):
    provider = TracerProvider(span_limits=limits)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def _beans_of_a_poll(tracing, exporter, count):
    hook = ConsumeHook(tracing=tracing)
    for call in hook.before([IncomingMessage(topic="t", partition=0, offset=n) for n in range(count)], batch=True):
        hook.after(call)
    return [[bean.offset_msg_id for bean in trace_context_of(span).beans] for span in exporter.take_all()]


@pytest.mark.parametrize(
    ("max_links", "sizes"),
    [(4, [4, 4, 2]), (1, [1] * 10), (0, [1] * 10), (SpanLimits.UNSET, [10]), (None, [10])],
)
def test_a_poll_is_split_by_the_limit_of_the_provider_itself(exporter, max_links, sizes):
    provider = _provider(exporter, SpanLimits(max_links=max_links))
    beans = _beans_of_a_poll(Tracing.create(settings=Settings(), tracer_provider=provider), exporter, 10)
    assert [len(each) for each in beans] == sizes
    assert [name for each in beans for name in each] == [f"t-0@{n}" for n in range(10)]


def test_a_provider_without_a_limit_still_gets_spans_of_128(exporter):
    provider = _provider(exporter, SpanLimits(max_links=SpanLimits.UNSET))
    beans = _beans_of_a_poll(Tracing.create(settings=Settings(), tracer_provider=provider), exporter, 130)
    assert [len(each) for each in beans] == [128, 2]


def test_the_limit_of_a_provider_that_comes_late_counts(exporter, monkeypatch):
    tracing = Tracing.create(settings=Settings())
    assert tracing.links_per_span == 128
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", _provider(exporter, SpanLimits(max_links=4)))
    assert [len(each) for each in _beans_of_a_poll(tracing, exporter, 10)] == [4, 4, 2]
