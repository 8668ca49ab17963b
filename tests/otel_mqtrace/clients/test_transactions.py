"""What a transaction leaves: an end for each of its messages, the offsets it took along, and nothing of one that failed."""

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition
from opentelemetry.trace import SpanKind

from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.consuming import poll

_CREATED = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
END_TXN = 26
MSG_SIZE_TOO_LARGE, COORDINATOR_LOADING, PRODUCER_FENCED = 10, 14, 90


@pytest.fixture
def transactional_of(instrument, kafka, topic):
    """Make a producer in a transaction of its own, traced with the given options."""

    def make(**options):
        instrument(**options)
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"tx-{topic}", "client.id": "shop"}
        )
        producer.init_transactions(10)
        producer.begin_transaction()
        return producer

    return make


@pytest.fixture
def transactional(transactional_of):
    return transactional_of()


@pytest.mark.parametrize(
    ("end", "state"), [("commit_transaction", "COMMIT_MESSAGE"), ("abort_transaction", "ROLLBACK_MESSAGE")]
)
def test_every_message_of_a_transaction_has_an_end_linked_to_its_send(transactional, spans, topic, end, state):
    for body in (b"1", b"2"):
        transactional.produce(topic, body)
    transactional.flush(10)
    getattr(transactional, end)(10)
    sends, ends = spans.take_all(f"send {topic}"), spans.take_all(f"end_transaction {topic}")
    assert [span.attributes["mqtrace.msg_type"] for span in sends] == ["Trans_Msg_Half"] * 2
    assert [end.links[0].context.span_id for end in ends] == [send.context.span_id for send in sends]
    for send, ended in zip(sends, ends, strict=True):
        record = trace_context_of(ended)
        (bean,) = record.beans
        assert (ended.kind, record.trace_type) == (SpanKind.CLIENT, TraceType.END_TRANSACTION)
        assert (bean.transaction_state.name, bean.from_transaction_check) == (state, False)
        assert bean.msg_type is MessageType.TRANS_COMMIT
        assert record.request_id not in {None, send.attributes["mqtrace.request_id"]}
        assert bean.transaction_id == send.attributes["mqtrace.transaction_id"]
        assert bean.msg_id == send.attributes["messaging.message.id"]
        assert bean.offset_msg_id == send.attributes["mqtrace.offset_msg_id"]


def test_message_that_is_queued_when_a_signal_handler_raises_has_an_end(transactional, interrupted, spans, topic):
    interrupted(transactional.produce, topic, b"x")
    transactional.commit_transaction(10)
    assert spans.take(f"send {topic}").attributes["mqtrace.success"] is True
    assert spans.take(f"end_transaction {topic}").attributes["mqtrace.transaction_state"] == "COMMIT_MESSAGE"


def test_failed_commit_has_no_end_and_the_abort_after_it_has(transactional, kafka, spans, topic):
    kafka.push_request_errors(kafka.PRODUCE, MSG_SIZE_TOO_LARGE)
    transactional.produce(topic, b"x")
    with pytest.raises(KafkaException) as refused:
        transactional.commit_transaction(10)
    assert refused.value.args[0].txn_requires_abort()
    assert spans.take(f"send {topic}").attributes["error.type"] == "MSG_SIZE_TOO_LARGE"
    spans.assert_empty()
    transactional.abort_transaction(10)
    assert spans.take(f"end_transaction {topic}").attributes["mqtrace.transaction_state"] == "ROLLBACK_MESSAGE"


def test_transaction_of_a_fenced_producer_has_no_end(transactional, kafka, spans, topic):
    """Another producer of the same id came: neither commit nor abort can be recorded, for neither happened."""
    transactional.produce(topic, b"x")
    transactional.flush(10)
    kafka.push_request_errors(END_TXN, PRODUCER_FENCED)
    for end in (transactional.commit_transaction, transactional.abort_transaction):
        with pytest.raises(KafkaException) as fenced:
            end(10)
        assert fenced.value.args[0].fatal()
    spans.take(f"send {topic}")
    spans.assert_empty()


def test_repeated_commit_ends_its_messages_once(transactional, kafka, spans, topic):
    transactional.produce(topic, b"x")
    transactional.flush(10)
    kafka.push_request_errors(END_TXN, *[COORDINATOR_LOADING] * 20)
    with pytest.raises(KafkaException) as refused:
        transactional.commit_transaction(0.3)
    assert refused.value.args[0].retriable()
    spans.take(f"send {topic}")
    spans.assert_empty()
    kafka.clear_request_errors(END_TXN)
    transactional.commit_transaction(10)
    assert spans.take(f"end_transaction {topic}").attributes["mqtrace.transaction_state"] == "COMMIT_MESSAGE"


class TestOffsets:
    @pytest.fixture
    def group(self, consumer_of, topic):
        return consumer_of(topic).consumer_group_metadata()

    def test_offsets_are_recorded_as_a_settlement(self, transactional_of, spans, topic, group):
        transactional = transactional_of(settle_spans=True)
        transactional.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], group, 10)
        settled = spans.take(f"send_offsets {topic}")
        assert settled.kind is SpanKind.CLIENT
        assert settled.attributes["messaging.operation.type"] == "settle"
        assert settled.attributes["messaging.destination.partition.id"] == "0"
        assert settled.attributes["messaging.kafka.offset"] == 7
        assert settled.attributes.keys().isdisjoint({"error.type", "messaging.consumer.group.name"})
        transactional.commit_transaction(10)

    def test_settlement_is_linked_to_a_message_consumed_in_this_process(
        self, transactional_of, consumer_of, fill, spans, topic
    ):
        fill(topic, {"value": b"1", "headers": [_CREATED]})
        transactional = transactional_of(settle_spans=True)
        poll(consumer := consumer_of(topic))
        transactional.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 10)
        [link] = spans.take(f"send_offsets {topic}").links
        assert link.context.span_id == 0xB7AD6B7169203331
        consumer.close()
        spans.take(f"process {topic}")
        transactional.commit_transaction(10)

    def test_refused_offsets_are_recorded_as_failed(self, transactional_of, spans, topic, group):
        transactional = transactional_of(settle_spans=True)
        transactional.commit_transaction(10)
        with pytest.raises(KafkaException):
            transactional.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], group, 10)
        assert spans.take(f"send_offsets {topic}").attributes["error.type"] == "_STATE"

    def test_offsets_are_not_recorded_by_default(self, transactional, spans, topic, group):
        transactional.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], group, 10)
        transactional.commit_transaction(10)
        spans.assert_empty()
