"""A push consumer of RocketMQ, and the native records of a send, a consume, a transaction and a recall."""

import base64
from queue import SimpleQueue

import pytest
import rocketmq
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from rocketmq import ConsumeResult

from otel_mqtrace import process
from otel_mqtrace.instrumentor import RocketMqInstrumentor
from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from otel_mqtrace.wire.native import decode_body
from tests.support.landings import landed_lines
from tests.support.rocketmq_proxy import STORE_HOST


class _Listener(rocketmq.MessageListener):
    def __init__(self, acts):
        self.acts = acts
        self.calls = SimpleQueue()

    def consume(self, message):
        self.calls.put((message.body, trace.get_current_span().get_span_context().span_id))
        return self.acts[message.body](message)


def _raise(message):
    raise ValueError(message.body)


def _set_failed(_message):
    process.failed()
    return ConsumeResult.SUCCESS


@process
def _handled_in_a_block(_message):
    return ConsumeResult.SUCCESS


@process
def _refused_after_a_block(_message):
    return ConsumeResult.FAILURE


@process
def _failed_in_a_block(_message):
    process.failed()
    return ConsumeResult.SUCCESS


ANSWERS = {
    b"success": (lambda _: ConsumeResult.SUCCESS, "SUCCESS"),
    b"failure": (lambda _: ConsumeResult.FAILURE, "FAILED"),
    b"raise": (_raise, "EXCEPTION"),
    b"nothing": (lambda _: None, "RETURNNULL"),
    b"set": (_set_failed, "FAILED"),
    b"block": (_handled_in_a_block, "SUCCESS"),
    b"failed block": (_failed_in_a_block, "FAILED"),
    b"refused block": (_refused_after_a_block, "FAILED"),
}
"""Body → what the listener does with it, and the outcome of its span."""
ACTS = {body: act for body, (act, _) in ANSWERS.items()}
OUTCOMES = {body: outcome for body, (_, outcome) in ANSWERS.items()}


@pytest.fixture
def listening(started, topic):
    def start(acts=ACTS):
        listener = _Listener(acts)
        consumer = started(rocketmq.PushConsumer, "billing", listener, {topic: rocketmq.FilterExpression()})
        return consumer, listener.calls

    return start


def _await_calls(calls, count):
    return [calls.get(timeout=20) for _ in range(count)]


def test_call_of_the_listener_has_a_span_with_its_outcome(producer, listening, spans, topic, message):
    sent = {producer.send(message(body)).message_id: body for body in OUTCOMES}
    parents = {span.attributes["messaging.message.id"]: span for span in spans.take_all(f"send {topic}")}
    consumer, calls = listening()
    span_ids = dict(_await_calls(calls, len(OUTCOMES)))
    consumer.shutdown()
    processed = {span.attributes["messaging.message.id"]: span for span in spans.take_all(f"process {topic}")}
    assert {sent[msg_id]: span.attributes["mqtrace.context_code"] for msg_id, span in processed.items()} == OUTCOMES
    for msg_id, span in processed.items():
        assert span.kind is SpanKind.CONSUMER
        assert span.parent.span_id == parents[msg_id].context.span_id
        assert span_ids[sent[msg_id]] == span.context.span_id, "the span is current in the listener"
        assert span.attributes["messaging.consumer.group.name"] == "billing"
        assert span.attributes["mqtrace.store_host"] == STORE_HOST
    (raised,) = (span for msg_id, span in processed.items() if sent[msg_id] == b"raise")
    assert (raised.attributes["error.type"], raised.status.status_code) == ("ValueError", StatusCode.ERROR)


def test_every_attempt_of_a_fifo_consumer_has_a_span(proxy, producer, listening, spans, topic, message):
    proxy.fifo = True
    answers = iter([ConsumeResult.FAILURE, ConsumeResult.FAILURE, ConsumeResult.SUCCESS])
    producer.send(message(b"retried", message_group="g"))
    consumer, calls = listening({b"retried": lambda _: next(answers)})
    _await_calls(calls, 3)
    consumer.shutdown()
    spans.take(f"send {topic}")
    tries = spans.take_all(f"process {topic}")
    assert [(span.attributes["mqtrace.retry_times"], span.attributes["mqtrace.context_code"]) for span in tries] == [
        (0, "FAILED"),
        (1, "FAILED"),
        (2, "SUCCESS"),
    ]
    assert {span.attributes["messaging.rocketmq.message.group"] for span in tries} == {"g"}


