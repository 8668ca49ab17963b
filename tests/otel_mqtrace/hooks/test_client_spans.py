"""Polls, settlements, transactions and recalls: what is recorded around the messages themselves."""

from contextlib import nullcontext

import pytest
from opentelemetry.context import get_current
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanContext, SpanKind, StatusCode, TraceFlags

from otel_mqtrace import ConsumeHook, SendHook
from otel_mqtrace.exporters.packing import has_record
from otel_mqtrace.hooks.settle import RecallHook, SettledOffset, SettleHook, TransactionHook
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.model import TraceType, TransactionState
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.mailbox import SENDER, TRACEPARENT, incoming


@pytest.fixture
def hook_with(tracing_with):
    return lambda **options: ConsumeHook(tracing=tracing_with(**options), group_name="billing", servers="broker:9092")


def _messages(count, *, topic="orders"):
    return [incoming(TRACEPARENT, topic=topic, offset=n, key=b"k", body_length=3) for n in range(count)]


def _polled(hook, clock, messages, *, batch=False):
    start_ns = hook.now_ns()
    clock.advance(ms=70)
    hook.received(messages, start_ns=start_ns, batch=batch)
    return start_ns


@pytest.mark.parametrize(
    ("settings", "around"),
    [
        ({}, nullcontext),
        ({"receive_spans": True, "empty_poll_spans": True, "settle_spans": True}, suppress_instrumentation),
    ],
    ids=["by default", "suppressed"],
)
def test_poll_and_settlement_have_no_span(tracing_with, clock, settings, around):
    tracing = tracing_with(**settings)
    hook, settle = ConsumeHook(tracing=tracing), SettleHook(tracing=tracing)
    with around():
        _polled(hook, clock, _messages(1))
        hook.empty(start_ns=hook.now_ns())
        hook.poll_failed(start_ns=hook.now_ns(), error="_ALL_BROKERS_DOWN")
        assert settle.before("commit") is None
    settle.after(None, [SettledOffset("orders", 0, 1)])


def test_poll_span_has_the_times_of_the_poll(hook_with, spans, clock):
    start_ns = _polled(hook_with(receive_spans=True), clock, _messages(1))
    span = spans.take("poll orders")
    assert (span.start_time, span.end_time) == (start_ns, start_ns + 70_000_000)
    assert (span.kind, span.parent, trace_context_of(span)) == (SpanKind.CLIENT, None, None)
    assert span.attributes["messaging.operation.name"] == "poll"
    assert span.attributes["messaging.operation.type"] == "receive"
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert [link.context.span_id for link in span.links] == [SENDER]


@pytest.mark.parametrize("count", [1, 3, 300])
def test_call_for_several_messages_puts_own_attributes_on_links(hook_with, spans, clock, count):
    _polled(hook_with(receive_spans=True), clock, _messages(count), batch=True)
    span = spans.take("poll orders")
    assert span.attributes["messaging.batch.message_count"] == count
    assert span.attributes["messaging.destination.partition.id"] == "0"
    assert not {"messaging.kafka.offset", "messaging.kafka.message.key"} & set(span.attributes)
    assert [link.attributes["messaging.kafka.offset"] for link in span.links] == list(range(min(count, 128)))
    assert {link.attributes["messaging.kafka.message.key"] for link in span.links} == {"k"}


def test_poll_of_several_topics_has_no_destination(hook_with, spans, clock):
    _polled(hook_with(receive_spans=True), clock, [*_messages(1), *_messages(1, topic="bills")], batch=True)
    span = spans.take("poll")
    assert "messaging.destination.name" not in span.attributes
    assert [link.attributes["messaging.destination.name"] for link in span.links] == ["orders", "bills"]


@pytest.mark.parametrize(
    ("failure", "error_type", "description"),
    [
        ({"error": "_ALL_BROKERS_DOWN", "description": "2/2 are down"}, "_ALL_BROKERS_DOWN", "2/2 are down"),
        ({"exception": RuntimeError("Consumer closed")}, "RuntimeError", None),
        ({}, "_OTHER", None),
    ],
    ids=["error", "exception", "unknown"],
)
def test_failed_poll_has_a_span_with_its_error_type(hook_with, spans, failure, error_type, description):
    hook = hook_with(receive_spans=True)
    hook.poll_failed(start_ns=hook.now_ns(), **failure)
    span = spans.take("poll")
    assert span.attributes["error.type"] == error_type
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, description)


def test_poll_of_excluded_topics_has_no_span(hook_with, spans, clock):
    hook = hook_with(receive_spans=True, topic_exclude=("audit",))
    _polled(hook, clock, _messages(2, topic="audit"), batch=True)
    _polled(hook, clock, [*_messages(2, topic="audit"), *_messages(1)], batch=True)
    assert spans.take("poll orders").attributes["messaging.batch.message_count"] == 1


CREATED = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1))
CREATED_TOO = SpanContext(1, 3, is_remote=True, trace_flags=TraceFlags(1))


@pytest.fixture
def hook(tracing_with):
    return SettleHook(tracing=tracing_with(settle_spans=True), group_name="billing", servers="broker:9092")


@pytest.mark.parametrize("operation", ["commit", "store", "ack", "release", "reject"])
def test_settlement_is_a_client_span_named_as_the_client_does(hook, spans, clock, operation):
    call = hook.before(operation)
    clock.advance(ms=4)
    hook.after(call, [SettledOffset("orders", 3, 42, CREATED)])
    span = spans.take(f"{operation} orders")
    assert (span.kind, span.end_time - span.start_time, trace_context_of(span)) == (SpanKind.CLIENT, 4_000_000, None)
    assert not has_record(span)
    settlement = {"operation.name": operation, "operation.type": "settle", "consumer.group.name": "billing"}
    place = {"destination.name": "orders", "destination.partition.id": "3", "kafka.offset": 42}
    expected = {f"messaging.{name}": value for name, value in {**settlement, **place}.items()}
    assert {**expected, "server.address": "broker", "server.port": 9092}.items() <= dict(span.attributes).items()
    assert [link.context for link in span.links] == [CREATED]


