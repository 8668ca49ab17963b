"""A traced aiokafka consumer: what is current when, how processing ends, settlements, and the native records."""

import asyncio
import gc
import pickle
from contextlib import nullcontext

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import IllegalStateError
from opentelemetry.trace import SpanKind

from otel_mqtrace import process
from otel_mqtrace.clients.aiokafka.client import registry
from otel_mqtrace.hooks.outcome import drain_deferred_ends
from otel_mqtrace.instrumentor import AioKafkaInstrumentor
from otel_mqtrace.model import ContextCode, MessageType, TransactionState
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.asyncio_kafka import consumer_of, consuming, producing
from tests.support.consuming import code_of, current_span_id, let_others_run
from tests.support.mailbox import SENDER, TRACEPARENT


async def test_message_is_current_until_the_next_turn_of_the_loop(handing, spans, kafka, topic):
    current = []
    async with handing(2) as consumer:
        async for record in consumer:
            current.append(current_span_id())
            if record.offset == 1:
                break
        first = spans.take()
    assert current_span_id() == 0
    assert [first.context.span_id, spans.take().context.span_id] == current
    assert (first.kind, first.name) == (SpanKind.CONSUMER, f"process {topic}")
    record = trace_context_of(first)
    assert (record.group_name, record.context_code) == ("billing", ContextCode.SUCCESS)
    assert (record.beans[0].msg_id, record.beans[0].offset_msg_id) == ("ID0", f"{topic}-0@0")
    assert (record.beans[0].store_host, record.beans[0].body_length) == (kafka.bootstrap_servers, 1)


@pytest.mark.parametrize("at_once", [False, True])
async def test_message_fetched_by_a_task_ends_with_the_next_poll_and_with_the_consumer(handing, spans, at_once):
    """``wait_for`` may fetch in such a task; who awaits it runs before the task's later callbacks, ours among them."""
    async with handing(2) as consumer:
        await asyncio.create_task(consumer.getone())
        if not at_once:
            await let_others_run()
            spans.assert_empty()
        await asyncio.create_task(consumer.getone())
        assert trace_context_of(spans.take()).beans[0].msg_id == "ID0"
    assert current_span_id() == 0
    assert trace_context_of(spans.take()).beans[0].msg_id == "ID1"


async def test_tasks_that_share_a_consumer_end_their_own_messages(handing, spans):
    seen = {}
    async with handing(3) as consumer:
        first_has_one, second_is_done = asyncio.Event(), asyncio.Event()

        async def slow():
            seen["slow"] = await consumer.getone(), current_span_id()
            first_has_one.set()
            await second_is_done.wait()
            assert current_span_id() == seen["slow"][1]

        async def quick():
            await first_has_one.wait()
            for _ in range(2):
                seen["quick"] = await consumer.getone(), current_span_id()
            second_is_done.set()

        await asyncio.gather(slow(), quick())
    assert [trace_context_of(span).beans[0].msg_id for span in spans.take_all()] == ["ID1", "ID2", "ID0"]
    assert seen["slow"][1] != seen["quick"][1]


@pytest.mark.parametrize(("ending", "error"), [("raise", "KeyError"), ("cancel", "CancelledError"), ("return", None)])
async def test_ending_task_sets_the_outcome_of_its_message(handing, spans, ending, error):
    """asyncio logs an exception that was never retrieved, as without tracing."""
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    async with handing(1) as consumer:

        async def worker():
            await consumer.getone()
            if ending == "raise":
                raise KeyError("mine")
            if ending == "cancel":
                asyncio.current_task().cancel()
                await let_others_run()
            return "handled"

        await asyncio.wait({task := asyncio.create_task(worker())})
        span = spans.take()
    assert task.cancelled() is (ending == "cancel")
    assert ending != "return" or task.result() == "handled"
    assert span.attributes.get("error.type") == error
    assert code_of(span) is (ContextCode.EXCEPTION if error else ContextCode.SUCCESS)
    del task
    gc.collect()
    assert ("Task exception was never retrieved" in complaints) is (ending == "raise")