def test_settlement_by_the_client_is_recorded_if_configured(
    instrument, started, proxy, listening, spans, topic, message
):
    instrument(settle_spans=True)
    producer = started(rocketmq.Producer)
    for body in (b"success", b"failure"):
        producer.send(message(body))
    consumer, calls = listening()
    _await_calls(calls, 2)
    proxy.await_requests(proxy.acked)
    proxy.await_requests(proxy.postponed)
    consumer.shutdown()
    spans.take_all(f"send {topic}")
    processed = {span.attributes["mqtrace.context_code"]: span for span in spans.take_all(f"process {topic}")}
    for name, code in (("ack", "SUCCESS"), ("nack", "FAILED")):
        settled = spans.take(f"{name} {topic}")
        assert settled.parent.span_id == processed[code].context.span_id
        assert settled.attributes["messaging.operation.type"] == "settle"


def test_listener_after_uninstrument_is_not_traced(instrument, producer, listening, spans, topic, message):
    consumer, calls = listening()
    RocketMqInstrumentor().uninstrument()
    producer.send(message(b"success"))
    assert _await_calls(calls, 1) == [(b"success", 0)]
    consumer.shutdown()


def test_wrong_listener_and_missing_subscription_are_refused(producer, started):
    with pytest.raises(rocketmq.v5.exception.IllegalArgumentException):
        started(rocketmq.PushConsumer, "billing", None, {"orders": rocketmq.FilterExpression()})
    with pytest.raises(TypeError, match="subscription"):
        started(rocketmq.PushConsumer, "billing", _Listener(ACTS))


class _Commits(rocketmq.TransactionChecker):
    def check(self, message):
        return rocketmq.TransactionResolution.COMMIT


def _records(landing):
    bodies = [decode_body(base64.b64decode(line["body_base64"])) for line in landed_lines(landing)]
    assert [error for body in bodies for error in body.errors] == []
    contexts = [each for body in bodies for each in body.contexts]
    return {(each.beans[0].msg_id, each.trace_type): each for each in contexts}, len(contexts)


def test_message_has_the_records_of_a_native_client(instrument, started, consumer_of, spans, message, topic, tmp_path):
    provider = instrument(exporters=["mqtrace_native_file"], landing_dir=str(tmp_path), group_name="order-producers")
    producer = started(rocketmq.Producer, None, _Commits())
    sent = producer.send(message(tag="paid", keys="order-1"))
    consumer = consumer_of(topic)
    (received,) = consumer.receive(16, 30)
    consumer.ack(received)
    transaction = producer.begin_transaction()
    half = producer.send(message(), transaction)
    transaction.commit()
    delayed = producer.send(message(delivery_timestamp=1_800_000_000))
    producer.recall_message(topic, delayed.recall_handle)
    assert provider.force_flush()
    RocketMqInstrumentor().uninstrument()

    assert len(spans.take_all()) == 6, "one span is two records: that of the consume"
    records, count = _records(tmp_path)
    assert count == len(records) == 7
    before, after = records[sent.message_id, TraceType.SUB_BEFORE], records[sent.message_id, TraceType.SUB_AFTER]
    assert (before.group_name, before.beans[0].keys, before.beans[0].retry_times) == ("billing", "order-1", 0)
    assert (after.request_id, after.context_code) == (before.request_id, ContextCode.SUCCESS)
    assert records[sent.message_id, TraceType.PUB].group_name == "order-producers"
    end, half_sent = (records[half.message_id, kind].beans[0] for kind in (TraceType.END_TRANSACTION, TraceType.PUB))
    assert (end.transaction_id, end.transaction_state) == (half.transaction_id, TransactionState.COMMIT_MESSAGE)
    assert half_sent.msg_type is MessageType.TRANS_HALF
    assert records[delayed.message_id, TraceType.RECALL].success is True
