"""What a traced RocketMQ producer records of sends, recalls and transactions, and what it leaves exactly as it was."""

import gc
import threading
import weakref
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import rocketmq
from opentelemetry import baggage, context, trace
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.trace import SpanKind, StatusCode
from rocketmq import TransactionResolution
from rocketmq.grpc_protocol import Code
from rocketmq.v5 import exception

from otel_mqtrace.instrumentor import RocketMqInstrumentor
from otel_mqtrace.model import TraceType
from otel_mqtrace.spans.mapping import trace_context_of


def _traceparent(span):
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


def test_sent_message_has_every_field_of_the_table(instrument, started, proxy, spans, message, clock):
    instrument()
    producer = started(rocketmq.Producer, namespace="team")
    receipt = producer.send(message(tag="paid", keys="order-1"))
    assert proxy.sent[0].topic.resource_namespace == "team"
    span = spans.take()
    attributes = dict(span.attributes)
    assert attributes.pop("mqtrace.client_host").count(".") == 3
    assert len(attributes.pop("mqtrace.request_id")) == 32
    assert (span.name, span.kind) == (f"send {receipt.message_queue.topic}", SpanKind.PRODUCER)
    assert attributes == {
        **proxy.attributes_of_paid_order("send"),
        "messaging.destination.name": receipt.message_queue.topic,
        "messaging.client.id": producer.client_id,
        "messaging.message.id": receipt.message_id,
        "messaging.rocketmq.namespace": "team",
        "mqtrace.trace_type": "Pub",
        "mqtrace.group_name": producer.client_id,
        "mqtrace.cost_time": 0,
        "mqtrace.store_host": proxy.endpoints,
        "mqtrace.store_time": clock.wall_ns() // 10**6,
    }


def test_context_is_sent_and_the_properties_of_the_caller_are_unchanged(proxy, producer, spans, message):
    mine = message(properties={"shop": "berlin", "traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"})
    before = dict(mine.properties)
    with_baggage = context.attach(baggage.set_baggage("tenant", "acme"))
    receipt = producer.send(mine)
    context.detach(with_baggage)
    span = spans.take()
    (sent,) = proxy.sent
    assert dict(sent.user_properties) == {"shop": "berlin", "traceparent": _traceparent(span), "baggage": "tenant=acme"}
    assert mine.properties == before
    assert mine.message_id == receipt.message_id == sent.system_properties.message_id
    assert [link.context.trace_id for link in span.links] == [int("1" * 32, 16)]


def test_message_sent_again_has_a_new_id(proxy, producer, spans, message):
    mine = message()
    receipts = [producer.send(mine), producer.send(message=mine), producer.send_async(message=mine).result(10)]
    ids = [receipt.message_id for receipt in receipts]
    assert len(set(ids)) == 3
    assert [span.attributes["messaging.message.id"] for span in spans.take_all()] == ids


def test_properties_of_a_message_class_of_the_application_are_sent(proxy, producer, spans, message):
    class Greeting(rocketmq.Message):
        body = property(lambda self: b"hello " + self.name)
        name = b"you"

    mine = Greeting()
    mine.topic = message().topic
    producer.send(mine)
    assert [sent.body for sent in proxy.sent] == [b"hello you"]
    assert spans.take().attributes["messaging.message.body.size"] == len(b"hello you")


def test_produce_hook_gets_the_message_id(instrument, started, spans, message):
    begun = []
    instrument(produce_hook=lambda span, call: begun.append(span.attributes["messaging.message.id"]))
    producer = started(rocketmq.Producer)
    receipt = producer.send(message())
    refused = message(b"x" * (rocketmq.Producer.DEFAULT_MAX_BODY_SIZE + 1))
    with pytest.raises(exception.IllegalArgumentException):
        producer.send(refused)
    assert begun == [receipt.message_id, refused.message_id]
    assert [span.attributes["messaging.message.id"] for span in spans.take_all()] == begun


def test_asynchronous_send_ends_before_the_callback_of_its_future(proxy, producer, spans, message, tracer):
    results, done = [], threading.Event()

    def on_done(future):
        results.append((future.result().message_id, trace.get_current_span(), threading.current_thread()))
        done.set()

    with tracer.start_as_current_span("order") as order:
        proxy.answers_sends.clear()
        future = producer.send_async(message())
        future.add_done_callback(on_done)
        proxy.answers_sends.set()
    receipt = future.result(10)
    sent = spans.take("send " + receipt.message_queue.topic)
    assert done.wait(10)
    spans.take("order")
    assert results[0][:2] == (receipt.message_id, order)
    assert results[0][2] is not threading.main_thread()
    assert sent.parent.span_id == order.get_span_context().span_id