async def test_getmany_has_one_span_for_each_topic_with_its_links(instrument, spans, fill, kafka, topic):
    """Counted even when it is one, and the first topic is current. How many come at once is the broker's."""
    other = f"{topic}-b"
    kafka.create_topic(other)
    fill(topic, *({"value": b"1", "headers": [TRACEPARENT]} for _ in range(3)))
    fill(other, {"value": b"2", "headers": [TRACEPARENT]})
    instrument()
    handed = []
    async with consuming(kafka, topic, other) as consumer:
        while sum(len(offsets) for _, offsets in handed) < 4:
            batch = await consumer.getmany(timeout_ms=10_000)
            handed.extend((f"process {at.topic}", {each.offset for each in some}) for at, some in batch.items())
            assert current_span_id() != 0
    ended = spans.take_all()
    offsets = [{link.attributes["messaging.kafka.offset"] for link in span.links} for span in ended]
    assert [(span.name, each) for span, each in zip(ended, offsets, strict=True)] == handed
    counts = [len(each) for each in offsets]
    assert [len(span.links) for span in ended] == counts
    assert [span.attributes["messaging.batch.message_count"] for span in ended] == counts


async def test_polls_are_recorded_if_configured(handing, spans, topic):
    async with handing(1, receive_spans=True, empty_poll_spans=True) as consumer:
        assert await consumer.getmany(timeout_ms=10_000)
        assert await consumer.getmany(timeout_ms=0) == {}
    assert sorted(span.name for span in spans.take_all()) == ["poll", f"poll {topic}", f"process {topic}"]


async def test_block_uses_the_automatic_span(handing, spans):
    async with handing(1) as consumer:
        record = await consumer.getone()
        automatic = current_span_id()
        with process(record) as handling:
            assert current_span_id() == automatic
            handling.failed()
        assert current_span_id() == 0
        span = spans.take()
    assert (span.context.span_id, code_of(span)) == (automatic, ContextCode.FAILED)


async def test_exception_that_leaves_the_block_fails_the_message(handing, spans):
    with pytest.raises(KeyError):  # noqa: PT012 - a handler
        async with handing(1) as consumer:
            await consumer.getone()
            await consumer.commit()  # not recorded by default
            raise KeyError("mine")
    span = spans.take()
    assert (span.attributes["error.type"], code_of(span)) == ("KeyError", ContextCode.EXCEPTION)


async def test_block_that_ends_well_in_the_handler_of_an_earlier_exception_is_a_success(handing, spans):
    try:
        int("x")
    except ValueError:
        async with handing(1) as consumer:
            await consumer.getone()
            await consumer.__aexit__(None, None, None)
    assert code_of(spans.take()) is ContextCode.SUCCESS


async def test_body_size_is_that_before_deserialization_and_the_key_that_after_it(handing, spans, kafka):
    conf = {"value_deserializer": lambda _: {"a": "much longer thing"}, "key_deserializer": int}
    async with handing({"value": b"12345", "key": b"70"}, {"value": None, "key": b"071"}, conf=conf) as consumer:
        for _ in range(2):
            await consumer.getone()
    full, tombstone = spans.take_all()
    assert full.attributes["messaging.message.body.size"] == 5
    assert tombstone.attributes["messaging.message.body.size"] == 0
    assert tombstone.attributes["messaging.kafka.message.tombstone"] is True
    assert tombstone.attributes["messaging.kafka.message.key"] == "71"


@pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
def test_message_of_a_collected_consumer_ends(instrument, spans, fill, kafka, topic):
    fill(topic, {"value": b"x"})
    instrument()

    async def story():
        async def leave_it_behind():
            consumer = await consumer_of(kafka, topic, group_id=None)
            record = await consumer.getone()
            assert pickle.loads(pickle.dumps(record)) == record
            await consumer._fetcher.close()
            await consumer._client.close()
            return "left"

        assert await asyncio.create_task(leave_it_behind()) == "left"

    asyncio.run(asyncio.wait_for(story(), 30))
    gc.collect()
    drain_deferred_ends()
    assert [code_of(span) for span in spans.take_all()] == [ContextCode.RETURNNULL]
    assert len(registry) == 0


@pytest.mark.parametrize("fails", [False, True])
async def test_end_of_a_transaction_is_recorded_for_each_message(instrument, spans, kafka, topic, fails):
    instrument()
    with pytest.raises(KeyError) if fails else nullcontext():
        async with producing(kafka, transactional_id=f"{topic}-{fails}") as producer, producer.transaction():
            await producer.send_and_wait(topic, b"1")
            await producer.send(topic, b"2")
            batch = producer.create_batch()
            batch.append(timestamp=None, key=None, value=b"3")
            await (await producer.send_batch(batch, topic, partition=0))
            if fails:
                raise KeyError("mine")
    sent = [trace_context_of(span).beans[0] for span in spans.take_all(f"send {topic}")]
    ends = [trace_context_of(span).beans[0] for span in spans.take_all(f"end_transaction {topic}")]
    assert {bean.msg_type for bean in sent} == {MessageType.TRANS_HALF}
    assert [bean.offset_msg_id for bean in ends] == [f"{topic}-0@{n}" for n in range(3)]
    assert ends[2].msg_id == f"{topic}-0@2"
    ended, half = ([(bean.msg_id, bean.transaction_id) for bean in beans] for beans in (ends, sent))
    assert ended == half
    state = TransactionState.ROLLBACK_MESSAGE if fails else TransactionState.COMMIT_MESSAGE
    assert {bean.transaction_state for bean in ends} == {state}


