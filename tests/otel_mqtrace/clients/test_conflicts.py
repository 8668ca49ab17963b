"""Other instrumentations of the same client: recognised before and after ours, each told by its name and its switch."""

from __future__ import annotations

import gc
import logging

import confluent_kafka
import pytest
from opentelemetry.instrumentation.confluent_kafka import ConfluentKafkaInstrumentor
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace.clients.conflicts import INSTRUMENTATIONS, identify_class
from otel_mqtrace.clients.confluent_kafka.patching import find_foreign_class
from otel_mqtrace.clients.confluent_kafka.produce import producer as ours
from otel_mqtrace.instrumentor import MqTraceInstrumentor
from tests.support.opentelemetry_release import needs_sdk

SHAPES = {
    "Datadog's ddtrace": "ddtrace.contrib.internal.kafka.patch",
    "New Relic's agent": "newrelic.hooks.messagebroker_confluentkafka",
    "OpenTelemetry's own instrumentation": "opentelemetry.instrumentation.confluent_kafka",
    "SkyWalking's agent": "skywalking.plugins.sw_confluent_kafka",
}
"""Neighbour → the module its classes come from, as seen with ddtrace 4.16, newrelic 14.1 and contrib 0.66b1."""


@pytest.fixture
def stranger():
    made = []

    def make(module, base=None):
        made.append(type("Producer", (base or confluent_kafka.Producer,), {"__module__": module}))
        return made[-1]

    yield make
    made.clear()
    gc.collect()


@pytest.fixture
def incumbent():
    instrumentor = ConfluentKafkaInstrumentor()
    yield lambda: instrumentor.instrument(tracer_provider=TracerProvider())
    if instrumentor.is_instrumented_by_opentelemetry:
        instrumentor.uninstrument()


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_neighbour_is_known_by_its_classes(stranger, name):
    (known,) = [each for each in INSTRUMENTATIONS["confluent-kafka"] if each.name == name]
    assert identify_class("confluent-kafka", stranger(SHAPES[name])) == f"{name} (off with {known.switched_off_by})"


def test_the_clients_own_classes_are_nobodys(stranger):
    assert identify_class("confluent-kafka", ours.ORIGINAL_PRODUCER) is None
    assert identify_class("confluent-kafka", stranger("ddtracer.of.our.own")) is None


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_ours_steps_back_for_who_replaced_the_names(stranger, instrument, monkeypatch, caplog, name):
    """As Datadog, SkyWalking and OpenTelemetry do: one warning, with the name and the fix, and nothing is changed."""
    theirs = stranger(SHAPES[name])
    monkeypatch.setattr(confluent_kafka, "Producer", theirs)
    with caplog.at_level(logging.WARNING):
        instrument()
    assert confluent_kafka.Producer is theirs
    assert MqTraceInstrumentor().patches is None
    (said,) = [record.getMessage() for record in caplog.records if "already wraps" in record.getMessage()]
    assert name in said
    assert "off with" in said


def test_who_replaced_the_class_in_the_c_module_is_seen(stranger, monkeypatch):
    """As New Relic does before the package imports it: what we took for the original is none."""
    swapped = stranger(SHAPES["New Relic's agent"])
    monkeypatch.setattr(confluent_kafka, "Producer", swapped)
    assert "New Relic" in find_foreign_class([(swapped, stranger("cimpl", swapped))])


def test_who_comes_after_us_is_told_with_the_first_client(stranger, instrument, monkeypatch, caplog, kafka):
    instrument()
    monkeypatch.setattr(confluent_kafka, "Producer", stranger(SHAPES["Datadog's ddtrace"]))
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    assert len([record for record in caplog.records if "Datadog" in record.getMessage()]) == 1
    assert MqTraceInstrumentor().patches.survey()["wrappers"][0].startswith("Datadog's ddtrace")


@needs_sdk(40, "OpenTelemetry's instrumentation of that time wraps the client in another way")
def test_the_incumbent_after_us_is_told_and_no_message_is_traced_twice(
    instrument, incumbent, kafka, topic, spans, caplog
):
    """Its classes were made at its import, of the client's own: it takes over, and that is said."""
    instrument()
    incumbent()
    with caplog.at_level(logging.WARNING):
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0
    assert "OpenTelemetry's own instrumentation" in caplog.text
    spans.assert_empty()


def test_without_a_neighbour_nobody_is_named(instrument, kafka, caplog):
    with caplog.at_level(logging.WARNING):
        instrument()
        confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
    assert "wraps" not in caplog.text
    assert MqTraceInstrumentor().patches.survey()["wrappers"] == []