def test_offsets_of_several_partitions_are_on_as_many_links_as_a_span_may_have(hook, spans):
    created = [SettledOffset("orders", partition, 5, each) for partition, each in enumerate((CREATED, CREATED_TOO))]
    hook.after(hook.before(), [*created, SettledOffset("orders", 2, 9)])
    span = spans.take("commit orders")
    assert "messaging.destination.partition.id" not in span.attributes
    assert "messaging.kafka.offset" not in span.attributes
    assert [(link.context, dict(link.attributes)) for link in span.links] == [
        (CREATED, {"messaging.destination.partition.id": "0", "messaging.kafka.offset": 5}),
        (CREATED_TOO, {"messaging.destination.partition.id": "1", "messaging.kafka.offset": 5}),
    ]
    hook.after(hook.before(), [SettledOffset("orders", n, 1, CREATED) for n in range(200)])
    assert len(spans.take("commit orders").links) == 128


def test_settlement_of_several_topics_has_no_destination(hook, spans):
    hook.after(hook.before(), [SettledOffset("orders", 0, 5, CREATED), SettledOffset("bills", 0, 5, CREATED_TOO)])
    span = spans.take("commit")
    assert "messaging.destination.name" not in span.attributes
    assert [link.attributes["messaging.destination.name"] for link in span.links] == ["orders", "bills"]
    hook.after(hook.before())
    assert "messaging.destination.name" not in spans.take("commit").attributes


def test_message_settled_by_its_id_has_that_id(tracing_with, spans):
    info = ClientInfo(system="rocketmq", group_name="billing", namespace="shop")
    hook = SettleHook(tracing=tracing_with(settle_spans=True), info=info)
    hook.after(hook.before("ack"), [SettledOffset("orders", 1, 7, CREATED, msg_id="AC11")])
    attributes = spans.take("ack orders").attributes
    assert attributes["messaging.message.id"] == "AC11"
    assert attributes["messaging.system"] == "rocketmq"
    assert attributes["messaging.rocketmq.namespace"] == "shop"
    assert not [name for name in attributes if name.startswith("messaging.kafka")]


def test_failed_settlement_has_its_error_type_and_ends_once(hook, spans):
    call = hook.before()
    hook.after(call, [SettledOffset("orders", 0, 5)], error="ILLEGAL_GENERATION", description="rebalanced")
    hook.after(call)
    span = spans.take("commit orders")
    assert span.attributes["error.type"] == "ILLEGAL_GENERATION"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "rebalanced")
    hook.after(hook.before(), exception=ConnectionError("gone"))
    span = spans.take("commit")
    assert span.attributes["error.type"] == "ConnectionError"
    assert [event.name for event in span.events] == ["exception"]


def test_offsets_of_excluded_topics_are_left_out(tracing_with, spans):
    hook = SettleHook(tracing=tracing_with(settle_spans=True, topic_exclude=("audit*",)))
    hook.after(hook.before(), [SettledOffset("audit-1", 0, 1), SettledOffset("orders", 0, 2)])
    assert spans.take("commit orders").attributes["messaging.kafka.offset"] == 2
    hook.after(hook.before(), [SettledOffset("audit-1", 0, 1)])


@pytest.mark.parametrize(
    ("steps", "has_end"),
    [("begin send end join", True), ("begin send end begin join end", False), ("send begin join end", False)],
    ids=["after its commit", "of the transaction before", "outside"],
)
def test_send_that_joins_a_transaction_has_its_end_if_it_was_sent_in_it(tracing, spans, steps, has_end):
    hook, transaction = SendHook(tracing=tracing), TransactionHook(tracing, ClientInfo())
    for step in steps.split():
        if step == "begin":
            transaction.begin()
        elif step == "send":
            call = hook.before("orders", transaction_id=transaction.transaction_id)
            hook.after(call, partition=0, offset=1)
        elif step == "join":
            transaction.joined(call)
        else:
            transaction.ended(TransactionState.COMMIT_MESSAGE, start_ns=0)
    sent = spans.take("send orders").context.span_id
    ends = spans.take_all("end_transaction orders")
    assert [end.links[0].context.span_id for end in ends] == [sent] * has_end


@pytest.mark.parametrize(
    ("answer", "error", "success"),
    [({"msg_id": "0102"}, None, True), ({"exception": ValueError("too late")}, "ValueError", False)],
    ids=["recalled", "failed"],
)
def test_recall_has_a_record_of_its_own(tracing_with, spans, clock, answer, error, success):
    hook = RecallHook(tracing=tracing_with(), info=ClientInfo(system="rocketmq", group_name="reminders-producer"))
    start_ns = clock.wall_ns()
    clock.advance(ms=7)
    hook.recalled("reminders", start_ns=start_ns, current_ctx=get_current(), **answer)
    span = spans.take("recall reminders")
    record = trace_context_of(span)
    assert (record.trace_type, record.success, record.cost_ms) == (TraceType.RECALL, success, 7)
    assert (record.group_name, record.beans[0].topic) == ("reminders-producer", "reminders")
    assert (record.beans[0].msg_id, span.attributes.get("error.type")) == (answer.get("msg_id"), error)
    assert span.kind is SpanKind.CLIENT
