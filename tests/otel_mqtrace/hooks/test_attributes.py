"""Attributes of a message and its headers, captured headers, and the names that the opt-in to conventions asks for."""

from operator import attrgetter
from unittest.mock import MagicMock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry import baggage, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.attributes import MAX_CAPTURED_CHARACTERS, MAX_CAPTURED_VALUES, OPT_IN, HeaderCapture
from otel_mqtrace.hooks.propagation import HEADER_GETTER, propagator_in_force
from otel_mqtrace.hooks.settle import SettledOffset, SettleHook
from otel_mqtrace.model import MessageType
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.mailbox import TRACEPARENT, incoming

HEADERS = (("UNIQ_KEY", b"FROM-HEADER"), ("TAGS", b"paid"), ("KEYS", b"k1 k2"), ("RECONSUME_TIME", b"3"), TRACEPARENT)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, ("FROM-HEADER", "paid", "k1 k2", 3, MessageType.DELAY)),
        (
            {"msg_id": "TOLD", "tags": "due", "keys": ["a", "b"], "retry_times": 1, "msg_type": MessageType.ORDER},
            ("TOLD", "due", "a b", 1, MessageType.ORDER),
        ),
    ],
    ids=["headers alone", "client"],
)
def test_values_of_the_client_win_over_headers(processed, told, expected):
    headers = dict((*HEADERS, ("DELAY", b"1")))  # as the clients of most other brokers have them
    (bean,) = trace_context_of(processed(incoming(headers=headers, **told))).beans
    assert (bean.msg_id, bean.tags, bean.keys, bean.retry_times, bean.msg_type) == expected


@pytest.mark.parametrize(
    ("message", "retry_times"),
    [
        ({"headers": HEADERS, "retry_times": 0}, 0),
        *(({"retry_times": given}, expected) for given, expected in ((-1, 0), (2**31 - 1, 2**31 - 1), (2**31, 0))),
        ({"headers": (("RECONSUME_TIME", b"2147483647"),)}, 2_147_483_647),
        *(
            ({"headers": (("RECONSUME_TIME", text),)}, 0)
            for text in (b"9" * 5000, b"2147483648", b"-1", b"1.5", b"many", b"")
        ),
    ],
    ids=lambda given: str(given)[:60],
)
def test_retry_count_other_than_a_32_bit_number_is_zero(processed, message, retry_times):
    """RocketMQ's is an int; what is longer would be lost in OTLP and refused by the native codec."""
    assert processed(incoming(**message)).attributes["mqtrace.retry_times"] == retry_times


def test_retry_header_is_a_setting(processed):
    message = incoming(headers=(("RECONSUME_TIME", b"3"), ("x-attempt", b"5")))
    assert processed(message, retry_header="x-attempt").attributes["mqtrace.retry_times"] == 5


def test_message_without_an_id_has_its_offset_as_id(processed):
    """As RocketMQ's getMsgId() does; and without a place it has none."""
    assert processed(incoming()).attributes["messaging.message.id"] == "orders-0@7"
    assert "messaging.message.id" not in processed(incoming(offset=None)).attributes


@pytest.mark.parametrize("process_context", ["auto", "link", "parent", "both"])
@pytest.mark.parametrize("headers", [(), HEADERS], ids=["stranger", "traced"])
def test_batch_of_one_has_the_trace_record_of_one_message(processed, headers, process_context):
    message = incoming(headers=headers, key=b"k")
    one, batch = (processed(message, batch=each, process_context=process_context) for each in (False, True))
    assert trace_context_of(batch).beans == trace_context_of(one).beans
    assert not {"messaging.kafka.offset", "messaging.kafka.message.key"} & set(batch.attributes)


PREFIX = "messaging.header."


def _captured(span):
    return {name.removeprefix(PREFIX): value for name, value in span.attributes.items() if name.startswith(PREFIX)}


@pytest.fixture
def captured(sent):
    def send(headers, *patterns, message=None, **settings):
        _, span = sent(None, {"capture_headers": patterns, **settings}, headers=headers, **(message or {}))
        return _captured(span)

    return send


_SECRETS = ("Authorization", "x-AUTHORIZATION-key", "COOKIE", "refresh-Token", "db_password")
_SENT_SECRETS = [(name, value) for name in _SECRETS for value in (b"hunter2", b"hunter3")]


CAPTURED = {
    "no pattern": ({"tenant": b"eu"}, (), {}, {}),
    "patterns": (
        [("x-hop", b"a"), ("other", b"-"), ("x-hop", "b"), ("TENANT", "eu"), ("x-none", None)],
        ("x-*", "Tenant"),
        {},
        {"x-hop": ("a", "b"), "TENANT": ("eu",), "x-none": ("",)},
    ),
    "secrets": (_SENT_SECRETS, ("*",), {}, dict.fromkeys(_SECRETS, ("REDACTED",) * 2)),
    "other secrets": (
        {"x-card-number": b"4", "cookie": b"c"},
        ("*",),
        {"redact_headers": ("X-Card*",)},
        {"x-card-number": ("REDACTED",), "cookie": ("c",)},
    ),
    "no propagation": ({"tenant": b"eu"}, ("*",), {"propagation": False}, {"tenant": ("eu",)}),
    "not UTF-8": ({"a": b"ok\xff"}, ("*",), {}, {"a": (r"ok\xff",)}),
    "none are sent": ({"tenant": b"eu"}, ("*",), {"propagation": False, "message": {"carries_headers": False}}, {}),
}


