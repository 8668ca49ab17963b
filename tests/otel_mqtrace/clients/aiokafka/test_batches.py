"""aiokafka's batches: records that are encoded before anybody says which topic they are for."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.trace import SpanKind

from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.asyncio_kafka import consumer_of, play, producing


def _filled(producer, *messages):
    batch = producer.create_batch()
    for message in messages:
        assert batch.append(timestamp=None, **{"key": None, **message}) is not None
    return batch


async def _read(kafka, topic, count):
    with suppress_instrumentation():
        consumer = await consumer_of(kafka, topic)
        records = [await consumer.getone() for _ in range(count)]
        await consumer.stop()
    return [(each.value, [name for name, _ in each.headers]) for each in records]


def test_each_message_goes_by_the_place_it_came_to(instrument, spans, fill, kafka, topic):
    fill(topic, {"value": b"before"})
    instrument()

    async def story():
        async with producing(kafka) as producer:
            batch = _filled(
                producer,
                {"value": b"12", "key": b"k"},
                {"value": b"3456", "headers": [("UNIQ_KEY", b"MINE"), ("KEYS", b"a b"), ("TAGS", b"paid")]},
                {"value": None, "key": b"gone"},
            )
            assert isinstance(batch, BatchBuilder)
            answer = await (await producer.send_batch(batch, topic, partition=0))
            assert answer.offset == 1
        return await _read(kafka, topic, 4)

    read = play(story)
    assert read[1:] == [(b"12", []), (b"3456", ["UNIQ_KEY", "KEYS", "TAGS"]), (None, [])]
    sent = spans.take_all(f"send {topic}")
    beans = [trace_context_of(span).beans[0] for span in sent]
    assert [bean.offset_msg_id for bean in beans] == [f"{topic}-0@{n}" for n in (1, 2, 3)]
    assert [bean.msg_id for bean in beans] == [f"{topic}-0@1", "MINE", f"{topic}-0@3"]
    assert [bean.body_length for bean in beans] == [2, 4, 0]
    assert (beans[1].keys, beans[1].tags) == ("a b", "paid")
    assert sent[2].attributes["messaging.kafka.message.tombstone"] is True
    assert {span.kind for span in sent} == {SpanKind.CLIENT}


def test_serialisers_run_once_and_sizes_are_theirs(instrument, spans, kafka, topic):
    instrument()
    seen = []

    def serialise(value):
        seen.append(value)
        return str(value).encode()

    async def story():
        async with producing(kafka, value_serializer=serialise) as producer:
            await (await producer.send_batch(_filled(producer, {"value": 12345}), topic, partition=0))

    play(story)
    assert seen == [12345]
    assert trace_context_of(spans.take()).beans[0].body_length == 5


def test_a_full_batch_takes_no_more_and_neither_do_we(instrument, spans, kafka, topic):
    """What ``append`` refused is not sent, so it is not recorded."""
    instrument()

    async def story():
        async with producing(kafka, max_batch_size=200) as producer:
            batch = producer.create_batch()
            taken = 0
            while batch.append(timestamp=None, key=None, value=b"x" * 40) is not None:
                taken += 1
            await (await producer.send_batch(batch, topic, partition=0))
            return taken

    assert play(story) == len(spans.take_all(f"send {topic}"))


def test_what_the_client_adds_to_an_open_batch_is_recorded_as_a_send(instrument, spans, kafka, topic):
    """A batch that was not closed may be filled up by ``send``: once each, each at its own offset."""
    instrument()

    async def story():
        async with producing(kafka, linger_ms=50) as producer:
            batch = _filled(producer, {"value": b"1"})
            future = await producer.send_batch(batch, topic, partition=0)
            await asyncio.gather(future, producer.send_and_wait(topic, b"2", partition=0))
            assert batch.record_count() == 2
            assert (
                batch._mqtrace_appended.unsent == []
            )  # what was sent is not kept for the application that keeps its batches

    play(story)
    places = sorted(trace_context_of(span).beans[0].offset_msg_id for span in spans.take_all())
    assert places == [f"{topic}-0@0", f"{topic}-0@1"]


def test_send_each_gives_every_message_its_headers(instrument, spans, kafka, topic):
    """The same order, the same values, one future for all of them, as the batch would have had."""
    instrument(headerless_sends="send_each")

    async def story():
        async with producing(kafka, value_serializer=lambda value: str(value).encode()) as producer:
            batch = _filled(producer, {"value": 1}, {"value": 2, "headers": [("a", b"b")]})
            future = await producer.send_batch(batch, topic, partition=0)
            assert isinstance(future, asyncio.Future)
            assert (await future).offset == 0
            assert batch.append(timestamp=None, key=None, value=3) is None
        return await _read(kafka, topic, 2)

    assert play(story) == [(b"1", ["traceparent", "UNIQ_KEY"]), (b"2", ["a", "traceparent", "UNIQ_KEY"])]
    assert [span.kind for span in spans.take_all(f"send {topic}")] == [SpanKind.PRODUCER] * 2


def test_send_each_fails_as_the_batch_would_have(instrument, spans, kafka, topic):
    instrument(headerless_sends="send_each")

    async def story():
        async with producing(kafka, max_request_size=100, max_batch_size=1000) as producer:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_batch(_filled(producer, {"value": b"x" * 200}), topic, partition=0)

    play(story)
    assert spans.take().attributes["error.type"] == "MESSAGE_SIZE_TOO_LARGE"


@pytest.mark.parametrize("options", [{"headerless_sends": "leave"}, {"topic_exclude": "orders-*"}])
def test_a_batch_that_is_left_alone_is_the_clients_own(instrument, spans, kafka, topic, options):
    instrument(**options)

    async def story():
        async with producing(kafka) as producer:
            batch = _filled(producer, {"value": b"1"})
            assert hasattr(batch, "_mqtrace_appended") is ("headerless_sends" not in options)
            await (await producer.send_batch(batch, topic, partition=0))
        return await _read(kafka, topic, 1)

    assert play(story) == [(b"1", [])]


def test_a_batch_that_cannot_be_sent_fails_every_message(instrument, spans, kafka, topic):
    instrument()

    async def story():
        async with producing(kafka) as producer:
            batch = _filled(producer, {"value": b"1"}, {"value": b"2"})
            with pytest.raises(AssertionError, match="Unrecognized partition"):
                await producer.send_batch(batch, topic, partition=7)
            await (await producer.send_batch(batch, topic, partition=0))

    play(story)
    errors = [span.attributes.get("error.type") for span in spans.take_all()]
    assert errors == ["AssertionError"] * 2 + [None] * 2


def test_send_each_goes_on_where_it_stopped(instrument, spans, kafka, topic):
    instrument(headerless_sends="send_each")
    refused = []

    def serialise(value):
        if value == "poison" and refused.count(value) < 2:  # the batch's own encoding is the first to ask
            refused.append(value)
            if len(refused) == 2:
                raise ValueError("not now")
        return value.encode()

    async def story():
        async with producing(kafka, value_serializer=serialise) as producer:
            batch = _filled(producer, {"value": "first"}, {"value": "poison"})
            with pytest.raises(ValueError, match="not now"):
                await producer.send_batch(batch, topic, partition=0)
            assert (await (await producer.send_batch(batch, topic, partition=0))).offset == 0
        return await _read(kafka, topic, 2)

    assert [value for value, _ in play(story)] == [b"first", b"poison"]
    assert [span.attributes.get("error.type") for span in spans.take_all()] == ["ValueError", None, None]
