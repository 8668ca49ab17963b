"""RocketMQ consumers: a message from its receipt to its acknowledgement, the calls of a listener, the native records."""

import inspect
from queue import SimpleQueue
from threading import Event
from unittest.mock import Mock

import pytest
import rocketmq
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode
from rocketmq import ConsumeResult
from rocketmq.grpc_protocol import Code
from rocketmq.v5.exception import BadRequestException, ClientException

from otel_mqtrace import process
from otel_mqtrace.clients.rocketmq.client import ReceivedMessage
from otel_mqtrace.clients.rocketmq.consumer import consumer_state, received_messages
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import RocketMqInstrumentor
from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from tests.support.consuming import current_span_id, in_thread
from tests.support.landings import landed_bodies, records_of
from tests.support.rocketmq_proxy import QUEUE_ID, STORE_HOST, STORE_SECONDS


def _code(span):
    return span.attributes["mqtrace.context_code"]


@pytest.fixture
def receiving(instrument, started, consumer_of, message, topic, spans):
    """Trace with options, send bodies and receive up to ``count``; return the consumer, the messages, the send spans."""

    def receive(*bodies, count=16, **options):
        instrument(**options)
        producer = started(rocketmq.Producer)
        for body in bodies:
            producer.send(message(body, tag="paid", keys="order-1"))
        consumer = consumer_of(topic)
        received = consumer.receive(count, 30) if count else []
        return consumer, received, spans.take_all(f"send {topic}")

    return receive


def test_message_is_processed_from_receive_to_ack(receiving, spans, topic, proxy, clock):
    consumer, (message,), (sent,) = receiving(b"hello")
    clock.advance(ms=40)
    consumer.ack(message)
    assert proxy.acked == [message.message_id]
    span = spans.take(f"process {topic}")
    attributes = dict(span.attributes)
    assert attributes.pop("mqtrace.client_host").count(".") == 3
    assert len(attributes.pop("mqtrace.request_id")) == 32
    assert attributes == {
        **proxy.attributes_of_paid_order("process"),
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(QUEUE_ID),
        "messaging.client.id": consumer.client_id,
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": sent.attributes["messaging.message.id"],
        "messaging.rocketmq.namespace": "",
        "messaging.rocketmq.consumption_model": "clustering",
        "mqtrace.trace_type": "Sub",
        "mqtrace.group_name": "billing",
        "mqtrace.retry_times": 0,
        "mqtrace.store_host": STORE_HOST,
        "mqtrace.store_time": STORE_SECONDS * 1000,
        "mqtrace.cost_time": 40,
        "mqtrace.context_code": "SUCCESS",
    }
    assert span.kind is SpanKind.CONSUMER
    assert (span.context.trace_id, span.parent.span_id) == (sent.context.trace_id, sent.context.span_id)
    assert [link.context.span_id for link in span.links] == [sent.context.span_id]


@pytest.mark.parametrize(("waited_ms", "cost_ms"), [(31_000, 30_000), (0, 0)], ids=["after its time", "early"])
def test_message_delivered_again_ends_its_open_span_and_counts(
    receiving, spans, topic, proxy, clock, waited_ms, cost_ms
):
    """The broker's clock decides: ours may say that there is time left."""
    consumer, *_ = receiving(b"hello")
    clock.advance(ms=waited_ms)
    proxy.redeliver(topic)
    (again,) = consumer.receive(16, 30)
    assert again.delivery_attempt == 2
    names = ("mqtrace.retry_times", "mqtrace.cost_time", "mqtrace.context_code")
    first = spans.take(f"process {topic}")
    consumer.ack(again)
    second = spans.take(f"process {topic}")
    assert [first.attributes[name] for name in names] == [0, cost_ms, "RETURNNULL"]
    assert [second.attributes[name] for name in names] == [1, 0, "SUCCESS"]
    assert "messaging.destination.partition.id" not in second.attributes


def test_messages_of_a_receive_are_current_in_turn(receiving, spans, topic, tracer):
    consumer, messages, _ = receiving(b"1", b"2", b"3")
    for message in messages:
        with tracer.start_as_current_span(f"bill {message.body.decode()}"):
            pass
        consumer.ack(message)
    assert current_span_id() == 0
    bills = [spans.take(f"bill {number}") for number in (1, 2, 3)]
    processed = spans.take_all(f"process {topic}")
    assert [bill.parent.span_id for bill in bills] == [span.context.span_id for span in processed]