@pytest.mark.parametrize("by", ["all", "offsets", "transaction"])
async def test_settlement_is_linked_to_the_message_before_its_offset(handing, spans, kafka, topic, by):
    """As confluent-kafka's are; a transaction takes it from a consumer of its group in this process."""
    messages = {"value": b"1", "headers": [TRACEPARENT]}, b"2"
    async with handing(*messages, settle_spans=True) as consumer, producing(kafka, transactional_id=topic) as producer:
        await consumer.getone()
        offsets = {TopicPartition(topic, 0): (1, "checked") if by == "offsets" else 1}
        if by == "transaction":
            async with producer.transaction():
                await producer.send_offsets_to_transaction(offsets, "others")
                await producer.send_offsets_to_transaction(offsets, "billing")
        else:
            await consumer.commit(*([offsets] if by == "offsets" else []))
    name = "send_offsets" if by == "transaction" else "commit"
    settled = spans.take_all(f"{name} {topic}")
    assert [link.context.span_id for link in settled[-1].links] == [SENDER]
    assert not any(each.links for each in settled[:-1])
    groups = [each.attributes["messaging.consumer.group.name"] for each in settled]
    assert groups == (["others", "billing"] if by == "transaction" else ["billing"])
    assert {(each.kind, each.attributes["messaging.operation.name"]) for each in settled} == {(SpanKind.CLIENT, name)}
    handled = spans.take(f"process {topic}")
    for each in settled:
        assert (each.attributes["messaging.kafka.offset"], each.parent.span_id) == (1, handled.context.span_id)


async def test_commit_settles_nothing_of_a_partition_that_is_not_assigned_any_more(handing, spans, topic):
    async with handing(b"1", settle_spans=True) as consumer:
        await consumer.getone()
        consumer.unsubscribe()
        consumer.assign([TopicPartition(topic, 1)])
        await consumer.commit()
    assert "messaging.kafka.offset" not in spans.take("commit").attributes
    spans.take(f"process {topic}")


@pytest.mark.parametrize(
    ("offsets", "name", "error"),
    [
        ({TopicPartition("another", 0): 1}, "commit another", IllegalStateError),
        ({"another": 1}, "commit", TypeError),
        (1, "commit", ValueError),
    ],
)
async def test_failed_commit_is_an_error(handing, spans, offsets, name, error):
    async with handing(settle_spans=True) as consumer:
        with pytest.raises(error):
            await consumer.commit(offsets)
    assert spans.take(name).attributes["error.type"] == error.__name__


async def test_poll_that_waits_while_tracing_is_switched_off_opens_no_span(instrument, spans, kafka, topic):
    instrument()
    async with producing(kafka) as producer, consuming(kafka, topic) as consumer:
        waiting = asyncio.ensure_future(consumer.getone())
        await let_others_run()
        AioKafkaInstrumentor().uninstrument()
        await producer.send_and_wait(topic, b"1")
        await waiting
    spans.assert_empty()


async def test_client_made_before_is_traced_until_uninstrument(instrument, spans, kafka, topic):
    async with producing(kafka) as producer, consuming(kafka, topic) as consumer:
        await producer.send_and_wait(topic, b"1")
        instrument()
        await producer.send_and_wait(topic, b"2")
        await consumer.getone()
        AioKafkaInstrumentor().uninstrument()
        handled = spans.take(f"process {topic}")
        assert current_span_id() == 0
        await producer.send_and_wait(topic, b"3")
        assert [name for name, _ in (await consumer.getone()).headers] == ["traceparent", "UNIQ_KEY"]
        assert (await consumer.getone()).headers == ()
    assert spans.take(f"send {topic}").attributes["messaging.client.id"] == "shop"
    assert trace_context_of(handled).group_name == "billing"
    assert trace_context_of(handled).context_code is ContextCode.RETURNNULL
