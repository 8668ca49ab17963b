"""Records of a share consumer, without a broker for share groups: a subclass's poll returns real messages.

The same against a real Kafka: ``tests/peers/kafka/test_share_consumer.py``.
"""

from contextlib import nullcontext

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType, IllegalStateException, KafkaError, Message, Messages, TopicPartition
from opentelemetry.trace import StatusCode

from otel_mqtrace import process
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import trace_context_of
from tests.support.consuming import code_of, current_span_id
from tests.support.mailbox import SENDER, TRACEPARENT

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


class ScriptedShareConsumer(confluent_kafka.ShareConsumer):
    """A real share consumer whose polls return what a test says; it keeps the broker's rules of acknowledgement."""

    def __init__(self, conf):
        super().__init__(conf)
        self.asks = conf.get("share.acknowledgement.mode") == "explicit"
        self.batches = []
        self.unacknowledged = set()
        self.seen = []

    def poll(self, timeout=-1):
        self.seen.append(current_span_id())
        if self.asks and self.unacknowledged:
            raise IllegalStateException("records from previous poll have not been acknowledged")
        batch = self.batches.pop(0) if self.batches else []
        self.unacknowledged = {(each.topic(), each.partition(), each.offset()) for each in batch}
        return Messages(batch)

    def acknowledge(self, message, ack_type=ACCEPT):
        self.acknowledge_offset(message.topic(), message.partition(), message.offset(), ack_type)

    def acknowledge_offset(self, topic, partition, offset, ack_type=ACCEPT):
        if not self.asks:
            raise IllegalStateException("Failed to acknowledge message: Local: Erroneous state")
        self.unacknowledged.discard((topic, partition, offset))

    def commit_sync(self, timeout=60):
        return {TopicPartition("orders", 0, 0): None}

    def commit_async(self):
        pass


def _message(offset, *, topic="orders", count=1, headers=(TRACEPARENT,), error=None):
    content = {"value": b"x", "headers": list(headers), "timestamp": (1, 5)}
    return Message(topic=topic, partition=0, offset=offset, delivery_count=count, error=error, **content)


