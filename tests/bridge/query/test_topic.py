"""A Kafka trace topic is searched to its end, and an instrumented application's message is found on it."""

import confluent_kafka
import pytest
from confluent_kafka.cimpl import Producer as OwnProducer

from bridge.query.findings import findings, in_one_sentence
from bridge.query.kafka_archive import TopicArchive
from bridge.query.search import ArrivalRange
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.archives import ID, T0, TOPIC, consume, landed, pub, search_once

MESSAGES = landed(pub(), *consume("R1", T0 + 50), pub(T0 + 9, msg_id="OTHER"))


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka() as broker:
        yield broker


def _filled(kafka, topic, messages, *, partitions=3):
    kafka.create_topic(topic, partitions)
    producer = OwnProducer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "log_level": 0})
    for number, message in enumerate(messages):
        producer.produce(
            topic,
            message.body,
            partition=number % partitions,
            headers=[("KEYS", message.keys)],
            timestamp=message.arrival_ms,
        )
    assert producer.flush(20) == 0
    return topic


def _search(kafka, *topics, **options):
    return search_once(TopicArchive(kafka.bootstrap_servers, topics, **options), ID)


def test_all_partitions_are_read_to_their_end(kafka):
    answer = _search(kafka, _filled(kafka, "all", MESSAGES))
    (story,) = answer.stories
    assert in_one_sentence(story) == "Sent once; consumed by 1 group."
    assert answer.searched.messages == len(MESSAGES)
    places = {(place.partition, place.offset) for send in story.sends for one in send.evidence for place in one.places}
    assert places == {(0, 0)}


def test_record_is_found_despite_its_keys_header(kafka):
    bare = [type(message)(source=TOPIC, arrival_ms=T0, body=message.body, keys="other") for message in MESSAGES]
    (story,) = _search(kafka, _filled(kafka, "keyless", bare)).stories
    assert story.records == 3


def test_several_topics_are_searched_together(kafka):
    """A cloud client's halves may lie on two."""
    halves = [_filled(kafka, "first", MESSAGES[:2]), _filled(kafka, "second", MESSAGES[2:3])]
    (story,) = _search(kafka, *halves).stories
    assert (findings(story), story.records) == ((), 3)


def test_messages_that_arrived_later_are_left_out(kafka):
    answer = _search(kafka, _filled(kafka, "until", MESSAGES), arrivals=ArrivalRange(None, T0))
    assert [(len(story.sends), story.groups) for story in answer.stories] == [(1, ())]
    assert (answer.searched.messages, answer.searched.last_arrival_ms) == (1, T0)


def test_empty_topic_is_searched_at_once(kafka):
    answer = _search(kafka, _filled(kafka, "empty", []))
    assert (answer.stories, answer.searched.messages) == ((), 0)


def test_large_topic_is_read_in_batches_with_progress(kafka):
    seen = []
    many = [type(MESSAGES[0])(source=TOPIC, arrival_ms=T0, body=b"x" * 50) for _ in range(1700)]
    topic = _filled(kafka, "many", [*many, *MESSAGES])
    answer = _search(kafka, topic, on_progress=lambda done, whole: seen.append((done, whole)))
    assert (answer.searched.messages, seen[-1]) == (1704, (1704, 1704))


def test_broker_that_does_not_answer_is_one_line():
    with pytest.raises(PeerError, match=r"127\.0\.0\.1:1 does not answer.*check the address"):
        search_once(TopicArchive("127.0.0.1:1", [TOPIC], timeout_ms=200), ID)


def test_properties_that_the_client_refuses_are_a_usage_error():
    with pytest.raises(UsageError, match="cannot be built") as refused:
        TopicArchive("127.0.0.1:1", [TOPIC], kafka_config={"no.such": "x", "sasl.password": "secret"})
    assert "secret" not in str(refused.value)


def test_topic_that_cannot_be_read_is_one_line(kafka):
    kafka.create_topic("forbidden")
    kafka.set_topic_error("forbidden", confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(PeerError, match="the trace topic forbidden cannot be read"):
        _search(kafka, "forbidden")
