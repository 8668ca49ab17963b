"""OTEL_SEMCONV_STABILITY_OPT_IN: the names of today, the ones of yesterday, or both; the native record is the same."""

import pytest
from hypothesis import given, settings
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanContext, SpanKind

from otel_mqtrace import ConsumeHook, SendHook, semconv
from otel_mqtrace.hooks.attributes import OPT_IN, LegacyNames
from otel_mqtrace.hooks.consume import IncomingMessage
from otel_mqtrace.hooks.tracing import Tracing
from otel_mqtrace.model import TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, Operation, cost_ms, trace_context_of
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.wire.native import encode_context
from tests.support.native_spans import span_attributes
from tests.support.strategies import sayable

_NEW = {
    "messaging.destination.name",
    "messaging.destination.partition.id",
    "messaging.operation.name",
    "messaging.operation.type",
    "messaging.client.id",
    "messaging.consumer.group.name",
    "messaging.kafka.offset",
}
_OLD_SEND = {
    "messaging.destination": "orders",
    "messaging.destination_kind": "queue",
    "messaging.kafka.partition": 2,
    "messaging.operation": "publish",
    "messaging.client_id": "shop",
    "messaging.kafka.message.offset": 7,
}
_OLD_PROCESS = {
    **_OLD_SEND,
    "messaging.operation": "process",
    "messaging.kafka.consumer.group": "billing",
}


@pytest.fixture
def opt_in(monkeypatch):
    return lambda text: monkeypatch.setenv(OPT_IN, text)


def _send(tracing, system="kafka"):
    hook = SendHook(tracing=tracing, system=system, client_id="shop", servers="broker:9092")
    hook.after(hook.before("orders", body=b"x", headers={"KEYS": b"a b"}), partition=2, offset=7)


def _process(tracing, *messages, system="kafka"):
    hook = ConsumeHook(tracing=tracing, system=system, client_id="shop", group_name="billing")
    for call in hook.before(messages, batch=len(messages) > 1):
        hook.after(call)


def _of_message(offset, partition=2):
    return IncomingMessage(topic="orders", partition=partition, offset=offset, body_length=1)


@pytest.mark.parametrize("asked", ["", "http", "messaging", " messaging , http/dup", "MESSAGING"])
def test_current_names_are_written_by_default(opt_in, tracing_with, exporter, asked):
    opt_in(asked)
    tracing = tracing_with()
    assert tracing.naming is None
    _send(tracing)
    span = exporter.take("send orders")
    assert span.attributes["messaging.destination.name"] == "orders"
    assert _OLD_SEND.keys().isdisjoint(span.attributes)


@pytest.mark.parametrize(
    ("asked", "both"),
    [
        *((asked, False) for asked in ("messaging/legacy", "http/dup, Messaging/Legacy", "messaging,messaging/legacy")),
        *((asked, True) for asked in ("messaging/dup", "messaging/legacy,messaging/dup", "messaging , messaging/dup")),
    ],
)
def test_legacy_writes_the_old_names_alone_and_dup_writes_both(opt_in, tracing_with, exporter, asked, both):
    opt_in(asked)
    tracing = tracing_with()
    assert SendHook(tracing=tracing).record("orders", b"x", None, None, None) is None
    assert ConsumeHook(tracing=tracing).record("orders", (2, 7, None, 1, None), (), None) is None
    _send(tracing)
    _process(tracing, _of_message(7))
    send, process = (exporter.take(f"{verb} orders" if both else f"orders {verb}") for verb in ("send", "process"))
    assert {name: send.attributes.get(name) for name in _OLD_SEND} == _OLD_SEND
    assert {name: process.attributes.get(name) for name in _OLD_PROCESS} == _OLD_PROCESS
    assert _NEW & {*send.attributes, *process.attributes} == (_NEW if both else set())
    assert (send.attributes["mqtrace.trace_type"], process.attributes["mqtrace.trace_type"]) == ("Pub", "Sub")
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)