@pytest.mark.parametrize(("headers", "patterns", "options", "expected"), CAPTURED.values(), ids=CAPTURED)
def test_headers_are_captured_by_pattern_as_lists_of_text(captured, headers, patterns, options, expected):
    assert captured(headers, *patterns, **options) == expected


def test_trace_headers_are_captured_as_they_are_sent(sent):
    call, span = sent(None, {"capture_headers": ("traceparent", "UNIQ_KEY")}, headers={"traceparent": PARENT.encode()})
    assert _captured(span) == {name: (value.decode(),) for name, value in call.headers}
    assert f"{span.context.span_id:016x}" in _captured(span)["traceparent"][0]


def test_headers_of_tracing_are_captured_by_their_exact_name_only(captured, processed):
    """``*`` means the application's headers: baggage may hold anything of anybody, the ids are on the span already."""
    baggage = b"user.ssn=123-45"
    assert captured({"tenant": b"eu", "baggage": baggage}, "*") == {"tenant": ("eu",)}
    headers = [("tenant", b"eu"), ("baggage", baggage), ("traceparent", b"00-1"), ("UNIQ_KEY", b"7")]
    span = processed(incoming(headers=headers), capture_headers=("*", "Baggage"))
    assert _captured(span) == {"tenant": ("eu",), "baggage": (baggage.decode(),)}


def test_received_headers_are_captured_on_the_process_span_and_the_links_of_a_batch(processed):
    messages = [incoming(headers={"tenant": b"eu", "x-n": b"%d" % n, "y": b"-"}) for n in range(2)]
    span = processed(*messages, batch=True, capture_headers=("tenant", "x-*"))
    assert _captured(span) == {"tenant": ("eu",)}
    assert [_captured(link) for link in span.links] == [{"x-n": ("0",)}, {"x-n": ("1",)}]


def test_header_that_cannot_be_printed_is_not_captured(captured, no_failures_yet):
    assert captured({"a": MagicMock(**{"__str__.side_effect": ZeroDivisionError})}, "*") == {}
    assert guard.failures() == {"Tracing.set_captured_headers": 1}


header_values = (
    st.none() | st.binary(max_size=8) | st.text(max_size=8) | st.sampled_from([b"\xc3" * 9_000, "中" * 9_000])
)


