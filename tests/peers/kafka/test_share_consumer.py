"""A share group against a real Kafka: what is released comes again, and its spans count the deliveries."""

import confluent_kafka
import pytest
from confluent_kafka import AcknowledgeType, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from otel_mqtrace import process
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import trace_context_of
from tests.peers.peer import until
from tests.peers.traced import recording

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(not hasattr(confluent_kafka, "ShareConsumer"), reason="share groups need confluent-kafka 2.15"),
]
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
PATIENCE_SECONDS = 60


@pytest.fixture
def spans():
    with recording(settle_spans=True) as exporter:
        yield exporter


@pytest.fixture
def group_of(kafka, request):
    """Make a topic and a share group that reads it from its beginning, both of one name; returns a consumer."""

    def make(name, values, **conf):
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
        group = ConfigResource(ResourceType.GROUP, name, incremental_configs=[entry])
        for done in admin.incremental_alter_configs([group]).values():
            done.result(30)
        topic = kafka.create_topic(name)  # after the group's settings: a broker that knows the topic has them too
        # One batch: a poll then gives all of it.
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 10_000})
        producer.list_topics(topic, 30)
        for value in values:
            producer.produce(topic, value)
        assert producer.flush(30) == 0
        consumer = confluent_kafka.ShareConsumer(
            {"bootstrap.servers": kafka.bootstrap_servers, "group.id": name, "log_level": 0, **conf}
        )
        consumer.subscribe([topic])
        request.addfinalizer(consumer.close)
        return consumer

    return make


EXPLICIT = {"share.acknowledgement.mode": "explicit"}


def _poll(consumer):
    batch = until(lambda: consumer.poll(1), bool, patience_s=PATIENCE_SECONDS)
    assert batch, "no message came"
    return batch


def _described(span):
    record = trace_context_of(span)
    return record.beans[0].retry_times, record.context_code


def test_released_message_is_delivered_again_and_counted(group_of, spans):
    consumer = group_of("peer-share-released", [b"x"], **EXPLICIT)
    sent = spans.take("send peer-share-released")
    for ack_type in (RELEASE, RELEASE, ACCEPT):
        (message,) = _poll(consumer)
        consumer.acknowledge(message, ack_type)
    consumer.close()
    processed = spans.take_all("process peer-share-released")
    assert [_described(span) for span in processed] == [
        (0, ContextCode.FAILED),
        (1, ContextCode.FAILED),
        (2, ContextCode.SUCCESS),
    ]
    assert {link.context.span_id for span in processed for link in span.links} == {sent.context.span_id}
    assert len({span.attributes["mqtrace.request_id"] for span in processed}) == 3
    assert {span.attributes["messaging.consumer.group.name"] for span in processed} == {"peer-share-released"}


def test_rejected_message_is_not_delivered_again(group_of, spans):
    consumer = group_of("peer-share-rejected", [b"good", b"bad"], **EXPLICIT)
    outcomes = []
    consumer.set_acknowledgement_commit_callback(lambda offsets, problem: outcomes.append((offsets, problem)))
    seen = []
    while len(seen) < 2:
        for message in _poll(consumer):
            with process(message):
                consumer.acknowledge(message, REJECT if message.value() == b"bad" else ACCEPT)
            seen.append(message)
    assert set(consumer.commit_sync(30).values()) == {None}
    assert [message.offset() for message in consumer.poll(3)] == []
    consumer.close()
    processed = spans.take_all("process peer-share-rejected")
    assert [_described(span)[1] for span in processed] == [ContextCode.FAILED]
    commit = spans.take("commit peer-share-rejected")
    assert sorted(link.attributes["messaging.kafka.offset"] for link in commit.links) == [0, 1]
    assert [(set().union(*offsets.values()), problem) for offsets, problem in outcomes] == [({0, 1}, None)]


def test_next_poll_accepts_without_acknowledgements(group_of, spans):
    consumer = group_of("peer-share-implicit", [b"x"])
    _poll(consumer)
    assert len(consumer.poll(2)) == 0
    consumer.close()
    assert [_described(span) for span in spans.take_all("process peer-share-implicit")] == [(0, ContextCode.SUCCESS)]


def test_unacknowledged_message_is_returnnull_and_delivered_again(kafka, group_of, spans):
    consumer = group_of("peer-share-left", [b"x"], **EXPLICIT)
    _poll(consumer)
    consumer.close()
    assert _described(spans.take("process peer-share-left")) == (0, ContextCode.RETURNNULL)
    conf = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "peer-share-left", "log_level": 0, **EXPLICIT}
    with confluent_kafka.ShareConsumer(conf) as second:
        second.subscribe(["peer-share-left"])
        (message,) = _poll(second)
        assert message.delivery_count() == 2
        second.acknowledge(message)
    assert _described(spans.take("process peer-share-left")) == (1, ContextCode.SUCCESS)
