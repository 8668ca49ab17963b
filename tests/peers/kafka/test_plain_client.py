"""The embedded broker's behaviour, compared with a real Kafka."""

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

pytestmark = pytest.mark.peers


@pytest.fixture
def producer(kafka):
    """An idempotent producer with short patience."""
    return Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 10_000, "enable.idempotence": True},
    )


def _report_of(producer, topic, value, **more):
    reports = []
    producer.produce(topic, value, on_delivery=lambda error, message: reports.append((error, message)), **more)
    assert producer.flush(30) == 0
    return reports[0]


def test_headers_come_back_as_they_went(kafka, producer):
    topic = kafka.create_topic("peer-headers")
    headers = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b""), ("binary", b"\x00\xff")]
    error, _ = _report_of(producer, topic, b"x", key="钥匙", headers=headers)
    assert error is None
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "peer-headers", "auto.offset.reset": "earliest"},
    )
    consumer.subscribe([topic])
    message = consumer.poll(30)
    consumer.close()
    assert message is not None
    assert (message.headers(), message.key().decode()) == (headers, "钥匙")


def test_an_unknown_topic_fails_in_the_report(producer):
    """``produce`` returns; the report says why nothing was stored."""
    error, _ = _report_of(producer, "peer-no-such-topic", b"x")
    assert error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._MSG_TIMED_OUT}


def test_a_value_above_the_topic_s_limit_fails_in_the_report(kafka, producer):
    """The broker refuses it, and the client only learns so later."""
    topic = kafka.create_topic("peer-small", max_message_bytes="1000")
    error, _ = _report_of(producer, topic, b"x" * 5000)
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def test_a_value_above_the_client_s_limit_fails_in_the_call(producer):
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        producer.produce("peer-any", b"x" * 2_000_000)