def test_cancelled_future_stays_cancelled_and_the_send_is_recorded(instrument, started, spans, message):
    ended, processor = threading.Semaphore(0), SpanProcessor()
    processor.on_end = lambda _: ended.release()
    instrument().add_span_processor(processor)
    producer = started(rocketmq.Producer)
    future = producer.send_async(message())
    cancelled = future.cancel()
    producer.send(message())
    for _ in range(2):  # a request that the shutdown cancels is sent again on the client's loop, which waits for itself
        assert ended.acquire(timeout=10)
    assert future.cancelled() is cancelled
    producer.shutdown()
    assert [span.attributes["mqtrace.success"] for span in spans.take_all()] == [True, True]


def test_send_under_way_at_uninstrument_ends_there(proxy, producer, spans, message):
    proxy.answers_sends.clear()
    future = producer.send_async(message())
    RocketMqInstrumentor().uninstrument()
    assert spans.take().attributes["mqtrace.send_outcome"] == "not_awaited"
    proxy.answers_sends.set()
    assert future.result(10).message_id


def test_retried_send_has_one_span(proxy, producer, spans, message):
    proxy.refuse.extend([Code.INTERNAL_SERVER_ERROR] * 2)
    producer.send(message())
    span = spans.take()
    assert span.attributes["mqtrace.success"] is True
    assert proxy.sent[0].user_properties["traceparent"] == _traceparent(span)


@pytest.mark.parametrize("is_async", [False, True])
def test_refused_send_has_the_error_type_of_the_broker(proxy, producer, spans, message, is_async):
    proxy.refuse.append(Code.TOO_MANY_REQUESTS)
    with pytest.raises(exception.TooManyRequestsException):
        producer.send_async(message()).result(10) if is_async else producer.send(message())
    span = spans.take()
    assert (span.attributes["error.type"], span.attributes["mqtrace.success"]) == ("TOO_MANY_REQUESTS", False)
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.parametrize(
    ("fields", "kind", "registered"),
    [
        ({"message_group": "g"}, "Order_Msg", {"type": "fifo", "group": "g"}),
        (
            {"delivery_timestamp": 1_800_000_000},
            "Delay_Msg",
            {"type": "delay", "delivery_timestamp": 1_800_000_000_000},
        ),
    ],
)
def test_fifo_and_delayed_messages_have_their_type(producer, spans, message, fields, kind, registered):
    """The client takes the delivery timestamp in seconds."""
    producer.send(message(**fields))
    attributes = spans.take().attributes
    assert attributes["mqtrace.msg_type"] == kind
    prefix = "messaging.rocketmq.message."
    assert {name.removeprefix(prefix): attributes[name] for name in attributes if name.startswith(prefix)} == registered


def test_producer_made_before_is_traced_until_uninstrument_unless_excluded_or_suppressed(
    instrument, started, proxy, spans, message, topic
):
    producer = started(rocketmq.Producer)
    instrument(topic_exclude=topic)
    producer.recall_message(topic, producer.send(message(delivery_timestamp=1_800_000_000)).recall_handle)
    RocketMqInstrumentor().uninstrument()
    instrument()
    with suppress_instrumentation():
        producer.send_async(message()).result(10)
    producer.send(message())
    spans.take()
    RocketMqInstrumentor().uninstrument()
    producer.send(message())
    assert [list(sent.user_properties) for sent in proxy.sent] == [[], [], ["traceparent"], []]


def test_recall_has_a_span_of_its_own(producer, spans, message, topic):
    receipt = producer.send(message(delivery_timestamp=1_800_000_000))
    assert producer.recall_message(topic, receipt.recall_handle) == receipt.message_id
    assert producer.recall_message_async(topic, receipt.recall_handle).result(10) == receipt.message_id
    with pytest.raises(exception.ClientException):
        producer.recall_message(topic, "no handle")
    spans.take(f"send {topic}")
    first, second, failed = spans.take_all(f"recall {topic}")
    for span in (first, second):
        assert span.attributes["messaging.message.id"] == receipt.message_id
        assert (span.attributes["mqtrace.trace_type"], span.attributes["mqtrace.success"]) == ("Recall", True)
        assert span.kind is SpanKind.CLIENT
    assert (failed.attributes["error.type"], failed.attributes["mqtrace.success"]) == ("INTERNAL_SERVER_ERROR", False)


@pytest.fixture
def checker():
    return Mock(rocketmq.TransactionChecker)


@pytest.fixture
def transactional(instrument, started, checker):
    instrument()
    return started(rocketmq.Producer, None, checker)


def _half_sent(transactional, spans, message, topic):
    transaction = transactional.begin_transaction()
    receipt = transactional.send(message(tag="paid", keys="order-1"), transaction)
    return transaction, receipt, spans.take(f"send {topic}")


