"""This module knows the one story that the promises about spans and records are read from, and what the others share."""

from __future__ import annotations

import confluent_kafka
import pytest

from otel_mqtrace import MqTraceInstrumentor
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from tests.contract.story import told

# The parts every instrumentation test is made of; a fixture is known by its name in this module.
from tests.otel_mqtrace.conftest import consumer_of, fill, instrument, kafka, spans, topic  # noqa: F401


@pytest.fixture(scope="session")
def story():
    """Sends, polls, a failure, a batch, a transaction, with both outputs, on a broker of its own."""
    with EmbeddedKafka() as broker:
        return told(broker)


@pytest.fixture
def own_kafka():
    """A broker whose trace topic nobody else writes to."""
    with EmbeddedKafka() as broker:
        yield broker


@pytest.fixture
def clean(monkeypatch):
    """No setting of the environment, no warning said before, and nothing instrumented afterwards."""
    monkeypatch.setattr("otel_mqtrace.config._warned", set())
    yield
    if MqTraceInstrumentor().is_instrumented_by_opentelemetry:
        MqTraceInstrumentor().uninstrument()


@pytest.fixture
def send(own_kafka):
    """Send one message as an application does, by the name the client has now."""

    def put(name="orders", **message):
        producer = confluent_kafka.Producer({"bootstrap.servers": own_kafka.bootstrap_servers, "log_level": 0})
        producer.produce(name, **{"value": b"an order", **message})
        assert producer.flush(20) == 0

    return put
