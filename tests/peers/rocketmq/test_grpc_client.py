"""Spans and native records of an instrumented application on a real RocketMQ 5."""

from queue import SimpleQueue
from time import time

import pytest
import rocketmq
from rocketmq import ConsumeResult, TransactionResolution
from rocketmq.v5.exception import ClientException

from otel_mqtrace.instrumentor import RocketMqInstrumentor
from tests.peers.peer import until
from tests.peers.traced import recording
from tests.support.rocketmq_proxy import message_of

pytestmark = pytest.mark.peers

_PATIENCE_SECONDS = 60


@pytest.fixture
def spans():
    with recording(RocketMqInstrumentor()) as exporter:
        yield exporter


def test_spans_of_a_message_agree_with_the_broker(spans, started, topic_of, receive_from, rocketmq_server):
    topic = topic_of()
    mine = message_of(topic, tag="paid", keys="order-1", properties={"shop": "berlin"})
    receipt = started(rocketmq.Producer, [topic]).send(mine)
    consumer, receive = receive_from(topic)
    (received,) = receive()
    consumer.ack(received)

    sent, processed = spans.take(f"send {topic}"), spans.take(f"process {topic}")
    spans.assert_empty()
    assert receipt.message_id == mine.message_id == received.message_id
    assert mine.properties == {"shop": "berlin"}
    assert set(received.properties) == {"shop", "traceparent"}
    for span in (sent, processed):
        assert span.attributes["messaging.message.id"] == receipt.message_id
        assert span.attributes["mqtrace.tags"] == "paid"
        assert list(span.attributes["messaging.rocketmq.message.keys"]) == ["order-1"]
        assert span.attributes["messaging.message.body.size"] == 5
        assert span.attributes["messaging.system"] == "rocketmq"
    assert sent.attributes["mqtrace.store_host"] == rocketmq_server.endpoints
    assert processed.attributes["mqtrace.store_host"] == rocketmq_server.broker
    assert processed.attributes["messaging.destination.partition.id"] in {"0", "1"}
    assert abs(processed.attributes["mqtrace.store_time"] - sent.end_time // 10**6) < 60_000
    assert (processed.parent.span_id, processed.context.trace_id) == (sent.context.span_id, sent.context.trace_id)
    assert [link.context.span_id for link in processed.links] == [sent.context.span_id]


def test_delayed_message_may_be_recalled(spans, started, topic_of):
    topic = topic_of("DELAY")
    producer = started(rocketmq.Producer, [topic])
    receipt = producer.send(message_of(topic, delivery_timestamp=int(time()) + 600))
    assert producer.recall_message(topic, receipt.recall_handle) == receipt.message_id
    with pytest.raises(ClientException):
        producer.recall_message(topic, "no handle of anybody")
    assert spans.take(f"send {topic}").attributes["mqtrace.msg_type"] == "Delay_Msg"
    done, failed = spans.take_all(f"recall {topic}")
    assert done.attributes["messaging.message.id"] == receipt.message_id
    assert (failed.attributes["mqtrace.success"], failed.attributes["error.type"]) == (False, "INTERNAL_SERVER_ERROR")


def test_transactions_end_by_the_application_or_a_check_of_the_broker(
    spans, started, topic_of, receive_from, rocketmq_server
):
    topic = topic_of("TRANSACTION")
    asked = SimpleQueue()

    class _TakesBack(rocketmq.TransactionChecker):
        def check(self, message):
            asked.put(message.message_id)
            return TransactionResolution.ROLLBACK

    producer = started(rocketmq.Producer, [topic], _TakesBack())
    committed, forgotten = producer.begin_transaction(), producer.begin_transaction()
    one = producer.send(message_of(topic, b"1"), committed)
    ends = rocketmq_server.count_recorded_ends()
    committed.commit()
    until(rocketmq_server.count_recorded_ends, lambda count: count > ends, patience_s=_PATIENCE_SECONDS)
    two = producer.send(message_of(topic, b"2"), forgotten)
    consumer, receive = receive_from(topic)
    (received,) = receive()
    consumer.ack(received)
    assert (received.body, received.message_id) == (b"1", one.message_id)
    with rocketmq_server.checking_transactions():
        assert asked.get(timeout=_PATIENCE_SECONDS) == two.message_id
    producer.shutdown()

    sent = {span.attributes["messaging.message.id"]: span for span in spans.take_all(f"send {topic}")}
    ends = spans.take_all(f"end_transaction {topic}")
    own_names = ("transaction_id", "transaction_state", "from_transaction_check")
    names = ("messaging.message.id", *(f"mqtrace.{name}" for name in own_names))
    # The broker may ask once more before it has noted the end.
    assert list(dict.fromkeys(tuple(end.attributes[name] for name in names) for end in ends)) == [
        (one.message_id, one.transaction_id, "COMMIT_MESSAGE", False),
        (two.message_id, two.transaction_id, "ROLLBACK_MESSAGE", True),
    ]
    for end in ends:
        assert end.context.trace_id == sent[end.attributes["messaging.message.id"]].context.trace_id
    assert spans.take(f"process {topic}").attributes["mqtrace.msg_type"] == "Trans_msg_Commit"


def test_push_consumer_retries_after_a_failure(rocketmq_server, started, topic_of):
    topic = topic_of()
    calls = SimpleQueue()

    class _ThirdTime(rocketmq.MessageListener):
        def consume(self, message):
            calls.put(message.delivery_attempt)
            if message.delivery_attempt == 2:
                raise ValueError("not yet")
            return ConsumeResult.SUCCESS if message.delivery_attempt == 3 else ConsumeResult.FAILURE

    with recording(RocketMqInstrumentor(), settle_spans=True) as spans:
        started(rocketmq.Producer, [topic]).send(message_of(topic))
        group = rocketmq_server.create_group(f"{topic}-push")
        consumer = started(rocketmq.PushConsumer, group, _ThirdTime(), {topic: rocketmq.FilterExpression()})
        assert [calls.get(timeout=_PATIENCE_SECONDS) for _ in range(3)] == [1, 2, 3]
        consumer.shutdown()  # waits for the listener and what follows it
    sent = spans.take(f"send {topic}")
    processed = spans.take_all(f"process {topic}")
    names = ("mqtrace.retry_times", "mqtrace.context_code")
    outcomes = [(0, "FAILED"), (1, "EXCEPTION"), (2, "SUCCESS")]
    assert [tuple(span.attributes[name] for name in names) for span in processed] == outcomes
    assert {span.context.trace_id for span in processed} == {sent.context.trace_id}
    assert [len(spans.take_all(f"{name} {topic}")) for name in ("nack", "ack")] == [2, 1]
