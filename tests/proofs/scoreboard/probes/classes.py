"""Probes of the client's other classes: serialising, batch, asyncio, share, and their lifetimes."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka import DeserializingConsumer, Message, Messages, SerializingProducer, TopicPartition, cimpl
from confluent_kafka.aio import AIOConsumer, AIOProducer
from confluent_kafka.serialization import StringDeserializer, StringSerializer

from tests.proofs.scoreboard.stage import Seen, current_span_id, span_id

if TYPE_CHECKING:
    from tests.proofs.scoreboard.stage import Stage


class Release:
    """The answer of a share group that hands over two messages once, the second for the third time."""

    def __init__(self, topic: str) -> None:
        again = Message(topic=topic, partition=0, offset=8, value=b"an order")
        self.batch = [Messages([Message(topic=topic, partition=0, offset=7, value=b"an order"), again])]


class CannedShareConsumer(cimpl.ShareConsumer):
    """A share consumer whose poll answers by itself: the embedded broker has no share groups."""

    answers: Release

    def poll(self, *_args: Any, **_kwargs: Any) -> Any:
        return self.answers.batch.pop() if self.answers.batch else Messages([])

    def acknowledge(self, *_args: Any, **_kwargs: Any) -> None:
        """Accept every answer."""


def _conf(stage: Stage, **more: Any) -> dict[str, Any]:
    return {"bootstrap.servers": stage.servers, "log_level": 0, **more}


def serialising(stage: Stage) -> Seen:
    """``SerializingProducer`` and ``DeserializingConsumer``, imported before instrumentation."""
    stage.instrument()
    producer = SerializingProducer(_conf(stage, **{"value.serializer": StringSerializer()}))
    producer.produce(stage.topic, value="an order")
    producer.flush(20)
    consumer = DeserializingConsumer(
        _conf(stage, **{"group.id": "billing", "value.deserializer": StringDeserializer()})
    )
    consumer.assign([TopicPartition(stage.topic, 0, 0)])
    stage.poll(consumer)
    consumer.close()
    return Seen(bool(stage.spans("send")) and bool(stage.spans("process")), stage.names())


def _batch(stage: Stage, count: int) -> None:
    producer = stage.producer()
    producer.produce_batch(stage.topic, [{"value": b"an order"} for _ in range(count)])
    producer.flush(20)


async def _from_asyncio(stage: Stage) -> None:
    producer = AIOProducer(_conf(stage))
    future = await producer.produce(stage.topic, b"an order")
    await producer.flush()
    await future
    await producer.close()


def batches(stage: Stage) -> Seen:
    """``produce_batch`` and ``AIOProducer``: a span for each message."""
    stage.instrument()
    _batch(stage, 2)
    asyncio.run(_from_asyncio(stage))
    return Seen(len(stage.spans("send")) == 3, f"2 messages of a batch and 1 of AIOProducer: {stage.names()}")


def batch_meets_consumer(stage: Stage) -> Seen:
    """``produce_batch``: headers are impossible, so both sides go by one id."""
    stage.instrument()
    _batch(stage, 2)
    consumer = stage.consumer()
    for _ in range(2):
        stage.poll(consumer)
    consumer.close()
    sent, read = (
        {span.attributes.get("messaging.message.id") for span in stage.spans(word)} for word in ("send", "process")
    )
    together = len(sent & read)
    return Seen(together == 2, f"of 2 messages, under one id on both sides: {together}")


async def _read_in_asyncio(stage: Stage) -> tuple[int, int]:
    """Return the span current in the handler, and the one current in the client's own thread afterwards."""
    consumer = AIOConsumer(_conf(stage, **{"group.id": "billing"}), max_workers=1)
    await consumer.assign([TopicPartition(stage.topic, 0, 0)])
    message = None
    while message is None:
        message = await consumer.poll(1)
    with stage.handling(message):
        inside = current_span_id()
    left = await asyncio.get_running_loop().run_in_executor(consumer.executor, current_span_id)
    await consumer.close()
    return inside, left


def asyncio_consumer(stage: Stage) -> Seen:
    """``AIOConsumer``: the process span is current in the coroutine, and not in the client's thread."""
    stage.instrument()
    stage.fill()
    inside, left = asyncio.run(_read_in_asyncio(stage))
    ids = {span_id(span) for span in stage.spans("process")}
    evidence = (
        f"current in the coroutine: {'its span' if inside in ids else 'none'}; in the client's thread afterwards: "
        f"{'a span' if left else 'none'}; errors logged: {len(stage.complaints)}"
    )
    return Seen(inside in ids and not left and not stage.complaints, evidence)


def asyncio_clients(stage: Stage) -> Seen:
    """``AIOProducer`` and ``AIOConsumer``: both traced, the second where the message is handled."""
    stage.instrument()
    asyncio.run(_from_asyncio(stage))
    inside, _ = asyncio.run(_read_in_asyncio(stage))
    stage.forget()
    ids = {span_id(span) for span in stage.spans("process")}
    evidence = f"{stage.names()}; current in the coroutine: {'its span' if inside in ids else 'none'}"
    traced = bool(stage.spans("send")) and bool(ids) and inside in ids
    return Seen(traced or ("partly" if stage.spans() else False), evidence)


