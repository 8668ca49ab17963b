"""The recorded end of a RocketMQ transaction: by the application, or on the broker's check."""

import threading

import pytest
import rocketmq
from opentelemetry.trace import SpanKind
from rocketmq import TransactionResolution
from rocketmq.grpc_protocol import Code
from rocketmq.v5.exception import ClientException

from otel_mqtrace.model import TraceType
from otel_mqtrace.spans.mapping import trace_context_of


class _Checker(rocketmq.TransactionChecker):
    """Answers what it was told to, and remembers what it was asked."""

    def __init__(self, resolution=TransactionResolution.ROLLBACK):
        self.resolution = resolution
        self.asked = []
        self.called = threading.Event()

    def check(self, message):
        self.asked.append((message.message_id, dict(message.properties)))
        resolution = self.resolution
        self.called.set()
        if isinstance(resolution, Exception):
            raise resolution
        return resolution


@pytest.fixture
def checker():
    return _Checker()


@pytest.fixture
def producer(instrument, started, checker):
    instrument()
    return started(rocketmq.Producer, None, checker)


def _half_sent(producer, spans, message, topic):
    transaction = producer.begin_transaction()
    receipt = producer.send(message(tag="paid", keys="order-1"), transaction)
    return transaction, receipt, spans.take(f"send {topic}")


@pytest.mark.parametrize(("end", "state"), [("commit", "COMMIT_MESSAGE"), ("rollback", "ROLLBACK_MESSAGE")])
def test_end_is_in_the_trace_of_its_half_message(proxy, producer, spans, message, topic, end, state):
    transaction, receipt, sent = _half_sent(producer, spans, message, topic)
    assert transaction.message_id == receipt.message_id
    assert sent.attributes["mqtrace.msg_type"] == "Trans_Msg_Half"
    getattr(transaction, end)()
    (asked,) = proxy.ended
    ended = spans.take(f"end_transaction {topic}")
    assert (asked.message_id, asked.transaction_id) == (receipt.message_id, receipt.transaction_id)
    expected = {
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "transaction",
        "messaging.rocketmq.message.tag": "paid",
        "mqtrace.keys": ("order-1",),
        "mqtrace.msg_type": "Trans_msg_Commit",
        "mqtrace.transaction_id": receipt.transaction_id,
        "mqtrace.transaction_state": state,
        "mqtrace.from_transaction_check": False,
        "mqtrace.trace_type": "EndTransaction",
        "mqtrace.group_name": producer.client_id,
    }
    assert expected.items() <= dict(ended.attributes).items()
    assert ended.kind is SpanKind.CLIENT
    assert ended.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in ended.links] == [sent.context.span_id]
    assert trace_context_of(ended).trace_type is TraceType.END_TRANSACTION


def test_failed_end_is_not_recorded_and_may_be_repeated(proxy, producer, spans, message, topic):
    transaction, _, _ = _half_sent(producer, spans, message, topic)
    proxy.refuse.append(Code.INTERNAL_SERVER_ERROR)
    with pytest.raises(ClientException):
        transaction.commit()
    spans.assert_empty()
    transaction.commit()
    spans.take(f"end_transaction {topic}")


def test_transactions_of_one_producer_end_separately(producer, spans, message, topic):
    first, one, _ = _half_sent(producer, spans, message, topic)
    second, two, _ = _half_sent(producer, spans, message, topic)
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
        (TransactionResolution.ROLLBACK, "ROLLBACK_MESSAGE"),
        (TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED, "UNKNOW"),
    ],
)
def test_answer_of_the_checker_is_an_end_from_a_check(
    proxy, producer, spans, message, topic, checker, resolution, state
):
    _, receipt, sent = _half_sent(producer, spans, message, topic)
    checker.resolution = resolution
    proxy.ask_about(proxy.sent[0])
    proxy.await_requests(proxy.ended)
    ended = spans.take(f"end_transaction {topic}")
    assert checker.asked[0][0] == receipt.message_id
    assert proxy.ended[0].resolution == resolution
    expected = {
        "messaging.message.id": receipt.message_id,
        "messaging.message.body.size": 5,
        "mqtrace.tags": "paid",
        "mqtrace.transaction_id": receipt.transaction_id,
        "mqtrace.transaction_state": state,
        "mqtrace.from_transaction_check": True,
    }
    assert expected.items() <= dict(ended.attributes).items()
    assert ended.parent.span_id == sent.context.span_id
    assert [link.context.span_id for link in ended.links] == [sent.context.span_id]


def test_checker_that_raises_has_no_end(proxy, producer, spans, message, topic, checker):
    _half_sent(producer, spans, message, topic)
    checker.resolution = ValueError("no such order")
    proxy.ask_about(proxy.sent[0])
    assert checker.called.wait(10)
    checker.resolution = TransactionResolution.COMMIT
    proxy.ask_about(proxy.sent[0])
    proxy.await_requests(proxy.ended)
    assert spans.take(f"end_transaction {topic}").attributes["mqtrace.transaction_state"] == "COMMIT_MESSAGE"