def test_message_without_an_ack_is_skipped_by_the_next_ack(receiving, spans, topic):
    consumer, (first, _, third), _ = receiving(b"1", b"2", b"3")
    consumer.ack(first)
    consumer.ack(third)
    assert current_span_id() == 0
    consumer.shutdown()
    assert [_code(span) for span in spans.take_all(f"process {topic}")] == ["SUCCESS", "SUCCESS", "RETURNNULL"]


@pytest.mark.parametrize(("method", "nothing"), [("ack", None), ("ack", 5), ("send", None)])
def test_what_is_no_message_raises_the_same_error_as_without_tracing(
    producer, consumer_of, spans, topic, method, nothing
):
    client, errors = producer if method == "send" else consumer_of(topic), []
    for call in (getattr(type(client), method), inspect.unwrap(getattr(type(client), method))):
        with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever the client raises
            call(client, nothing)
        errors.append(repr(raised.value))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("received_again", [False, True])
def test_ack_of_another_thread_ends_the_span(receiving, spans, topic, clock, received_again):
    consumer, (message,), _ = receiving(b"hello")
    clock.advance(ms=29_000)
    if received_again:
        assert consumer.receive(16, 30) == []
    assert (current_span_id() == 0) is received_again
    spans.assert_empty()
    in_thread(consumer.ack, message)
    assert current_span_id() == 0
    span = spans.take(f"process {topic}")
    assert (_code(span), span.attributes["mqtrace.cost_time"]) == ("SUCCESS", 29_000)


def test_threads_that_share_a_consumer_have_their_own_messages(receiving, spans, topic):
    consumer, (mine,), _ = receiving(b"1", b"2", count=1)
    here = trace.get_current_span()

    def work():
        (theirs,) = consumer.receive(1, 30)
        current = current_span_id()
        consumer.ack(theirs)
        return current, current_span_id()

    there = in_thread(work)
    assert trace.get_current_span() is here
    consumer.ack(mine)
    first, second = spans.take_all(f"process {topic}")
    assert there == (first.context.span_id, 0)
    assert second.context.span_id == here.get_span_context().span_id


def test_message_with_more_time_stays_open_and_one_postponed_without_an_ack_has_failed(receiving, spans, topic, clock):
    consumer, (longer, postponed), _ = receiving(b"1", b"2")
    clock.advance(ms=20_000)
    consumer.change_invisible_duration(longer, 60)
    consumer.change_invisible_duration_async(postponed, 10)
    clock.advance(ms=59_000)
    consumer.receive(16, 30)
    names = ("mqtrace.context_code", "error.type", "mqtrace.cost_time")
    failed = spans.take(f"process {topic}")
    assert [failed.attributes[name] for name in names] == ["FAILED", "FAILED", 20_000]
    consumer.ack(longer)
    assert _code(spans.take(f"process {topic}")) == "SUCCESS"


def test_refused_ack_fails_the_settlement_only(receiving, spans, proxy, topic):
    consumer, (message,), (sent,) = receiving(b"x", settle_spans=True)
    proxy.redeliver(topic)
    with pytest.raises(BadRequestException):
        consumer.ack(message)
    processed, settled = spans.take(f"process {topic}"), spans.take(f"ack {topic}")
    assert _code(processed) == "SUCCESS"
    assert settled.attributes["error.type"] == "INVALID_RECEIPT_HANDLE"
    assert settled.attributes["messaging.operation.type"] == "settle"
    assert settled.parent.span_id == processed.context.span_id
    assert [link.context.span_id for link in settled.links] == [sent.context.span_id]


def test_settlement_is_a_child_of_its_message(receiving, spans, topic):
    consumer, (first, second), _ = receiving(b"1", b"2", settle_spans=True)
    consumer.change_invisible_duration(second, 30)
    consumer.ack_async(second)
    consumer.ack(first)
    processed = {span.attributes["messaging.message.id"]: span for span in spans.take_all(f"process {topic}")}
    for settled in [*spans.take_all(f"ack {topic}"), spans.take(f"change_invisible_duration {topic}")]:
        assert settled.parent.span_id == processed[settled.attributes["messaging.message.id"]].context.span_id


@pytest.mark.parametrize("process_spans", ["auto", "explicit"])
def test_settlement_after_a_block_is_a_child_of_its_message(receiving, spans, topic, process_spans):
    consumer, (message,), _ = receiving(b"x", process_spans=process_spans, settle_spans=True)
    with process(message):
        pass
    consumer.ack(message)
    assert spans.take(f"ack {topic}").parent.span_id == spans.take(f"process {topic}").context.span_id