def share_consumer(stage: Stage) -> Seen:
    """``ShareConsumer``: a batch is handed over, one message accepted, one released."""
    stage.instrument()
    CannedShareConsumer.answers = Release(stage.topic)
    consumer = CannedShareConsumer(_conf(stage, **{"group.id": "billing", "share.acknowledgement.mode": "explicit"}))
    messages = list(consumer.poll(1))
    for message, answer in zip(messages, (1, 2), strict=True):
        consumer.acknowledge(message, confluent_kafka.AcknowledgeType(answer))
    consumer.close()
    stage.forget()
    spans = stage.spans("process")
    codes = sorted({str(span.attributes.get("mqtrace.context_code")) for span in spans})
    evidence = f"poll answered by a subclass, no share group here: {stage.names()}"
    return Seen(bool(spans) and "FAILED" in codes, f"{evidence}; outcome: {', '.join(codes)}" if spans else evidence)


def settlements(stage: Stage) -> Seen:
    """A commit of the application leaves a span, if asked for."""
    stage.instrument(settle_spans=True)
    stage.fill()
    consumer = stage.consumer()
    message = stage.poll(consumer)
    consumer.commit(message, asynchronous=False)
    consumer.close()
    return Seen(bool(stage.spans("commit")), stage.names())


def _left_open(stage: Stage) -> None:
    consumer = stage.consumer()
    while True:
        stage.poll(consumer)
        break


def left_loop(stage: Stage) -> Seen:
    """A function reads one message, breaks out of its loop and returns without ``close()``; the application goes on."""
    stage.instrument()
    stage.fill()
    _left_open(stage)
    stage.forget()
    current = bool(current_span_id())
    stage.poll(stage.consumer())  # a collected consumer's span is recorded by the next hook: a finaliser may do nothing
    ended = len(stage.spans("process"))
    evidence = f"current afterwards: {'its span' if current else 'none'}; process spans that ended: {ended} of 1"
    return Seen(not current and ended == 1, evidence)


def closed_elsewhere(stage: Stage) -> Seen:
    """One thread polls, another closes."""
    stage.instrument()
    stage.fill()
    consumer = stage.consumer()
    stage.poll(consumer)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(20)
    current = bool(current_span_id())
    evidence = (
        f"current in the polling thread: {'its span' if current else 'none'}; errors logged: {len(stage.complaints)}"
    )
    return Seen(not current and not stage.complaints and len(stage.spans("process")) == 1, evidence)


def threads_and_tasks(stage: Stage) -> Seen:
    """Two consumers polled in turns on one thread, one in a coroutine, one closed by another thread."""
    stage.instrument()
    stage.fill({"value": b"1"})
    first, second = (stage.consumer(**{"group.id": f"{stage.topic}-{n}"}) for n in (1, 2))
    for consumer in (first, second):
        stage.poll(consumer)
    for consumer in (first, second):
        consumer.close()
    after_two = bool(current_span_id())
    _, left = asyncio.run(_read_in_asyncio(stage))
    third = stage.consumer(**{"group.id": f"{stage.topic}-3"})
    stage.poll(third)
    closing = threading.Thread(target=third.close)
    closing.start()
    closing.join(20)
    leaks = [after_two, bool(left), bool(current_span_id())]
    evidence = f"places where a span stayed current: {sum(leaks)} of 3; errors logged: {len(stage.complaints)}"
    return Seen(not any(leaks) and not stage.complaints, evidence)


def other_methods(stage: Stage) -> Seen:
    """An object that was made before, traced by hand if the subject has a call for that, keeps all its methods."""
    producer, consumer = stage.producer(), stage.consumer()
    stage.instrument()
    by_hand = stage.subject.instrumentor()
    if hasattr(by_hand, "instrument_producer"):
        producer = by_hand.instrument_producer(producer, stage.provider)
        consumer = by_hand.instrument_consumer(consumer, stage.provider)
    calls = {
        "Producer.list_topics": lambda: producer.list_topics(timeout=20),
        "Producer.__len__": lambda: len(producer),
        "Producer.cluster_id": lambda: producer.cluster_id(20),
        "Consumer.list_topics": lambda: consumer.list_topics(timeout=20),
        "Consumer.assignment": consumer.assignment,
        "Consumer.position": lambda: consumer.position([TopicPartition(stage.topic, 0)]),
        "Consumer.memberid": consumer.memberid,
        "Consumer.consumer_group_metadata": consumer.consumer_group_metadata,
        "Consumer.unsubscribe": consumer.unsubscribe,
    }
    broken = [name for name, call in calls.items() if not _works(call)]
    return Seen(not broken, f"{len(calls) - len(broken)} of {len(calls)} work; broken: {', '.join(broken) or 'none'}")


def _works(call: Any) -> bool:
    try:
        call()
    except Exception:  # noqa: BLE001 - whatever it raises, it does not work
        return False
    return True


def surroundings(stage: Stage) -> Seen:
    """Commit, transactions and the share consumer: at least one span each."""
    stage.instrument(settle_spans=True)
    stage.fill()
    consumer = stage.consumer()
    consumer.commit(stage.poll(consumer), asynchronous=False)
    consumer.close()
    producer = stage.producer(**{"transactional.id": f"{stage.topic}-transactions"})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(stage.topic, b"an order")
    producer.commit_transaction(20)
    settled, ended, before = stage.spans("commit"), stage.spans("end_transaction"), len(stage.spans("process"))
    share = share_consumer_spans(stage) - before
    counts = {"commit": len(settled), "end of a transaction": len(ended), "share consumer": share}
    return Seen(all(counts.values()), ", ".join(f"{what}: {count}" for what, count in counts.items()))


def share_consumer_spans(stage: Stage) -> int:
    """Let a share consumer take a batch; return how many process spans there are then."""
    CannedShareConsumer.answers = Release(stage.topic)
    consumer = CannedShareConsumer(_conf(stage, **{"group.id": "billing"}))
    consumer.poll(1)
    consumer.close()
    stage.forget()
    return len(stage.spans("process"))
