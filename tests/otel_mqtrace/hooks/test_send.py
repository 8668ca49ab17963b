"""The send span, its headers, odd messages, and the application's produce hook."""

from contextlib import nullcontext
from enum import Enum
from unittest.mock import MagicMock, Mock

import pytest
from confluent_kafka import KafkaError
from opentelemetry import baggage, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.config import Settings
from otel_mqtrace.hooks import guard
from otel_mqtrace.hooks.scope import BlockScope
from otel_mqtrace.hooks.settle import TransactionHook
from otel_mqtrace.hooks.tracing import ClientInfo, Tracing
from otel_mqtrace.model import MessageType, TransactionState
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.wire.native import decode_body, encode_context
from tests.support.mailbox import SENDER, TRACEPARENT, incoming

KEEP = {"creation_context": "keep"}
SILENT = {"propagation": False}


def _names(call):
    return [name for name, _ in call.headers]


@pytest.mark.parametrize(
    ("settings", "message", "msg_id"),
    [
        (SILENT, {"headers": [("a", b"1")]}, "orders-2@7"),
        (SILENT, {"headers": [("UNIQ_KEY", b"mine")]}, "mine"),
        *(
            (each, {"headers": [("UNIQ_KEY", b"lost")], "carries_headers": False}, "orders-2@7")
            for each in ({}, SILENT, KEEP)
        ),
    ],
    ids=["propagation off", "id in the headers", "client without headers", "both", "client without headers, keep"],
)
def test_send_that_writes_no_headers_is_a_client_span_with_the_known_id(sent, settings, message, msg_id):
    headers = list(message["headers"])
    call, span = sent({"partition": 2, "offset": 7}, settings, **message)
    assert (call.headers, message["headers"]) == (None, headers)
    assert (span.kind, span.attributes["messaging.message.id"]) == (SpanKind.CLIENT, msg_id)


@pytest.mark.parametrize(
    "answer",
    [{"error": "_MSG_TIMED_OUT"}, {"outcome": "not_awaited"}, {"partition": 3}, {"partition": 0, "offset": -1}],
    ids=str,
)
def test_send_without_an_offset_has_an_id_in_the_native_record(sent, answer):
    _, span = sent(answer, SILENT, body=b"x")
    trace_ctx = trace_context_of(span)
    (read,) = decode_body(encode_context(trace_ctx).body).contexts
    assert len(read.beans[0].msg_id) == 32
    assert read.beans[0].msg_id == trace_ctx.beans[0].msg_id


def test_fields_of_the_client_win_over_the_headers_and_its_id_is_written(sent):
    headers = [("UNIQ_KEY", b"stale"), ("TAGS", b"a"), ("KEYS", b"k1")]
    of_client = {"msg_id": "mine", "tags": "b", "keys": "k2 k3", "msg_type": MessageType.ORDER}
    call, span = sent({"partition": 0, "offset": 1}, headers=headers, **of_client)
    assert [value for name, value in call.headers if name == "UNIQ_KEY"] == [b"mine"]
    assert span.attributes["mqtrace.keys"] == ("k2", "k3")  # a text is no sequence of its letters
    (bean,) = trace_context_of(span).beans
    assert (bean.msg_id, bean.tags, bean.keys, bean.msg_type) == ("mine", "b", "k2 k3", MessageType.ORDER)


def test_empty_id_is_replaced_on_both_sides(sent, processed):
    call, span = sent({"partition": 0, "offset": 1}, headers=[("UNIQ_KEY", b"")])
    msg_id = span.attributes["messaging.message.id"]
    assert [value for name, value in call.headers if name == "UNIQ_KEY"] == [msg_id.encode()] != [b""]
    assert processed(incoming(*call.headers)).attributes["messaging.message.id"] == msg_id


@pytest.mark.parametrize("propagator", [W3CBaggagePropagator(), CompositePropagator([])], ids=["baggage", "none"])
def test_propagator_without_a_trace_header_makes_a_client_span(sent, propagating, propagator):
    propagating(propagator)
    call, span = sent()
    assert _names(call) == ["UNIQ_KEY"]
    assert span.kind is SpanKind.CLIENT


@pytest.mark.parametrize(("headers", "name"), [({}, "orders-0@4"), ({"UNIQ_KEY": b"mine"}, "mine")])
def test_id_that_could_not_be_written_is_not_used(sent, propagating, no_failures_yet, headers, name):
    propagating(Mock(TextMapPropagator, fields=frozenset(), **{"inject.side_effect": ZeroDivisionError}))
    call, span = sent({"partition": 0, "offset": 4}, headers=headers)
    assert (call.headers, span.attributes["messaging.message.id"]) == (None, name)
    assert guard.failures() == {"SendHook.headers": 1}


