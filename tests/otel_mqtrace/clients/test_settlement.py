"""Commits and transactions: recorded by option, linked to where the messages came from, an end for each message sent."""

import ctypes
import sys
from types import SimpleNamespace

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from opentelemetry.trace import SpanKind, StatusCode

from otel_mqtrace.clients.settlement import Positions
from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.consuming import current_span_id, poll

PARENT_SPANS = (0xB7AD6B7169203331, 0xB7AD6B7169203332)


def _sent_by(n):
    return ("traceparent", f"00-0af7651916cd43dd8448eb211c80319c-{PARENT_SPANS[n]:x}-01")


def _message(n):
    return {"value": b"x", "headers": [_sent_by(n)]}


@pytest.fixture
def handled(consuming, spans, topic):
    """Consume two messages with settlements recorded; return the consumer, the messages and the current span's id."""
    consumer = consuming(_message(0), _message(1), conf={"enable_auto_offset_store": False}, settle_spans=True)
    yield consumer, [poll(consumer), poll(consumer)], current_span_id()
    consumer.close()
    assert len(spans.take_all(f"process {topic}")) == 2


def _linked(span):
    return [link.context.span_id for link in span.links]


class TestCommit:
    @pytest.mark.parametrize(
        ("commit", "offset", "linked"),
        [
            (lambda c, m, t: c.commit(m[0], asynchronous=False), 1, 0),
            (lambda c, m, t: c.commit(message=m[1], asynchronous=False), 2, 1),
            (lambda c, m, t: c.commit(message=m[1]), 2, 1),
            (lambda c, m, t: c.commit(offsets=[TopicPartition(t, 0, 1)], asynchronous=False), 1, 0),
            (lambda c, m, t: c.commit(None, [TopicPartition(t, 0, 2)]), 2, 1),
            (lambda c, m, t: c.commit(offsets=[TopicPartition(t, 0, 40)], asynchronous=False), 40, None),
        ],
        ids=["message", "message by name", "asynchronous", "offsets", "offsets by position", "undelivered"],
    )
    def test_commit_settles_the_message_before_its_offset(self, handled, spans, topic, commit, offset, linked):
        consumer, messages, current = handled
        commit(consumer, messages, topic)
        span = spans.take(f"commit {topic}")
        assert (span.kind, span.parent.span_id) == (SpanKind.CLIENT, current)
        assert span.attributes["messaging.operation.type"] == "settle"
        assert span.attributes["messaging.consumer.group.name"] == "billing"
        assert span.attributes["messaging.destination.partition.id"] == "0"
        assert span.attributes["messaging.kafka.offset"] == offset
        assert _linked(span) == ([] if linked is None else [PARENT_SPANS[linked]])

    @pytest.mark.parametrize("by_message", [True, False])
    def test_commit_without_arguments_settles_the_stored_offsets(self, handled, spans, topic, by_message):
        consumer, messages, current = handled
        consumer.store_offsets(**{"message": messages[0]} if by_message else {"offsets": [TopicPartition(topic, 0, 1)]})
        stored = spans.take(f"store {topic}")
        assert (stored.parent.span_id, stored.attributes["messaging.kafka.offset"]) == (current, 1)
        assert _linked(stored) == [PARENT_SPANS[0]]
        consumer.commit(asynchronous=False)
        span = spans.take(f"commit {topic}")
        assert (span.attributes["messaging.kafka.offset"], _linked(span)) == (1, [PARENT_SPANS[0]])

    def test_commit_that_raises_is_recorded_and_raises(self, handled, spans, topic):
        consumer, *_ = handled
        with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
            consumer.commit(offsets=[TopicPartition(topic, 77, 1)], asynchronous=False)
        span = spans.take(f"commit {topic}")
        assert span.attributes["error.type"] == "UNKNOWN_TOPIC_OR_PART"
        assert span.attributes["messaging.destination.partition.id"] == "77"
        assert (span.status.status_code, [event.name for event in span.events]) == (StatusCode.ERROR, ["exception"])

    @pytest.mark.parametrize("call", ["commit", "store_offsets"])
    @pytest.mark.parametrize("offsets", ["bad", 1, [1]])
    def test_call_with_wrong_offsets_is_an_error(self, handled, spans, caplog, call, offsets):
        with pytest.raises(TypeError):
            getattr(handled[0], call)(offsets=offsets)
        assert spans.take(call.removesuffix("_offsets")).attributes["error.type"] == "TypeError"
        assert not caplog.records


def test_failed_partition_sets_the_error_of_the_span(instrument, short_lived, spans):
    refused = KafkaError(KafkaError.INVALID_COMMIT_OFFSET_SIZE)  # a TopicPartition's own can only be set in C
    answers = [SimpleNamespace(topic="orders", partition=n, offset=5, error=(None, refused)[n]) for n in range(2)]
    half_refused = short_lived("HalfRefused", confluent_kafka.Consumer, commit=lambda *_, **_named: answers)
    instrument(settle_spans=True)
    with half_refused({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}) as consumer:
        assert len(consumer.commit(asynchronous=False)) == 2
    span = spans.take("commit orders")
    assert span.attributes["error.type"] == "INVALID_COMMIT_OFFSET_SIZE"
    assert (span.status.status_code, span.events) == (StatusCode.ERROR, ())


def test_remembered_positions_are_limited_to_ten_thousand():
    positions = Positions(ClientInfo())
    positions.add(IncomingMessage(topic="t", partition=0, offset=n, headers=[_sent_by(0)]) for n in range(10_001))
    assert positions.creation_context("t", 0, 0) is None
    assert positions.creation_context("t", 0, 10_000).span_id == PARENT_SPANS[0]
    assert [each.offset for each in positions.unsettled()] == [10_001]


