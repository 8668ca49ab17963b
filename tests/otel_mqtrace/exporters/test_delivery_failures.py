"""What is said of a delivery that fails names the broker, the topic and the setting that fixes it."""

from __future__ import annotations

import logging

import pytest

from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from tests.support.native_spans import pub, traced
from tests.support.shown import shown

NOT_AUTHORISED = 29
PRODUCE, TOO_LARGE = 0, 10
DEAD = "127.0.0.1:1"


@pytest.fixture
def said(caplog):
    """A function: exports one record with an exporter and returns the warnings told of its delivery."""

    def export(exporter, timeout_ms=300):
        processor, trace = traced(exporter, export_timeout_millis=timeout_ms, max_export_batch_size=1)
        trace(pub(1))
        with caplog.at_level(logging.WARNING):
            processor.run_once()
        exporter.shutdown(timeout_millis=0)
        return [r.getMessage() for r in caplog.records if r.name == "otel_mqtrace.exporters.native_delivery"]

    return export


def test_a_dead_broker_is_named_with_the_topic_and_the_setting(said):
    """Whether librdkafka gave up, or we purged at our own deadline, it is one cause and one line."""
    [line] = said(NativeKafkaSpanExporter(bootstrap_servers=DEAD, trace_topic="MY_TRACE"))
    assert "not delivered" in line
    assert all(word in line for word in (DEAD, "MY_TRACE", "MQTRACE_BOOTSTRAP_SERVERS"))
    assert "PURGE" not in line


def test_our_own_purge_reads_as_no_answer(said):
    """At a deadline before librdkafka's own."""
    exporter = NativeKafkaSpanExporter(bootstrap_servers=DEAD, export_timeout_millis=60_000)
    [line] = said(exporter, timeout_ms=100)
    assert "in time" in line
    assert "PURGE" not in line


def test_a_broker_that_does_not_allow_it_is_told_with_the_setting(said):
    with EmbeddedKafka() as kafka:
        kafka.create_topic("MY_TRACE")
        kafka.set_topic_error("MY_TRACE", NOT_AUTHORISED)
        servers = kafka.bootstrap_servers
        lines = said(NativeKafkaSpanExporter(bootstrap_servers=servers, trace_topic="MY_TRACE"), timeout_ms=5_000)
    [line] = lines
    assert all(word in line for word in (servers, "MY_TRACE", "TOPIC_AUTHORIZATION_FAILED", "MQTRACE_KAFKA_CONFIG"))


def test_a_wrong_property_is_told_with_the_setting(said):
    exporter = NativeKafkaSpanExporter(bootstrap_servers=DEAD, kafka_config={"nonsense.key": "1"})
    [line] = said(exporter)
    assert all(word in line for word in (DEAD, "nonsense.key", "MQTRACE_KAFKA_CONFIG"))


def test_with_a_spool_nothing_is_said_to_be_lost(said, tmp_path):
    [line] = said(NativeKafkaSpanExporter(bootstrap_servers=DEAD, spool_dir=tmp_path))
    assert "wait on disk" in line
    assert "not delivered" not in line


def test_what_no_spool_keeps_is_said_to_be_lost(said, tmp_path):
    with EmbeddedKafka() as kafka:
        kafka.create_topic("MY_TRACE")
        kafka.push_request_errors(PRODUCE, TOO_LARGE)
        exporter = NativeKafkaSpanExporter(
            bootstrap_servers=kafka.bootstrap_servers, trace_topic="MY_TRACE", spool_dir=tmp_path
        )
        [line] = said(exporter, timeout_ms=5_000)
    assert "not delivered" in line


def test_an_exporter_does_not_show_its_password(said):
    conf = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "ali"}
    exporter = NativeKafkaSpanExporter(
        bootstrap_servers=DEAD, trace_topic="MY_TRACE", kafka_config={**conf, "sasl.password": "open-sesame"}
    )
    lines = said(exporter)
    seen = shown(exporter)
    assert "MY_TRACE" in seen
    assert "open-sesame" not in f"{seen}{lines}"