@pytest.mark.parametrize("shape", [list, tuple, dict])
def test_header_names_other_than_text_are_kept_and_cost_nothing(sent, shape):
    own = [(b"TAGS", b"paid"), (b"traceparent", TRACEPARENT[1]), (7, b"x"), ("KEYS", b"k")]
    call, span = sent({"partition": 0, "offset": 1}, headers=shape(own))
    assert span.attributes["mqtrace.keys"] == ("k",)
    assert "mqtrace.tags" not in span.attributes
    assert (call.headers[:4], span.links) == (own, ())
    (trace_header, unique), names = call.headers[4:], _names(call)[4:]
    assert names == ["traceparent", "UNIQ_KEY"]
    assert f"{span.context.span_id:016x}" in trace_header[1].decode()
    assert unique[1].decode() == span.attributes["messaging.message.id"]


def test_header_name_that_cannot_be_printed_is_left_to_the_client(sent):
    name = MagicMock(**{"__str__.side_effect": ZeroDivisionError})
    call, span = sent({"exception": ZeroDivisionError()}, headers=[(name, b"x")])
    assert call.headers[0] == (name, b"x")
    assert span.attributes["error.type"] == "ZeroDivisionError"


def test_replace_writes_the_send_span_and_links_to_the_earlier_one(sent):
    call, span = sent(headers=[("Traceparent", b"odd"), TRACEPARENT])
    (written,) = [value for name, value in call.headers if name.lower() == "traceparent"]
    assert f"{span.context.span_id:016x}" in written.decode()
    assert (span.kind, span.links[0].context.span_id) == (SpanKind.PRODUCER, SENDER)


@pytest.mark.parametrize("is_current", [False, True])
def test_keep_leaves_a_creation_context_as_it_is_and_links_to_it(sent, is_current):
    trace_id = 0x0AF7651916CD43DD8448EB211C80319C
    remote = trace.SpanContext(trace_id, SENDER, is_remote=True, trace_flags=trace.TraceFlags(1))
    with trace.use_span(trace.NonRecordingSpan(remote)) if is_current else nullcontext():
        call, span = sent(None, KEEP, headers=[TRACEPARENT, ("tracestate", b"a=b")])
    assert call.headers[:2] == [TRACEPARENT, ("tracestate", b"a=b")]
    assert _names(call)[2:] == ["UNIQ_KEY"]
    assert (span.kind, span.parent and span.parent.span_id) == (SpanKind.CLIENT, SENDER if is_current else None)
    assert [link.context.span_id for link in span.links] == [SENDER]


@pytest.mark.parametrize(
    ("own", "current", "travels"),
    [([], None, "mine=1"), ([], "7", "tenant=7"), ([TRACEPARENT], None, None)],
    ids=["without a trace", "under other baggage", "of an earlier trace"],
)
def test_baggage_of_a_message_without_a_trace_gives_way_to_other_baggage_alone(sent, own, current, travels):
    with BlockScope(baggage.set_baggage("tenant", current) if current else Context()):
        call, _ = sent(headers=[*own, ("baggage", "mine=1"), ("tracestate", b"a=b")])
    values = [value if isinstance(value, str) else value.decode() for name, value in call.headers if name == "baggage"]
    assert values == ([travels] if travels else [])
    assert sorted({*_names(call)} - {"baggage"}) == ["UNIQ_KEY", "traceparent"]


@pytest.mark.parametrize("torn", [b"", b"00-0-0-00", b"\xff"])
def test_keep_replaces_an_invalid_creation_context(sent, torn):
    call, span = sent(None, KEEP, headers=[("traceparent", torn)])
    assert span.kind is SpanKind.PRODUCER
    assert _names(call).count("traceparent") == 1


def test_sampler_gets_all_attributes_of_the_conventions_at_the_start():
    sampler = Mock(Sampler, **{"should_sample.return_value": SamplingResult(Decision.DROP)})
    tracing = Tracing.create(settings=Settings(), tracer_provider=TracerProvider(sampler=sampler))
    SendHook(tracing=tracing, servers="broker:9092").before("orders", partition=3)
    (call,) = sampler.should_sample.call_args_list
    name, kind, attributes = call.args[2:5]
    assert (name, kind) == ("send orders", SpanKind.PRODUCER)
    operation = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    place = {"messaging.destination.name": "orders", "messaging.destination.partition.id": "3"}
    expected = {"messaging.system": "kafka", **operation, **place, "server.address": "broker", "server.port": 9092}
    assert {name: attributes.get(name) for name in expected} == expected


def test_failed_send_has_its_error_type(sent):
    answer = {"error": "NOT_ENOUGH_REPLICAS", "description": "too few", "exception": OSError("torn")}
    _, span = sent(answer, partition=-1)  # the client was to choose one
    assert "messaging.destination.partition.id" not in span.attributes
    assert span.attributes["error.type"] == "NOT_ENOUGH_REPLICAS"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "too few")
    assert [event.attributes["exception.message"] for event in span.events] == ["torn"]


