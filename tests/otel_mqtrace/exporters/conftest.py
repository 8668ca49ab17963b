"""What the tests of the native exporters share: traced processors, and a broker that has the trace topic."""

import pytest

from bridge.forwarder.kafka_source import KafkaTraceSource
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.landings import drain_records
from tests.support.native_spans import traced as trace_with

TOPIC = "RMQ_SYS_TRACE_TOPIC"


@pytest.fixture
def traced(request):
    """Make a processor of an exporter and the function that traces a context through it; shut all down at the end."""

    def make(*exporters, **options):
        processor, trace = trace_with(*exporters, **options)
        request.addfinalizer(processor.shutdown)
        return processor, trace

    return make


@pytest.fixture
def exported(traced):
    """Trace contexts through a processor of an exporter and flush it, with success; return the processor."""

    def export(exporter, *contexts, **options):
        processor, trace = traced(exporter, **options)
        trace(*contexts)
        assert processor.force_flush()
        return processor

    return export


@pytest.fixture
def kafka():
    with EmbeddedKafka() as embedded:
        embedded.create_topic(TOPIC)
        yield embedded


@pytest.fixture
def landed(kafka):
    def read(topic=TOPIC):
        with KafkaTraceSource(kafka.bootstrap_servers, topic) as source:
            return drain_records(source)

    return read


@pytest.fixture
def arrived(landed):
    return lambda topic=TOPIC: [record.beans[0].msg_id for record in landed(topic)[1]]
