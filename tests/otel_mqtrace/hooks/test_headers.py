"""Attributes of a message's headers, captured headers, and written trace headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.attributes import MAX_CAPTURED_CHARACTERS, MAX_CAPTURED_VALUES, HeaderCapture
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.propagation import HEADER_GETTER, creation_of, propagator_in_force
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.model import MessageType
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing import RecordingExporter, recording_provider
from tests.support.mailbox import SENDER, TRACEPARENT

HEADERS = (("UNIQ_KEY", b"FROM-HEADER"), ("TAGS", b"paid"), ("KEYS", b"k1 k2"), ("RECONSUME_TIME", b"3"), TRACEPARENT)


@pytest.fixture
def processed(tracing_with, exporter):
    def run(*messages, batch=False, info=None, **settings):
        hook = ConsumeHook(tracing=tracing_with(**settings), info=info or ClientInfo(group_name="billing"))
        (call,) = hook.before(messages, batch=batch)
        hook.after(call)
        return exporter.take()

    return run


def _message(**said):
    return IncomingMessage(**{"topic": "orders", "partition": 0, "offset": 7, **said})


def test_headers_tell_what_the_client_does_not(processed):
    (bean,) = trace_context_of(processed(_message(headers=HEADERS))).beans
    assert (bean.msg_id, bean.tags, bean.keys, bean.retry_times) == ("FROM-HEADER", "paid", "k1 k2", 3)


def test_client_values_win_over_headers(processed):
    message = _message(
        headers=(*HEADERS, ("DELAY", b"1")), msg_id="TOLD", tags="due", keys=["a", "b"], retry_times=1,
        msg_type=MessageType.ORDER,
    )  # fmt: skip
    (bean,) = trace_context_of(processed(message)).beans
    assert (bean.msg_id, bean.tags, bean.keys, bean.retry_times) == ("TOLD", "due", "a b", 1)
    assert bean.msg_type is MessageType.ORDER


def test_first_delivery_of_the_client_is_not_a_retry(processed):
    assert processed(_message(headers=HEADERS, retry_times=0)).attributes["mqtrace.retry_times"] == 0


@pytest.mark.parametrize(("retries", "said"), [(-1, 0), (2**31 - 1, 2**31 - 1), (2**31, 0)])
def test_a_count_that_is_no_32_bit_number_counts_as_none(processed, retries, said):
    assert processed(_message(retry_times=retries)).attributes["mqtrace.retry_times"] == said


def test_the_retry_header_is_a_setting(processed):
    message = _message(headers=(("RECONSUME_TIME", b"3"), ("x-attempt", b"5")))
    assert processed(message, retry_header="x-attempt").attributes["mqtrace.retry_times"] == 5


def test_a_message_without_an_id_goes_by_its_place(processed):
    """As RocketMQ's getMsgId() does; and without a place it has none."""
    assert processed(_message()).attributes["messaging.message.id"] == "orders-0@7"
    assert "messaging.message.id" not in processed(_message(offset=None)).attributes


def test_a_rocketmq_message_has_the_registry_s_names_beside_ours(processed):
    info = ClientInfo(system="rocketmq", group_name="billing", namespace="shop", consumption_model="clustering")
    message = _message(tags="due", keys=["a"], msg_type=MessageType.ORDER, message_group="g1", key=b"k")
    span = processed(message, info=info)
    said = span.attributes
    assert said["messaging.rocketmq.message.tag"] == "due" == said["mqtrace.tags"]
    assert said["messaging.rocketmq.message.keys"] == ("a",)
    assert said["messaging.rocketmq.message.type"] == "fifo"
    assert said["messaging.rocketmq.message.group"] == "g1"
    assert said["messaging.rocketmq.namespace"] == "shop"
    assert said["messaging.rocketmq.consumption_model"] == "clustering"
    assert said["messaging.consumer.group.name"] == "billing"
    assert not [name for name in said if name.startswith("messaging.kafka")]
    assert trace_context_of(span).beans[0].msg_type is MessageType.ORDER


@pytest.mark.parametrize("count", [1, 2])
def test_offset_and_key_never_stand_on_the_span_of_a_batch(processed, count):
    messages = [_message(partition=n, key=b"k", headers=HEADERS) for n in range(count)]
    span = processed(*messages, batch=True)
    assert not {"messaging.kafka.offset", "messaging.kafka.message.key"} & set(span.attributes)
    assert [link.attributes["messaging.kafka.offset"] for link in span.links] == [7] * count
    assert {link.context.span_id for link in span.links} == {SENDER}


@pytest.mark.parametrize("process_context", ["auto", "link", "parent", "both"])
@pytest.mark.parametrize("headers", [(), HEADERS], ids=["stranger", "traced"])
def test_a_batch_of_one_is_the_same_trace_record_as_one(processed, headers, process_context):
    one = trace_context_of(processed(_message(headers=headers, key=b"k"), process_context=process_context))
    batch = trace_context_of(
        processed(_message(headers=headers, key=b"k"), batch=True, process_context=process_context)
    )
    assert batch.beans == one.beans


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


def test_no_header_is_captured_by_default(tracing_with, exporter):
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


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NEARLY = st.builds(
    lambda text, at, put, cut: text[:at] + put + text[at + cut :],
    st.just(PARENT),
    st.integers(0, len(PARENT)),
    st.text("0123456789abcdefF-_ \t\n٣x", max_size=3),
    st.integers(0, 3),
)
PARENTS = st.one_of(
    st.just(PARENT),
    NEARLY,
    st.just(f"00-{'0' * 32}-b7ad6b7169203331-01"),
    st.just(f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-00"),
    st.from_regex(r"\A[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[a-z]*)?\Z"),
)
TEXTS = st.one_of(PARENTS, PARENTS.map(str.encode), st.binary(max_size=60))
CARRIERS = st.fixed_dictionaries(
    {},
    optional={
        "traceparent": TEXTS,
        "Traceparent": TEXTS,
        "tracestate": st.sampled_from(["", "a=1", "a=1,b=2", "no state"]),
        "baggage": st.sampled_from(["", "customer=42", "no baggage"]),
        "TAGS": st.just(b"paid"),
    },
)
OUTSIDE = trace.set_span_in_context(NonRecordingSpan(SpanContext(1, 2, is_remote=False)), Context())


@given(found=CARRIERS, base=st.sampled_from([Context(), OUTSIDE]))
def test_what_travelled_is_what_the_propagator_reads(found, base):
    theirs, ours = propagate.extract(found, base, HEADER_GETTER), propagator_in_force().extract(found, base)
    told, expected = (trace.get_current_span(each).get_span_context() for each in (ours, theirs))
    assert (told, told.is_remote, told.trace_flags, told.trace_state) == (
        expected,
        expected.is_remote,
        expected.trace_flags,
        expected.trace_state,
    )
    assert baggage.get_all(ours) == baggage.get_all(theirs)


@given(found=CARRIERS)
def test_a_creation_context_is_what_the_propagator_reads(found):
    expected = trace.get_current_span(propagate.extract(found, Context(), HEADER_GETTER)).get_span_context()
    assert creation_of(found) == expected or not (creation_of(found).is_valid or expected.is_valid)
