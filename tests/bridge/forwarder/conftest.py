import pytest

from bridge.forwarder.kafka_source import KafkaTraceSource
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.topics import put_messages


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
        shared = {"headers": [("KEYS", keys), ("KEYS", None)], **options}
        put_messages(self.servers, self.name, *({"value": body, **shared} for body in bodies))

    def source(self, **options):
        return KafkaTraceSource(self.servers, self.name, **options)


@pytest.fixture
def topic():
    with EmbeddedKafka() as kafka:
        yield TraceTopic(kafka)