def test_commit_settles_assigned_unsettled_messages(instrument, kafka, spans, fill, consumer_of, topic):
    wide = f"{topic}-wide"
    kafka.create_topic(wide, partitions=2)
    fill(wide, {"value": b"0", "partition": 0}, {"value": b"1", "partition": 1})
    instrument(settle_spans=True)
    consumer = consumer_of(wide)
    poll(consumer)
    consumer.assign([TopicPartition(wide, 1, 0)])
    poll(consumer)
    consumer.commit()
    span = spans.take(f"commit {wide}")
    assert span.attributes["messaging.destination.partition.id"] == "1"
    assert span.attributes["messaging.kafka.offset"] == 1
    consumer.commit()
    assert "messaging.kafka.offset" not in spans.take("commit").attributes
    consumer.close()
    assert len(spans.take_all(f"process {wide}")) == 2


def _raise_kafka_error(*_args, **_kwargs):
    """Raise what C code can raise although it is no exception to Python."""
    error = KafkaError(KafkaError._STATE)
    ctypes.pythonapi.PyErr_SetObject(ctypes.py_object(KafkaError), ctypes.py_object(error))


@pytest.mark.parametrize(
    ("base", "call", "args", "name"),
    [
        *((confluent_kafka.Consumer, call, (), call) for call in ("commit", "poll")),
        (confluent_kafka.Producer, "produce", ("orders",), "send orders"),
    ],
)
def test_raised_kafka_error_is_recorded(short_lived, instrument, spans, base, call, args, name):
    make, raised = short_lived("Bare", base, **{call: _raise_kafka_error}), None
    instrument(settle_spans=True, receive_spans=True)
    with make({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}) as client:
        try:
            getattr(client, call)(*args)
        except:  # noqa: E722 - the one form that catches it
            raised = sys.exc_info()[1]
    assert isinstance(raised, KafkaError)
    span = spans.take(name)
    assert (span.attributes["error.type"], span.status.status_code) == ("_STATE", StatusCode.ERROR)


END_TXN = 26
MSG_SIZE_TOO_LARGE, COORDINATOR_LOADING = 10, 14


@pytest.fixture
def transactional_of(producer_of, topic):
    def make(**options):
        producer = producer_of(options, transactional_id=f"tx-{topic}")
        producer.init_transactions(10)
        producer.begin_transaction()
        return producer

    return make


@pytest.fixture
def transactional(transactional_of):
    return transactional_of()


@pytest.mark.parametrize(
    ("method", "end", "state"),
    [
        ("produce", "commit_transaction", "COMMIT_MESSAGE"),
        ("produce", "abort_transaction", "ROLLBACK_MESSAGE"),
        ("produce_batch", "abort_transaction", "ROLLBACK_MESSAGE"),
    ],
)
def test_every_message_of_a_transaction_has_an_end_linked_to_its_send(transactional, spans, topic, method, end, state):
    if method == "produce":
        for body in (b"1", b"2"):
            transactional.produce(topic, body)
    else:
        transactional.produce_batch(topic, [{"value": b"1"}, {"value": b"2"}])
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


@pytest.mark.parametrize("is_next", [False, True])
def test_transaction_open_at_a_second_instrument_claims_no_end_of_earlier_sends(
    transactional, instrumentor, instrument, spans, topic, is_next
):
    """Tracing was off in between: the first transaction may have been aborted, and the next begun."""
    transactional.produce(topic, b"1")
    instrumentor.uninstrument()
    if is_next:
        transactional.abort_transaction(10)
        transactional.begin_transaction()
    instrument()
    transactional.produce(topic, b"2")
    transactional.commit_transaction(10)
    sends, (end,) = spans.take_all(f"send {topic}"), spans.take_all(f"end_transaction {topic}")
    assert [span.attributes["mqtrace.msg_type"] for span in sends] == ["Trans_Msg_Half"] * 2
    earlier, later = (span.attributes["mqtrace.transaction_id"] for span in sends)
    assert earlier != later == end.attributes["mqtrace.transaction_id"]


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
    def test_offsets_are_a_settlement_linked_to_a_message_consumed_in_this_process(
        self, transactional_of, consumer_of, fill, spans, topic
    ):
        fill(topic, _message(0))
        transactional = transactional_of(settle_spans=True)
        poll(consumer := consumer_of(topic))
        transactional.send_offsets_to_transaction([TopicPartition(topic, 0, 1)], consumer.consumer_group_metadata(), 10)
        consumer.close()
        transactional.commit_transaction(10)
        settled = spans.take(f"send_offsets {topic}")
        assert (settled.kind, _linked(settled)) == (SpanKind.CLIENT, [PARENT_SPANS[0]])
        assert settled.attributes["messaging.operation.type"] == "settle"
        assert settled.attributes["messaging.destination.partition.id"] == "0"
        assert settled.attributes["messaging.kafka.offset"] == 1
        assert settled.attributes.keys().isdisjoint({"error.type", "messaging.consumer.group.name"})
        spans.take(f"process {topic}")

    def test_refused_offsets_are_recorded_as_failed(self, transactional_of, consumer_of, spans, topic):
        transactional = transactional_of(settle_spans=True)
        transactional.commit_transaction(10)
        group = consumer_of(topic).consumer_group_metadata()
        with pytest.raises(KafkaException):
            transactional.send_offsets_to_transaction([TopicPartition(topic, 0, 7)], group, 10)
        assert spans.take(f"send_offsets {topic}").attributes["error.type"] == "_STATE"