@example([(n, b"x") for n in range(MAX_CAPTURED_VALUES + 10)])
@given(st.lists(st.tuples(st.text(max_size=3) | st.integers(), header_values), max_size=100))
def test_captured_headers_are_bounded_text_for_any_message(headers):
    captured = HeaderCapture(("*",), ("a*",)).attributes(headers)
    values = [value for each in captured.values() for value in each]
    assert list(captured) == list(dict.fromkeys(f"{PREFIX}{name}" for name, _ in headers[:MAX_CAPTURED_VALUES]))
    assert len(values) == min(MAX_CAPTURED_VALUES, len(headers))
    assert all(isinstance(value, str) and len(value) <= MAX_CAPTURED_CHARACTERS for value in values)
    assert all(set(each) <= {"REDACTED"} for name, each in captured.items() if name[len(PREFIX) :].lower()[:1] == "a")


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NEARLY = st.builds(
    lambda at, put, cut: PARENT[:at] + put + PARENT[at + cut :],
    *(st.integers(0, len(PARENT)), st.text("0123456789abcdefF-_ \t\n٣x", max_size=3), st.integers(0, 3)),
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


@given(carrier=CARRIERS, base=st.sampled_from([Context(), OUTSIDE]))
def test_extracted_and_creation_context_equal_those_of_the_propagator(carrier, base):
    theirs, ours = propagate.extract(carrier, base, HEADER_GETTER), propagator_in_force().extract(carrier, base)
    actual, expected = (trace.get_current_span(each).get_span_context() for each in (ours, theirs))
    parts = attrgetter("is_remote", "trace_flags", "trace_state")
    assert (actual, *parts(actual)) == (expected, *parts(expected))
    assert baggage.get_all(ours) == baggage.get_all(theirs)
    created = trace.get_current_span(propagate.extract(carrier, Context(), HEADER_GETTER)).get_span_context()
    read = propagator_in_force().creation_of(carrier)
    assert read == created or not (read.is_valid or created.is_valid)


_NEW_NAMES = "destination.name destination.partition.id operation.name operation.type client.id consumer.group.name"
_NEW = {f"messaging.{name}" for name in (*_NEW_NAMES.split(), "kafka.offset")}
_OLD_SEND = {"messaging.destination": "orders", "messaging.destination_kind": "queue", "messaging.client_id": "shop"}
_OLD_SEND |= {"messaging.operation": "publish", "messaging.kafka.partition": 2, "messaging.kafka.message.offset": 7}
_OLD_PROCESS = {**_OLD_SEND, "messaging.operation": "process", "messaging.kafka.consumer.group": "billing"}


def _send(tracing, system="kafka"):
    hook = SendHook(tracing=tracing, system=system, client_id="shop", servers="broker:9092")
    hook.after(hook.before("orders", body=b"x", headers={"KEYS": b"a b", "UNIQ_KEY": b"0A"}), partition=2, offset=7)


def _process(tracing, *messages, system="kafka"):
    hook = ConsumeHook(tracing=tracing, system=system, client_id="shop", group_name="billing")
    for call in hook.before(messages, batch=len(messages) > 1):
        hook.after(call)


@pytest.mark.parametrize("asked", ["", "http", "messaging", " messaging , http/dup", "MESSAGING"])
def test_current_names_are_written_by_default(monkeypatch, tracing_with, spans, asked):
    monkeypatch.setenv(OPT_IN, asked)
    tracing = tracing_with()
    assert tracing.naming is None
    _send(tracing)
    span = spans.take("send orders")
    assert span.attributes["messaging.destination.name"] == "orders"
    assert _OLD_SEND.keys().isdisjoint(span.attributes)


@pytest.mark.parametrize(
    ("asked", "both"),
    [
        *((asked, False) for asked in ("messaging/legacy", "http/dup, Messaging/Legacy", "messaging,messaging/legacy")),
        *((asked, True) for asked in ("messaging/dup", "messaging/legacy,messaging/dup", "messaging , messaging/dup")),
    ],
)
def test_legacy_writes_the_old_names_alone_and_dup_writes_both(monkeypatch, tracing_with, spans, asked, both):
    monkeypatch.setenv(OPT_IN, asked)
    tracing = tracing_with()
    assert SendHook(tracing=tracing).record("orders", b"x", None, None, None, None) is None
    assert ConsumeHook(tracing=tracing).record("orders", (2, 7, None, 1, None), (), None) is None
    _send(tracing)
    _process(tracing, incoming(partition=2, body_length=1))
    send, process = (spans.take(f"{verb} orders" if both else f"orders {verb}") for verb in ("send", "process"))
    assert {name: send.attributes.get(name) for name in _OLD_SEND} == _OLD_SEND
    assert {name: process.attributes.get(name) for name in _OLD_PROCESS} == _OLD_PROCESS
    assert _NEW & {*send.attributes, *process.attributes} == (_NEW if both else set())
    assert (send.attributes["mqtrace.trace_type"], process.attributes["mqtrace.trace_type"]) == ("Pub", "Sub")
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)


def test_batch_has_the_old_names_of_its_client(monkeypatch, tracing_with, spans):
    monkeypatch.setenv(OPT_IN, "messaging/legacy")
    messages = incoming(partition=2, body_length=1), incoming(partition=3, offset=8)
    _process(tracing_with(), *messages, system="rocketmq")
    span = spans.take("orders process")
    assert span.attributes["messaging.rocketmq.client_group"] == "billing"
    only_kafka = {"messaging.kafka.consumer.group", "messaging.kafka.message.offset"}
    assert all(only_kafka.isdisjoint(each.attributes) for each in (span, *span.links))
    _process(tracing_with(), *messages)
    span = spans.take("orders process")
    assert [link.attributes["messaging.kafka.partition"] for link in span.links] == [2, 3]
    assert [link.attributes["messaging.kafka.message.offset"] for link in span.links] == [7, 8]
    assert all(_NEW.isdisjoint(link.attributes) for link in span.links)
    assert [bean.offset_msg_id for bean in trace_context_of(span).beans] == ["orders-2@7", "orders-3@8"]


def test_poll_and_settlement_have_old_span_names_under_legacy(monkeypatch, tracing_with, spans):
    monkeypatch.setenv(OPT_IN, "messaging/legacy")
    tracing = tracing_with(receive_spans=True, settle_spans=True)
    for messages in ([incoming()], [incoming(), incoming(topic="bills")]):
        ConsumeHook(tracing=tracing).received(messages, start_ns=0)
    settle = SettleHook(tracing=tracing)
    settle.after(settle.before("commit"), [SettledOffset("orders", 0, 1)])
    ended = spans.take_all()
    assert [each.name for each in ended] == ["orders receive", "receive", "orders commit"]
    assert [each.attributes.get("messaging.operation") for each in ended] == ["receive", "receive", None]


@pytest.mark.parametrize("asked", ["messaging/legacy", "messaging/dup"])
def test_native_record_is_the_same_under_old_names(monkeypatch, tracing_with, spans, asked):
    records = []
    for names in ("", asked):
        monkeypatch.setenv(OPT_IN, names)
        tracing = tracing_with()
        _send(tracing)
        for messages in ([incoming(partition=2)], [incoming(partition=2), incoming(partition=3, offset=8)]):
            _process(tracing, *messages)
        records.append([trace_context_of(each)._replace(request_id=None) for each in spans.take_all()])
    assert records[0] == records[1]