def test_links_of_a_batch_have_the_old_names(opt_in, tracing_with, exporter):
    opt_in("messaging/legacy")
    _process(tracing_with(), _of_message(7), _of_message(8, partition=3))
    span = exporter.take("orders process")
    assert [link.attributes["messaging.kafka.partition"] for link in span.links] == [2, 3]
    assert [link.attributes["messaging.kafka.message.offset"] for link in span.links] == [7, 8]
    assert all(_NEW.isdisjoint(link.attributes) for link in span.links)
    assert [bean.offset_msg_id for bean in trace_context_of(span).beans] == ["orders-2@7", "orders-3@8"]


def test_group_of_rocketmq_has_its_own_old_name(opt_in, tracing_with, exporter):
    opt_in("messaging/legacy")
    _process(tracing_with(), _of_message(7), system="rocketmq")
    attributes = exporter.take("orders process").attributes
    assert attributes["messaging.rocketmq.client_group"] == "billing"
    assert "messaging.kafka.consumer.group" not in attributes


@pytest.mark.parametrize(
    ("operation", "topic", "name"),
    [
        (Operation(None, "poll", "receive", SpanKind.CLIENT), "orders", "orders receive"),
        (Operation(None, "poll", "receive", SpanKind.CLIENT), None, "receive"),
        (Operation(None, "commit", "settle", SpanKind.CLIENT), "orders", "orders commit"),
        (OPERATIONS[TraceType.END_TRANSACTION], "orders", "orders end_transaction"),
    ],
)
def test_old_span_names_begin_with_the_topic(operation, topic, name):
    assert LegacyNames(both=False).span_name(operation, topic) == name


@pytest.mark.parametrize("both", [True, False])
def test_partition_other_than_a_number_stays_text(both):
    attributes = {semconv.MESSAGING_DESTINATION_PARTITION_ID: "eu-1"}
    assert LegacyNames(both=both).attributes(attributes)["messaging.kafka.partition"] == "eu-1"
    assert attributes == {semconv.MESSAGING_DESTINATION_PARTITION_ID: "eu-1"}


_CREATION = SpanContext(1, 2, is_remote=True)


def _attributes_under(trace_ctx: TraceContext, naming: LegacyNames | None):
    """Say a context as a span, through the door every span of ours goes through."""
    exporter = RecordingExporter()
    tracing = Tracing(tracer=recording_provider(exporter).get_tracer("t"), naming=naming)
    split = span_attributes(trace_ctx)
    end_ns = 1_790_000_000_000_000_000
    span = tracing.start_span(
        OPERATIONS[trace_ctx.trace_type],
        trace_ctx.beans[0].topic,
        context=Context(),
        attributes=split.span,
        links=[Link(_CREATION, own) for own in split.links],
        start_ns=end_ns - 5_000_000,
    )
    if trace_ctx.trace_type is TraceType.SUB_BEFORE:
        return span
    tracing.set_attributes(span, {semconv.MQTRACE_COST_TIME: trace_ctx.cost_ms or cost_ms(0, 5_000_000)})
    span.end(end_ns)
    return exporter.take()


@given(sayable())
@settings(max_examples=50)
def test_native_record_is_the_same_under_all_names(drawn):
    trace_ctx, dialect, _ = drawn
    read = [
        trace_context_of(_attributes_under(trace_ctx, naming))
        for naming in (None, LegacyNames(both=True), LegacyNames(both=False))
    ]
    assert read[0] is not None
    assert read[1] == read[0]
    assert read[2] == read[0]
    assert len({encode_context(each, dialect=dialect).body for each in read}) == 1


def test_operation_type_settle_has_no_old_name():
    """``settle`` came later: its verb stands in the name of the span only."""
    attributes = {"messaging.operation.type": "settle", "messaging.operation.name": "commit"}
    assert LegacyNames(both=False).attributes(attributes) == {}
    assert LegacyNames(both=True).attributes(attributes) == attributes
