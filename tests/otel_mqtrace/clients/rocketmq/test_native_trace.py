"""RocketMQ's message trace, back for users of the gRPC client: what the native records of its messages say."""

from __future__ import annotations

import base64
import json

import rocketmq

from otel_mqtrace.instrumentor import RocketMqInstrumentor
from otel_mqtrace.model import ContextCode, MessageType, TraceType, TransactionState
from otel_mqtrace.wire.native import decode_body


class _Commits(rocketmq.TransactionChecker):
    def check(self, message):
        return rocketmq.TransactionResolution.COMMIT


def _records(landing):
    lines = [line for part in landing.glob("native/date=*/part-*.jsonl") for line in part.read_text().splitlines()]
    bodies = [decode_body(base64.b64decode(json.loads(line)["body_base64"])) for line in lines]
    assert [error for body in bodies for error in body.errors] == []
    contexts = [each for body in bodies for each in body.contexts]
    return {(each.beans[0].msg_id, each.trace_type): each for each in contexts}, len(contexts)


def test_a_message_leaves_the_records_of_a_native_client(
    instrument, started, consumer_of, spans, message, topic, tmp_path
):
    """A send, both halves of a consume, a transaction and a recall, written by ``mqtrace_native_file``."""
    provider = instrument(exporters=["mqtrace_native_file"], landing_dir=str(tmp_path), group_name="order-producers")
    producer = started(rocketmq.Producer, None, _Commits())
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
    records, count = _records(tmp_path)
    assert count == len(records) == 7
    pub = records[sent.message_id, TraceType.PUB]
    assert (pub.group_name, pub.region_id, pub.success) == ("order-producers", "DefaultRegion", True)
    (bean,) = pub.beans
    assert (bean.topic, bean.tags, bean.keys, bean.body_length) == (topic, "paid", "order-1", 5)
    assert bean.msg_type is MessageType.NORMAL
    before, after = records[sent.message_id, TraceType.SUB_BEFORE], records[sent.message_id, TraceType.SUB_AFTER]
    assert (before.group_name, before.beans[0].keys, before.beans[0].retry_times) == ("billing", "order-1", 0)
    assert (after.request_id, after.context_code) == (before.request_id, ContextCode.SUCCESS)
    end = records[half.message_id, TraceType.END_TRANSACTION].beans[0]
    assert (end.transaction_id, end.transaction_state) == (half.transaction_id, TransactionState.COMMIT_MESSAGE)
    assert end.from_transaction_check is False
    assert records[half.message_id, TraceType.PUB].beans[0].msg_type is MessageType.TRANS_HALF
    assert records[delayed.message_id, TraceType.PUB].beans[0].msg_type is MessageType.DELAY
    assert records[delayed.message_id, TraceType.RECALL].success is True