def test_receive_has_a_span_if_configured(receiving, spans, topic, proxy):
    consumer, _, sent = receiving(b"1", b"2", receive_spans=True)
    received = spans.take(f"poll {topic}")
    assert [link.context.span_id for link in received.links] == [span.context.span_id for span in sent]
    proxy.refuse_receives.append(Code.TOO_MANY_REQUESTS)
    with pytest.raises(ClientException):
        consumer.receive(16, 30)
    assert spans.take("poll").attributes["error.type"] == "TOO_MANY_REQUESTS"
    consumer.shutdown()
    assert len(spans.take_all(f"process {topic}")) == 2


def test_asynchronous_receive_makes_its_message_current_nowhere(receiving, spans, topic):
    consumer, *_ = receiving(b"hello", count=0)
    (message,) = consumer.receive_async(16, 30).result(10)
    assert current_span_id() == 0
    consumer.ack_async(message)
    assert _code(spans.take(f"process {topic}")) == "SUCCESS"


def test_exception_of_a_block_is_the_outcome_of_its_message(receiving, spans, topic):
    consumer, (message,), _ = receiving(b"hello")
    with pytest.raises(ValueError, match="no such order"), process(message):  # noqa: PT012 - the shape of a handler
        consumer.ack(message)
        raise ValueError("no such order")
    assert _code(spans.take(f"process {topic}")) == "EXCEPTION"


def test_message_acknowledged_before_its_block_has_one_span(receiving, spans, topic):
    consumer, (first,), _ = receiving(b"1", b"2", count=1)
    (second,) = consumer.receive(1, 30)
    consumer.ack(first)
    with process(first):
        pass
    assert _code(spans.take(f"process {topic}")) == "SUCCESS"
    consumer.ack(second)
    spans.take(f"process {topic}")


def test_message_received_in_a_block_that_is_over_restores_no_ended_span(receiving, spans, topic):
    consumer, (first,), _ = receiving(b"1", b"2", b"3", count=1)
    with process(first):
        others = consumer.receive(2, 30)
    for message in others:
        consumer.ack(message)
    assert current_span_id() == 0
    assert len(spans.take_all(f"process {topic}")) == 3


def test_explicit_mode_has_a_span_in_the_block_only_and_counts_a_message_without_one(
    receiving, spans, topic, unhandled
):
    consumer, (early, first, second), _ = receiving(b"0", b"1", b"2", process_spans="explicit")
    assert current_span_id() == 0
    consumer.ack(early)
    spans.assert_empty()
    with process(early):
        pass
    assert spans.take(f"process {topic}").attributes["mqtrace.group_name"] == "billing"
    with process(first):
        consumer.ack(first)
    consumer.ack(second)
    assert unhandled() == {}
    RocketMqInstrumentor().uninstrument()
    assert (len(spans.take_all(f"process {topic}")), unhandled()) == (1, {"handed_over_unhandled": 1})


def test_awaited_blocks_are_limited_and_left_to_the_parent_after_a_fork(unhandled):
    for _ in range(10_001):
        received_messages.await_block(ReceivedMessage())
    assert unhandled() == {"handed_over_unhandled": 1}
    received_messages.after_fork()
    received_messages.clear()
    assert unhandled() == {"handed_over_unhandled": 1}


def test_shutdown_by_an_exception_sets_the_outcome_of_the_current_message(receiving, spans, topic):
    consumer, *_ = receiving(b"1", b"2")
    with pytest.raises(ValueError, match="no such order"):  # noqa: PT012 - the shape of an application
        try:
            raise ValueError("no such order")
        finally:
            consumer.shutdown()
    assert [_code(span) for span in spans.take_all(f"process {topic}")] == ["EXCEPTION", "RETURNNULL"]


def test_uninstrument_ends_the_open_message_also_while_an_exception_is_handled(receiving, spans, topic):
    consumer, (message,), _ = receiving(b"hello")
    try:
        int("x")
    except ValueError:
        RocketMqInstrumentor().uninstrument()
    assert current_span_id() == 0
    assert _code(spans.take(f"process {topic}")) == "RETURNNULL"
    consumer.ack(message)


def test_message_of_a_collected_consumer_ends(receiving, topic, spans, clock):
    consumer, (message,), _ = receiving(b"x")
    clock.advance(ms=5)
    consumer_state(consumer).abandon()  # what the collector calls
    clock.advance(ms=500)
    spans.assert_empty()
    assert current_span_id() == 0
    drain_deferred_ends()
    span = spans.take(f"process {topic}")
    assert (_code(span), span.end_time - span.start_time) == ("RETURNNULL", 5_000_000)
    assert message.body == b"x"