@pytest.fixture
def share(instrument, request):
    """Make a scripted share consumer; the subclass exists before tracing is switched on, so it is changed in place."""

    def make(*batches, mode="explicit", **options):
        instrument(**options)
        conf = {"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "log_level": 0}
        consumer = ScriptedShareConsumer({**conf, "share.acknowledgement.mode": mode})
        consumer.batches = [list(batch) for batch in batches]
        request.addfinalizer(consumer.close)
        return consumer

    return make


def test_poll_has_one_process_span_for_each_topic_with_its_links(share, spans):
    consumer = share([_message(0), _message(1), _message(0, topic="bills")], mode="implicit")
    consumer.poll(1)
    current = current_span_id()
    consumer.poll(1)
    orders, bills = spans.take("process orders"), spans.take("process bills")
    assert orders.context.span_id == current
    assert [link.context.span_id for link in orders.links] == [SENDER] * 2
    assert len(bills.links) == 1
    assert orders.attributes["messaging.batch.message_count"] == 2
    assert orders.attributes["messaging.consumer.group.name"] == "billing"
    assert orders.attributes["mqtrace.retry_times"] == 0
    assert (code_of(orders), current_span_id()) == (ContextCode.SUCCESS, 0)
    assert consumer.seen == [0, 0]


@pytest.mark.parametrize("by_offset", [False, True])
@pytest.mark.parametrize(
    ("acknowledgements", "code"),
    [
        ([(0, ACCEPT), (1, ACCEPT)], ContextCode.SUCCESS),
        ([(0, ACCEPT), (1, RELEASE)], ContextCode.FAILED),
        ([(0, REJECT), (1, ACCEPT)], ContextCode.FAILED),
        ([(0, 1), (1, 2)], ContextCode.FAILED),
        ([(0, RELEASE), (0, ACCEPT), (1, ACCEPT)], ContextCode.SUCCESS),
    ],
    ids=["accepted", "released", "rejected", "as numbers", "the last one counts"],
)
def test_acknowledgements_set_the_outcome(share, spans, acknowledgements, code, by_offset):
    consumer = share([_message(0), _message(1)])
    batch = consumer.poll(1)
    for offset, ack_type in acknowledgements:
        if by_offset:
            consumer.acknowledge_offset("orders", ack_type=ack_type, offset=offset, partition=0)
        else:
            consumer.acknowledge(ack_type=ack_type, message=batch[offset])
    spans.assert_empty()
    consumer.poll(1)
    span = spans.take()
    assert code_of(span) is code
    assert (span.status.status_code is StatusCode.ERROR) == (code is ContextCode.FAILED)


def test_refused_poll_ends_no_span(share, spans):
    consumer = share([_message(0)])
    (message,) = consumer.poll(1)
    current = current_span_id()
    with pytest.raises(IllegalStateException):
        consumer.poll(1)
    spans.assert_empty()
    assert current_span_id() == current
    consumer.acknowledge(message)
    consumer.poll(1)
    assert spans.take().context.span_id == current


def test_refused_acknowledgement_has_no_effect(share, spans):
    consumer = share([_message(0)], mode="implicit")
    (message,) = consumer.poll(1)
    with pytest.raises(IllegalStateException):
        consumer.acknowledge(message, REJECT)
    consumer.poll(1)
    assert code_of(spans.take()) is ContextCode.SUCCESS


@pytest.mark.parametrize(
    ("acknowledged", "fails", "outcome"),
    [
        ([0], False, (ContextCode.RETURNNULL, "RETURNNULL")),
        ([], True, (ContextCode.EXCEPTION, "RuntimeError")),
        ([0, 1], True, (ContextCode.SUCCESS, None)),
    ],
)
def test_closing_sets_the_outcome_of_what_was_not_acknowledged(share, spans, acknowledged, fails, outcome):
    """Without an exception the message comes again when its lock runs out, as when a RocketMQ listener returns nothing."""
    with pytest.raises(RuntimeError) if fails else nullcontext(), share([_message(0), _message(1)]) as consumer:
        batch = consumer.poll(1)
        for offset in acknowledged:
            consumer.acknowledge(batch[offset])
        if fails:
            raise RuntimeError("handler")
    span = spans.take()
    assert (code_of(span), span.attributes.get("error.type")) == outcome


class TestBlocks:
    def test_acknowledgement_inside_a_block_is_its_outcome(self, share, spans):
        sent_again = {"headers": [("RECONSUME_TIME", b"9")]}  # by an application: a delivery is not it
        messages = [_message(0, **sent_again), _message(1, count=2, **sent_again), _message(2, count=5)]
        consumer = share(messages, process_spans="explicit")
        batch = consumer.poll(1)
        for message, ack_type in zip(batch, (ACCEPT, RELEASE, ACCEPT), strict=True):
            with process(message) as handling:
                consumer.acknowledge(message, ack_type)
                if message.offset() == 2:
                    handling.outcome("RETURNNULL")
        ended = spans.take_all()
        assert [code_of(span) for span in ended] == [ContextCode.SUCCESS, ContextCode.FAILED, ContextCode.RETURNNULL]
        assert [span.attributes["mqtrace.retry_times"] for span in ended] == [0, 1, 4]

    def test_shared_batch_has_the_worst_outcome_of_its_blocks(self, share, spans):
        consumer = share([_message(0), _message(1)], [_message(2), _message(3)])
        for ack_types in ((ACCEPT, REJECT), (ACCEPT, ACCEPT)):
            for message, ack_type in zip(consumer.poll(1), ack_types, strict=True):
                with process(message):
                    consumer.acknowledge(message, ack_type)
        shared, *own = spans.take_all()
        assert (len(shared.links), code_of(shared)) == (2, ContextCode.FAILED)
        assert [code_of(span) for span in own] == [ContextCode.SUCCESS] * 2

    def test_message_released_outside_of_the_blocks_of_its_batch_has_failed(self, share, spans):
        consumer = share([_message(0), _message(1)])
        first, second = consumer.poll(1)
        with process(first):
            consumer.acknowledge(first)
        consumer.acknowledge(second, RELEASE)
        consumer.poll(1)
        assert code_of(spans.take()) is ContextCode.FAILED


def test_message_its_deserializer_refused_has_failed(share, spans):
    refused = KafkaError(KafkaError._VALUE_DESERIALIZATION, "not mine")
    lost = KafkaError(KafkaError._ALL_BROKERS_DOWN)
    consumer = share([_message(0, error=refused), _message(1), _message(2, error=lost)], mode="implicit")
    consumer.poll(1)
    span = spans.take()
    assert (code_of(span), span.attributes["messaging.kafka.offset"]) == (ContextCode.EXCEPTION, 0)
    consumer.poll(1)
    assert trace_context_of(spans.take()).beans[0].offset_msg_id == "orders-0@1"


@pytest.mark.parametrize(
    ("mode", "commit", "settled"),
    [("explicit", "commit_sync", [1]), ("explicit", "commit_async", [1]), ("implicit", "commit_sync", [0, 1])],
)
def test_commit_settles_the_acknowledged_messages_or_the_last_poll(share, spans, mode, commit, settled):
    consumer = share([_message(0), _message(1)], mode=mode, settle_spans=True)
    batch = consumer.poll(1)
    current = current_span_id()
    if mode == "explicit":
        consumer.acknowledge(batch[1])
    getattr(consumer, commit)()
    span = spans.take("commit orders")
    assert span.parent.span_id == current
    assert [link.context.span_id for link in span.links] == [SENDER] * len(settled)
    own = span.links if len(settled) > 1 else [span]
    assert [each.attributes["messaging.kafka.offset"] for each in own] == settled
    if mode == "explicit":
        consumer.acknowledge(batch[0])
    consumer.poll(1)
    spans.take("process orders")


def test_share_consumer_made_under_tracing_is_a_share_consumer(instrument, spans):
    instrument()
    conf = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    with confluent_kafka.ShareConsumer(conf) as consumer:
        assert isinstance(consumer, confluent_kafka.ShareConsumer)
        with pytest.raises(IllegalStateException, match="not subscribed"):
            consumer.poll(0)