def test_rocketmq_message_carries_the_trace_but_no_unique_key(tracing_with, spans):
    """RocketMQ refuses a message that has its own property among the user's."""
    hook = SendHook(tracing=tracing_with(), info=ClientInfo(system="rocketmq"))
    call = hook.before("orders", key=b"k", headers={"a": "1", "DELAY": "3"})
    assert _names(call) == ["a", "DELAY", "traceparent"]
    hook.after(call, partition=1, offset=2, offset_msg_id="0A00", msg_id="01AB", cluster_id="never")
    span = spans.take("send orders")
    attributes = span.attributes
    assert [name for name in attributes if ".kafka." in name] == []
    (bean,) = trace_context_of(span).beans
    assert (bean.msg_id, bean.offset_msg_id, bean.msg_type) == ("01AB", "0A00", MessageType.DELAY)
    assert attributes["messaging.rocketmq.namespace"] == ""
    assert attributes["messaging.rocketmq.message.delay_time_level"] == 3
    assert attributes["messaging.rocketmq.message.type"] == "delay"


def test_topic_of_an_enum_is_recorded_by_its_value(sent):
    _, span = sent({"partition": 0, "offset": 7}, topic=Enum("Topic", {"ORDERS": "orders"}, type=str).ORDERS)
    assert span.name == "send orders"
    assert span.attributes["mqtrace.offset_msg_id"] == "orders-0@7"
    assert type(span.attributes["messaging.destination.name"]) is str


def test_suppressed_send_or_message_is_not_recorded(tracing):
    with suppress_instrumentation():
        assert SendHook(tracing=tracing).before("orders") is None
        assert ConsumeHook(tracing=tracing).before([incoming()]) == []


def test_only_included_topics_are_traced(sender):
    hook = sender(topic_include=("orders*", "audit"), topic_exclude=("*.dlq",))
    assert [topic for topic in ("orders", "orders.dlq", "audit", "other") if hook.before(topic)] == ["orders", "audit"]


def test_send_to_the_trace_topic_is_warned_of_once(sender, caplog):
    hook = sender(trace_topic="ledger", topic_exclude=("audit",))
    with suppress_instrumentation():  # an exporter that writes there
        hook.before("ledger")
    hook.before("audit")
    assert caplog.records == []
    assert [hook.before("ledger"), hook.before("ledger")] == [None, None]
    (line,) = caplog.messages
    assert "sends to ledger, which is the trace topic" in line
    assert "MQTRACE_TRACE_TOPIC" in line


def test_message_in_flight_when_its_transaction_ends_has_one_id_on_both_spans(tracing_with, spans):
    tracing = tracing_with(propagation=False)
    hook, transaction = SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo())
    transaction.begin()
    call = hook.before("orders", transaction_id=transaction.transaction_id)
    transaction.joined(call)
    transaction.ended(TransactionState.ROLLBACK_MESSAGE, start_ns=transaction.now_ns())
    hook.after(call, error="_PURGE_QUEUE", partition=0, offset=5)
    end, send = (trace_context_of(spans.take()).beans[0] for _ in range(2))
    assert end.msg_id == send.msg_id
    assert len(send.msg_id) == 32
    assert (end.transaction_state, end.transaction_id) == (TransactionState.ROLLBACK_MESSAGE, send.transaction_id)


def test_produce_hook_may_add_attributes_and_rename(sender, spans):
    def name_it(span, call):
        span.update_name(f"publish {call.topic}")
        span.set_attribute("tenant", dict(call.headers)["tenant"].decode())

    hook = sender(collaborators={"produce_hook": name_it})
    hook.after(call := hook.before("orders", headers={"tenant": b"eu"}), partition=0, offset=1)
    span = spans.take("publish orders")
    assert span.attributes["tenant"] == "eu"
    assert trace_context_of(span).beans[0].msg_id == call.attributes["messaging.message.id"]


@pytest.mark.parametrize("failure", [ZeroDivisionError(), KafkaError(KafkaError._FAIL)], ids=repr)
def test_exception_of_a_hook_is_counted_and_logged_once(sent, tracing_with, spans, caplog, no_failures_yet, failure):
    def fail(*_):
        raise failure

    hooks = dict.fromkeys(("produce_hook", "consume_hook"), fail)
    consume = ConsumeHook(tracing=tracing_with(hooks))
    for call, _ in [sent(settings={"collaborators": hooks}) for _ in range(3)]:
        consume.after(*consume.before([incoming(*call.headers)]))
    assert [span.attributes["mqtrace.success"] for span in spans.take_all("process orders")] == [True] * 3
    assert guard.failures() == {"produce_hook": 3, "consume_hook": 3}
    assert [name in message for name, message in zip(guard.failures(), caplog.messages, strict=True)] == [True] * 2