class _Listener(rocketmq.MessageListener):
    def __init__(self, acts):
        self.acts = acts
        self.calls = SimpleQueue()

    def consume(self, message):
        self.calls.put((message.body, trace.get_current_span().get_span_context().span_id))
        return self.acts[message.body](message)


def _set_failed(_message):
    process.failed()
    return ConsumeResult.SUCCESS


ANSWERS = {
    b"success": (lambda _: ConsumeResult.SUCCESS, "SUCCESS"),
    b"failure": (lambda _: ConsumeResult.FAILURE, "FAILED"),
    b"raise": (Mock(side_effect=ValueError), "EXCEPTION"),
    b"nothing": (lambda _: None, "RETURNNULL"),
    b"set": (_set_failed, "FAILED"),
    b"block": (process(lambda _: ConsumeResult.SUCCESS), "SUCCESS"),
    b"failed block": (process(_set_failed), "FAILED"),
    b"refused block": (process(lambda _: ConsumeResult.FAILURE), "FAILED"),
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
    outcomes = [(span.attributes["mqtrace.retry_times"], span.attributes["mqtrace.context_code"]) for span in tries]
    assert outcomes == [(0, "FAILED"), (1, "FAILED"), (2, "SUCCESS")]
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


def test_call_of_the_listener_at_uninstrument_ends_there_and_later_ones_are_not_traced(
    producer, listening, spans, topic, message
):
    switched_off = Event()

    def switch_off(_message):
        RocketMqInstrumentor().uninstrument()
        switched_off.set()
        return ConsumeResult.SUCCESS

    producer.send(message(b"off"))
    consumer, calls = listening({**ACTS, b"off": switch_off})
    _await_calls(calls, 1)
    assert switched_off.wait(20)
    producer.send(message(b"success"))
    assert _await_calls(calls, 1) == [(b"success", 0)]
    consumer.shutdown()
    spans.take(f"send {topic}")
    assert _code(spans.take(f"process {topic}")) == "RETURNNULL"


def test_receive_that_waits_while_tracing_is_switched_off_opens_no_span(
    instrument, producer, started, spans, topic, message
):
    subscription = {topic: rocketmq.FilterExpression()}
    consumer = started(rocketmq.SimpleConsumer, "billing", subscription, await_duration=10)
    waiting = consumer.receive_async(1, 30)
    RocketMqInstrumentor().uninstrument()
    producer.send(message(b"late"))
    assert [each.body for each in waiting.result(10)] == [b"late"]
    instrument()
    consumer.shutdown()  # would end it
    spans.assert_empty()


def test_wrong_listener_and_missing_subscription_are_refused(producer, started):
    with pytest.raises(rocketmq.v5.exception.IllegalArgumentException):
        started(rocketmq.PushConsumer, "billing", None, {"orders": rocketmq.FilterExpression()})
    with pytest.raises(TypeError, match="subscription"):
        started(rocketmq.PushConsumer, "billing", _Listener(ACTS))


def test_message_has_the_records_of_a_native_client(instrument, started, consumer_of, spans, message, topic, tmp_path):
    provider = instrument(exporters=["mqtrace_native_file"], landing_dir=str(tmp_path), group_name="order-producers")
    producer = started(rocketmq.Producer, None, Mock(rocketmq.TransactionChecker))
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
    landed = records_of(landed_bodies(tmp_path))
    records = {(each.beans[0].msg_id, each.trace_type): each for each in landed}
    assert len(landed) == len(records) == 7
    before, after = records[sent.message_id, TraceType.SUB_BEFORE], records[sent.message_id, TraceType.SUB_AFTER]
    assert (before.group_name, before.beans[0].keys, before.beans[0].retry_times) == ("billing", "order-1", 0)
    assert (after.request_id, after.context_code) == (before.request_id, ContextCode.SUCCESS)
    assert records[sent.message_id, TraceType.PUB].group_name == "order-producers"
    end, half_sent = (records[half.message_id, kind].beans[0] for kind in (TraceType.END_TRANSACTION, TraceType.PUB))
    assert (end.transaction_id, end.transaction_state) == (half.transaction_id, TransactionState.COMMIT_MESSAGE)
    assert half_sent.msg_type is MessageType.TRANS_HALF
    assert records[delayed.message_id, TraceType.RECALL].success is True