def _assert_end(ended, sent, receipt, state, *, from_check):
    expected = {
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "transaction",
        "messaging.rocketmq.message.tag": "paid",
        "mqtrace.keys": ("order-1",),
        "mqtrace.msg_type": "Trans_msg_Commit",
        "mqtrace.transaction_id": receipt.transaction_id,
        "mqtrace.transaction_state": state,
        "mqtrace.from_transaction_check": from_check,
        "mqtrace.trace_type": "EndTransaction",
        "mqtrace.group_name": sent.attributes["mqtrace.group_name"],
    }
    assert expected.items() <= dict(ended.attributes).items()
    assert (ended.kind, ended.parent.span_id) == (SpanKind.CLIENT, sent.context.span_id)
    assert [link.context.span_id for link in ended.links] == [sent.context.span_id]
    assert trace_context_of(ended).trace_type is TraceType.END_TRANSACTION


@pytest.mark.parametrize(("end", "state"), [("commit", "COMMIT_MESSAGE"), ("rollback", "ROLLBACK_MESSAGE")])
def test_end_is_in_the_trace_of_its_half_message(proxy, transactional, spans, message, topic, end, state):
    transaction, receipt, sent = _half_sent(transactional, spans, message, topic)
    assert transaction.message_id == receipt.message_id
    assert sent.attributes["mqtrace.msg_type"] == "Trans_Msg_Half"
    assert sent.attributes["messaging.rocketmq.message.type"] == "transaction"
    getattr(transaction, end)()
    (asked,) = proxy.ended
    assert (asked.message_id, asked.transaction_id) == (receipt.message_id, receipt.transaction_id)
    _assert_end(spans.take(f"end_transaction {topic}"), sent, receipt, state, from_check=False)


def test_transactions_of_one_producer_end_separately_and_a_failed_end_may_be_repeated(
    proxy, transactional, spans, message, topic
):
    first, one, _ = _half_sent(transactional, spans, message, topic)
    second, two, _ = _half_sent(transactional, spans, message, topic)
    proxy.refuse.append(Code.INTERNAL_SERVER_ERROR)
    with pytest.raises(exception.ClientException):
        second.rollback()
    spans.assert_empty()
    second.rollback()
    first.commit()
    ended = [span.attributes for span in spans.take_all(f"end_transaction {topic}")]
    assert [(each["messaging.message.id"], each["mqtrace.transaction_state"]) for each in ended] == [
        (two.message_id, "ROLLBACK_MESSAGE"),
        (one.message_id, "COMMIT_MESSAGE"),
    ]


@pytest.mark.parametrize(
    ("resolution", "state"),
    [
        (TransactionResolution.COMMIT, "COMMIT_MESSAGE"),
        (TransactionResolution.ROLLBACK, "ROLLBACK_MESSAGE"),
        (TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED, "UNKNOW"),
    ],
)
def test_answer_of_the_checker_is_an_end_from_a_check_and_its_exception_none(
    proxy, transactional, spans, message, topic, checker, resolution, state
):
    _, receipt, sent = _half_sent(transactional, spans, message, topic)
    checker.check.side_effect = [ValueError("no such order"), resolution]
    for _ in range(2):
        proxy.ask_about(proxy.sent[0])
    proxy.await_requests(proxy.ended)
    assert [call.args[0].message_id for call in checker.check.call_args_list] == [receipt.message_id] * 2
    assert proxy.ended[0].resolution == resolution
    _assert_end(spans.take(f"end_transaction {topic}"), sent, receipt, state, from_check=True)


def test_client_without_references_is_freed(instrument, proxy, spans, message):
    instrument()
    conf = rocketmq.ClientConfiguration(proxy.endpoints, rocketmq.Credentials())
    checker, listener = SimpleNamespace(), SimpleNamespace()
    checker.client = producer = rocketmq.Producer(conf, None, checker)
    listener.client = pushed = rocketmq.PushConsumer(conf, "billing", listener, {"o": rocketmq.FilterExpression()})
    with pytest.raises(exception.IllegalStateException):
        producer.send(message())
    assert spans.take().attributes["error.type"] == "IllegalStateException"
    gone = [weakref.ref(producer), weakref.ref(pushed)]
    del producer, pushed, checker, listener
    gc.collect()
    assert [each() for each in gone] == [None, None]


def test_missing_method_of_the_client_is_reported_to_the_doctor(instrument, monkeypatch):
    monkeypatch.delattr(rocketmq, "PushConsumer")
    monkeypatch.delattr(rocketmq.Producer, "recall_message_async")
    instrument()
    survey = RocketMqInstrumentor().patches.survey()
    assert [each.rpartition(".")[2] for each in survey["untraceable"]] == ["recall_message_async", "PushConsumer"]
    assert survey["wrappers"] == []
    RocketMqInstrumentor().uninstrument()
