import pytest
from confluent_kafka.cimpl import Producer

from bridge.forwarder.kafka_source import KafkaTraceSource
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.otlp_receiver import OtlpReceiver


@pytest.fixture
def receiver():
    with OtlpReceiver() as running:
        yield running


class TraceTopic:
    """A trace topic of three partitions on an embedded broker."""

    name = "RMQ_SYS_TRACE_TOPIC"

    def __init__(self, kafka):
        self.kafka, self.servers = kafka, kafka.bootstrap_servers
        self.url = f"kafka://{self.servers}/{self.name}"
        kafka.create_topic(self.name, 3)

    def send(self, *bodies, keys="k1 k2", **options):
        producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0, "log_level": 0})
        headers = [("KEYS", keys), ("KEYS", None)]
        for body in bodies:
            producer.produce(self.name, value=body, headers=headers, **options)
        assert producer.flush(20) == 0

    def source(self, **options):
        return KafkaTraceSource(self.servers, self.name, **options)


@pytest.fixture
def topic():
    with EmbeddedKafka() as kafka:
        yield TraceTopic(kafka)
