"""aiokafka's transactions and settlements."""

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError
from opentelemetry.trace import SpanKind

from otel_mqtrace.model import MessageType, TransactionState
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.asyncio_kafka import play, producing

_CREATED = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


@pytest.mark.parametrize("fails", [False, True])
def test_end_of_a_transaction_is_recorded_for_each_message(instrument, spans, kafka, topic, fails):
    instrument()

    async def story():
        async with producing(kafka, transactional_id=f"{topic}-{fails}") as producer, producer.transaction():
            await producer.send_and_wait(topic, b"1")
            await producer.send(topic, b"2")
            if fails:
                raise KeyError("mine")

    if fails:
        with pytest.raises(KeyError):
            play(story)
    else:
        play(story)
    sent = [trace_context_of(span).beans[0] for span in spans.take_all(f"send {topic}")]
    ends = [trace_context_of(span).beans[0] for span in spans.take_all(f"end_transaction {topic}")]
    assert {bean.msg_type for bean in sent} == {MessageType.TRANS_HALF}
    assert [bean.msg_id for bean in ends] == [bean.msg_id for bean in sent]
    assert [bean.offset_msg_id for bean in ends] == [f"{topic}-0@{n}" for n in range(2)]
    assert {bean.transaction_id for bean in ends} == {bean.transaction_id for bean in sent}
    state = TransactionState.ROLLBACK_MESSAGE if fails else TransactionState.COMMIT_MESSAGE
    assert {bean.transaction_state for bean in ends} == {state}


async def test_batch_in_a_transaction_has_its_end(instrument, spans, kafka, topic):
    instrument()
    async with producing(kafka, transactional_id=topic) as producer:
        await producer.begin_transaction()
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=b"1")
        await producer.send_batch(batch, topic, partition=0)
        await producer.commit_transaction()
    (sent,) = spans.take_all(f"send {topic}")
    (end,) = spans.take_all(f"end_transaction {topic}")
    assert trace_context_of(end).beans[0].msg_id == trace_context_of(sent).beans[0].msg_id == f"{topic}-0@0"


async def test_offsets_of_a_transaction_are_a_settlement_of_their_group(instrument, spans, kafka, topic):
    instrument(settle_spans=True)
    async with producing(kafka, transactional_id=topic) as producer, producer.transaction():
        await producer.send_offsets_to_transaction({TopicPartition(topic, 0): 7}, "billing")
    span = spans.take(f"send_offsets {topic}")
    assert span.attributes["messaging.operation.name"] == "send_offsets"
    assert span.kind is SpanKind.CLIENT
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert span.attributes["messaging.kafka.offset"] == 7


@pytest.mark.parametrize("given", [False, True])
async def test_commit_has_the_settled_offsets(handing, spans, kafka, topic, given):
    async with handing(b"1", b"2", settle_spans=True) as consumer:
        await consumer.getone()
        if given:
            await consumer.commit({TopicPartition(topic, 0): (1, "checked")})
        else:
            await consumer.commit()
    commit, handled = spans.take(f"commit {topic}"), spans.take(f"process {topic}")
    assert commit.attributes["messaging.kafka.offset"] == 1
    assert commit.attributes["messaging.consumer.group.name"] == "billing"
    assert commit.parent.span_id == handled.context.span_id


@pytest.mark.parametrize("by", ["all", "offsets", "transaction"])
async def test_settlement_is_linked_to_the_message_before_its_offset(handing, spans, kafka, topic, by):
    """As confluent-kafka's are; a transaction takes it from a consumer of its group in this process."""
    created = {"value": b"1", "headers": [_CREATED]}
    async with (
        handing(created, b"2", settle_spans=True) as consumer,
        producing(kafka, transactional_id=topic) as producer,
    ):
        await consumer.getone()
        offsets = {TopicPartition(topic, 0): 1}
        if by == "transaction":
            async with producer.transaction():
                await producer.send_offsets_to_transaction(offsets, "others")
                await producer.send_offsets_to_transaction(offsets, "billing")
        else:
            await consumer.commit(*([offsets] if by == "offsets" else []))
    name = "send_offsets" if by == "transaction" else "commit"
    settled = spans.take_all(f"{name} {topic}")
    assert [link.context.span_id for link in settled[-1].links] == [0xB7AD6B7169203331]
    assert not any(each.links for each in settled[:-1])
    spans.take(f"process {topic}")


async def test_failed_commit_is_an_error(handing, spans):
    async with handing(settle_spans=True) as consumer:
        with pytest.raises(IllegalStateError):
            await consumer.commit({TopicPartition("another", 0): 1})
    assert spans.take("commit another").attributes["error.type"] == "IllegalStateError"


async def test_commit_is_not_recorded_by_default(handing, spans, topic):
    async with handing(b"1") as consumer:
        await consumer.getone()
        await consumer.commit()
    assert spans.take().name == f"process {topic}"
