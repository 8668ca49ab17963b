"""The query against a real Kafka: a range of time becomes the offsets that hold it."""

from time import time

import pytest
from confluent_kafka.cimpl import Producer as OwnProducer

from bridge.query.kafka_archive import MARGIN_MS, TopicArchive
from bridge.query.search import ArrivalRange
from tests.support.archives import landed, pub, search_once
from tests.support.topics import put_messages

pytestmark = pytest.mark.peers

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def begin_ms():
    """Twelve hours ago by the machine's clock, as the broker's retention goes."""
    return int(time() * 1000) - 12 * HOUR_MS


@pytest.fixture(scope="module")
def topic(kafka, begin_ms):
    """One trace message an hour, M0 to M11, over two partitions, the second one behind the first."""
    name = kafka.create_topic("peer-query-hours", partitions=2)
    _put_each(kafka, name, [begin_ms + hour * HOUR_MS for hour in range(12)], partitions=2)
    return name


def _put_each(kafka, topic, times_ms, **options):
    messages = landed(*(pub(at_ms, msg_id=f"M{number}") for number, at_ms in enumerate(times_ms)))
    stamped = ({"value": each.body, "timestamp": at_ms} for each, at_ms in zip(messages, times_ms, strict=True))
    put_messages(kafka.bootstrap_servers, topic, *stamped, **options)


def _search(kafka, topic, arrivals, *msg_ids, key=None):
    steps = [(0, 0)]
    archive = TopicArchive(
        kafka.bootstrap_servers, [topic], arrivals=arrivals, on_progress=lambda *at: steps.append(at)
    )
    answer = search_once(archive, *msg_ids, key=key)
    return [story.msg_id for story in answer.stories], answer.searched.messages, steps[-1]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (None, None, range(12)),
        (3, 5, range(3, 6)),
        (3, None, range(3, 12)),
        (11, None, [11]),
        (20, None, []),
        (None, 2, range(3)),
        (None, -1, []),
    ],
)
def test_messages_of_a_time_range_are_found(kafka, topic, begin_ms, first, last, expected):
    bounds = [None if hour is None else begin_ms + hour * HOUR_MS for hour in (first, last)]
    found, read, progress = _search(kafka, topic, ArrivalRange(*bounds), key="order-1")
    assert (found, read, progress) == ([f"M{hour}" for hour in expected], len(expected), (len(expected),) * 2)


def test_message_with_a_timestamp_out_of_order_is_found(kafka, begin_ms):
    name = kafka.create_topic("peer-query-out-of-order")
    _put_each(kafka, name, [begin_ms + late_ms for late_ms in (0, MARGIN_MS - 1_000, 500)])
    found, *_ = _search(kafka, name, ArrivalRange(begin_ms, begin_ms + 1_000), "M0", "M1", "M2")
    assert found == ["M0", "M2"]


def test_topic_with_transactions_is_read_to_its_end(kafka, begin_ms):
    name = kafka.create_topic("peer-query-transactions")
    producer = OwnProducer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": name, "log_level": 0})
    producer.init_transactions(30)
    for number, finish in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        (message,) = landed(pub(begin_ms, msg_id=f"M{number}"))
        producer.produce(name, message.body)
        assert producer.flush(30) == 0  # to abort throws away what was not sent
        finish(30)
    kafka.settle(name)
    assert _search(kafka, name, ArrivalRange(), "M0", "M1")[0] == ["M0"]
