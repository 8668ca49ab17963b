"""A send that nobody will ever look at costs its headers, and they are those that a looked-at send would have."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, DEFAULT_OFF, ParentBased, Sampler, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceState

from otel_mqtrace.config import Settings
from otel_mqtrace.hooks.send import SendHook
from otel_mqtrace.hooks.tracing import Tracing

NAMES = st.sampled_from(["TAGS", "KEYS", "traceparent", "Traceparent", "tracestate", "baggage", "UNIQ_KEY", "order"])
HEADERS = st.one_of(
    st.none(),
    st.dictionaries(NAMES, st.one_of(st.binary(max_size=4), st.none())),
    st.lists(st.tuples(NAMES, st.one_of(st.binary(max_size=4), st.text(max_size=3), st.none())), max_size=4),
)


def hook(sampler: Sampler = ALWAYS_OFF, settings: Settings | None = None, **collaborators: Any) -> SendHook:
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    return SendHook(tracing=Tracing.create(tracer_provider=provider, settings=settings, **collaborators))


def silently(hook: SendHook, topic: str, headers: Any) -> Any:
    recorded = hook.record(topic, b"x", None, headers, None)
    return None if recorded is None or recorded[0] is not None else recorded[1]


def shape(headers: Any) -> list[tuple[str, Any]]:
    return [
        (name, re.sub(rb"[0-9a-fA-F]", b"x", value) if name in {"traceparent", "UNIQ_KEY"} else value)
        for name, value in headers
    ]


@given(headers=HEADERS)
def test_its_headers_are_those_of_any_other_send(headers: Any) -> None:
    silent, usual = silently(hook(), "orders", headers), hook().before("orders", headers=headers)
    names = {name.lower() for name, _ in (headers.items() if isinstance(headers, dict) else headers or ())}
    if silent is None:
        assert names & {"traceparent", "tracestate", "baggage", "uniq_key"}
    else:
        assert shape(silent) == shape(usual.headers)
        assert dict(silent)["traceparent"].endswith((b"-00", b"-02"))


def test_the_applications_headers_are_left_alone() -> None:
    mine = [("TAGS", b"paid")]
    assert silently(hook(), "orders", mine)[0] == ("TAGS", b"paid")
    assert mine == [("TAGS", b"paid")]


@pytest.mark.parametrize("sampler", [ALWAYS_ON, TraceIdRatioBased(0), ParentBased(TraceIdRatioBased(0.5))])
def test_what_may_be_recorded_goes_the_long_way(sampler: Sampler) -> None:
    assert silently(hook(sampler), "orders", None) is None


def test_what_is_current_travels_with_it() -> None:
    parent = SpanContext(1, 2, is_remote=False, trace_state=TraceState([("vendor", "x")]))
    token = context.attach(baggage.set_baggage("order", "42", trace.set_span_in_context(NonRecordingSpan(parent))))
    try:
        headers = dict(silently(hook(DEFAULT_OFF), "orders", None))
    finally:
        context.detach(token)
    assert re.fullmatch(rb"00-0{31}1-[0-9a-f]{16}-00", headers["traceparent"])
    assert (headers["tracestate"], headers["baggage"]) == (b"vendor=x", b"order=42")


def test_a_suppressed_send_is_left_alone() -> None:
    with suppress_instrumentation():
        assert silently(hook(), "orders", None) is None


@pytest.mark.parametrize(
    "settings",
    [
        Settings(propagation=False),
        Settings(topic_exclude=("orders",)),
        Settings(topic_sampling={"orders": 0.5}),
    ],
)
def test_what_the_settings_ask_for_wins(settings: Settings) -> None:
    assert silently(hook(settings=settings), "orders", None) is None


def test_metrics_count_it_whenever_they_begin() -> None:
    provider = MeterProvider([InMemoryMetricReader()])
    assert silently(hook(meter_provider=provider), "orders", None) is None


def test_another_propagator_writes_its_own() -> None:
    silent = hook()
    assert silently(silent, "orders", None) is not None
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(CompositePropagator([]))
    try:
        assert silently(silent, "orders", None) is None
    finally:
        propagate.set_global_textmap(before)


def test_headers_that_no_client_takes_are_the_clients_to_refuse() -> None:
    assert silently(hook(), "orders", "none") is None


def test_late_provider_is_attached_before_the_first_send() -> None:
    asked: list[None] = []
    silent = hook(before_span=lambda: asked.append(None))
    ids = silent._tracing.tracer.id_generator
    drawn = []
    ids.generate_trace_id = lambda: drawn.append(1) or 1
    assert silently(silent, "orders", [("traceparent", b"00")]) is None
    assert (len(asked), drawn) == (1, [])
    assert silently(silent, "orders", None) is not None
    assert (len(asked), drawn) == (1, [1])
