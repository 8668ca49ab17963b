"""``capture_headers`` and ``redact_headers``: what of a message's headers may be read on its spans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.attributes import MAX_CAPTURED_CHARACTERS, MAX_CAPTURED_VALUES, HeaderCapture
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.testing import RecordingExporter, recording_provider

PREFIX = "messaging.header."


def _captured(span):
    return {
        name.removeprefix(PREFIX): value for name, value in (span.attributes or {}).items() if name.startswith(PREFIX)
    }


def _send(tracing, headers, **more):
    hook = SendHook(tracing=tracing)
    call = hook.before("orders", headers=headers, **more)
    hook.after(call)
    return call


def test_no_header_is_captured_unless_asked_for(tracing_with, exporter):
    """Headers hold secrets."""
    tracing = tracing_with()
    assert tracing.capture is None
    _send(tracing, {"tenant": b"eu"})
    assert _captured(exporter.take("send orders")) == {}


def test_headers_are_captured_by_pattern_as_lists_of_text(tracing_with, exporter):
    tracing = tracing_with(capture_headers=("x-*", "Tenant"))
    _send(tracing, [("x-hop", b"a"), ("other", b"-"), ("x-hop", "b"), ("TENANT", "eu"), ("x-none", None)])
    assert _captured(exporter.take("send orders")) == {"x-hop": ("a", "b"), "TENANT": ("eu",), "x-none": ("",)}


@pytest.mark.parametrize("name", ["Authorization", "x-AUTHORIZATION-key", "COOKIE", "refresh-Token", "db_password"])
def test_secrets_are_redacted_by_default_in_any_case(tracing_with, exporter, name):
    """That there was one may be seen, not what it was."""
    _send(tracing_with(capture_headers=("*",)), [(name, b"hunter2"), (name, b"hunter3")])
    assert _captured(exporter.take("send orders"))[name] == ("REDACTED", "REDACTED")


def test_what_is_redacted_is_a_setting(tracing_with, exporter):
    _send(tracing_with(capture_headers=("*",), redact_headers=("X-Card*",)), {"x-card-number": b"4", "cookie": b"c"})
    captured = _captured(exporter.take("send orders"))
    assert (captured["x-card-number"], captured["cookie"]) == (("REDACTED",), ("c",))


def test_trace_headers_are_captured_as_they_are_sent(tracing_with, exporter):
    tracing = tracing_with(capture_headers=("traceparent", "UNIQ_KEY"))
    call = _send(tracing, {"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"})
    span = exporter.take("send orders")
    assert _captured(span) == {name: (value.decode(),) for name, value in call.headers}
    assert f"{span.context.span_id:016x}" in _captured(span)["traceparent"][0]


def test_what_tracing_sends_along_is_captured_by_its_very_name_only(tracing_with, exporter):
    """``*`` means the application's headers: baggage may hold anything of anybody, the ids are on the span already."""
    baggage = b"user.ssn=123-45"
    _send(tracing_with(capture_headers=("*",)), {"tenant": b"eu", "baggage": baggage})
    hook = ConsumeHook(tracing=tracing_with(capture_headers=("*", "Baggage")))
    headers = [("tenant", b"eu"), ("baggage", baggage), ("traceparent", b"00-1"), ("UNIQ_KEY", b"7")]
    for call in hook.before([IncomingMessage(topic="orders", partition=0, offset=1, headers=headers)]):
        hook.after(call)
    assert _captured(exporter.take("send orders")) == {"tenant": ("eu",)}
    assert _captured(exporter.take("process orders")) == {"tenant": ("eu",), "baggage": (baggage.decode(),)}


def test_a_name_that_is_no_text_is_captured_as_the_client_writes_it(tracing_with, exporter):
    """confluent-kafka prints whatever it is given."""
    _send(tracing_with(capture_headers=("*ten*", "7")), [(b"tenant", b"eu"), ("tenant", b"us"), (7, b"x")])
    assert _captured(exporter.take("send orders")) == {"b'tenant'": ("eu",), "tenant": ("us",), "7": ("x",)}


def test_headers_are_captured_without_propagation_but_not_where_none_travel(tracing_with, exporter):
    tracing = tracing_with(capture_headers=("*",), propagation=False)
    _send(tracing, {"tenant": b"eu"})
    assert _captured(exporter.take("send orders")) == {"tenant": ("eu",)}
    _send(tracing, {"tenant": b"eu"}, carries_headers=False)
    assert _captured(exporter.take("send orders")) == {}


def test_received_headers_are_captured_on_the_process_span_and_the_links_of_a_batch(tracing_with, exporter):
    hook = ConsumeHook(tracing=tracing_with(capture_headers=("tenant", "x-*")))
    messages = [
        IncomingMessage(
            topic="orders", partition=0, offset=n, headers=[("tenant", b"eu"), ("x-n", str(n).encode()), ("y", b"-")]
        )
        for n in range(2)
    ]
    for call in hook.before(messages, batch=True):
        hook.after(call)
    span = exporter.take("process orders")
    assert _captured(span) == {"tenant": ("eu",)}
    assert [_captured(link) for link in span.links] == [{"x-n": ("0",)}, {"x-n": ("1",)}]


def test_a_value_that_is_no_utf_8_is_escaped():
    assert HeaderCapture(("*",), ()).attributes([("a", b"ok\xff")]) == {f"{PREFIX}a": (r"ok\xff",)}


def test_a_message_with_very_many_headers_shows_the_first_ones():
    captured = HeaderCapture(("h*",), ()).attributes([(f"h{n}", b"x") for n in range(MAX_CAPTURED_VALUES + 10)])
    assert list(captured) == [f"{PREFIX}h{n}" for n in range(MAX_CAPTURED_VALUES)]


class _Unspeakable:
    def __str__(self):
        raise ZeroDivisionError


def test_a_header_that_cannot_be_printed_costs_no_span(tracing_with, monkeypatch):
    """No client would send it; the call that says so is still recorded."""
    monkeypatch.setattr(guard, "_failures", {})
    kept = RecordingExporter()
    tracing = tracing_with({"tracer_provider": recording_provider(kept)}, capture_headers=("*",))
    _send(tracing, {"a": _Unspeakable()})
    assert _captured(kept.take("send orders")) == {}
    assert guard.failures() == {"Tracing.set_captured_headers": 1}


@given(
    st.lists(
        st.tuples(
            st.text(max_size=3) | st.integers(),
            st.none() | st.binary(max_size=8) | st.text(max_size=8) | st.just(b"\xc3" * 9_000) | st.just("中" * 9_000),
        ),
        max_size=100,
    )
)
def test_whatever_a_message_holds_capture_is_bounded_and_text(headers):
    captured = HeaderCapture(("*",), ("a*",)).attributes(headers)
    values = [value for each in captured.values() for value in each]
    assert len(values) == min(MAX_CAPTURED_VALUES, len(headers))
    assert all(isinstance(value, str) and len(value) <= MAX_CAPTURED_CHARACTERS for value in values)
    assert all(set(each) <= {"REDACTED"} for name, each in captured.items() if name[len(PREFIX) :].lower()[:1] == "a")
