"""The exporter to a Kafka trace topic: delivery, failures, forks, and its own producer."""

import logging
import sys

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition, admin, cimpl
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from bridge.forwarder.sources.kafka import KafkaTraceSource
from otel_mqtrace import MqTraceInstrumentor, config
from otel_mqtrace._clock import SystemClock
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.model import TraceType
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.testing.embedded import EmbeddedKafka
from otel_mqtrace.wire.native import decode_body, encode_context
from tests.support.lanes import emptied, span
from tests.support.native_spans import bean, pub, sub, traced
from tests.support.shown import shown

TOPIC = "RMQ_SYS_TRACE_TOPIC"
PRODUCE = 0  # Kafka's request type
NOT_LEADER, TOO_LARGE, UNKNOWN_TOPIC, TOPIC_AUTHORIZATION = 6, 10, 3, 29
NAME = "NativeKafkaSpanExporter"


@pytest.fixture
def kafka():
    with EmbeddedKafka() as embedded:
        embedded.create_topic(TOPIC)
        yield embedded


def _exporter(kafka, **options):
    return NativeKafkaSpanExporter(bootstrap_servers=kafka.bootstrap_servers, **options)


def _landed(kafka, topic=TOPIC):
    with KafkaTraceSource(kafka.bootstrap_servers, topic) as source:
        return [message for batch in source.drain() for message in batch]


def _records(landed):
    bodies = [decode_body(message.body) for message in landed]
    assert not any(body.errors for body in bodies)
    return [record for body in bodies for record in body.contexts]


def test_spans_reach_the_trace_topic_as_rocketmq_would_write_them(kafka):
    processor, trace = traced(_exporter(kafka))
    for number in range(3):
        trace(pub(number))
    trace(sub(bean(1)))
    assert processor.force_flush()
    [message] = _landed(kafka)
    records = _records([message])
    assert [record.trace_type for record in records] == [TraceType.PUB] * 3 + [
        TraceType.SUB_BEFORE,
        TraceType.SUB_AFTER,
    ]
    assert {bean(1).msg_id, "order-1"} <= set(message.keys.split(" "))
    assert processor.stats()[NAME]["exported"] == 5
    reader = cimpl.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader"})
    reader.assign([TopicPartition(TOPIC, message.partition, message.offset)])
    assert dict(reader.poll(20).headers())["mqtrace.dialect"] == b"5.5.0"
    reader.close()


def test_a_start_is_delivered_before_the_end_comes(kafka):
    exporter = _exporter(kafka)
    processor, _ = traced(exporter)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    attributes = {"mqtrace.trace_type": "Sub", "messaging.message.id": bean(1).msg_id}
    provider.get_tracer("tests").start_span("process", attributes=attributes)
    assert processor.force_flush()
    assert [record.trace_type for record in _records(_landed(kafka))] == [TraceType.SUB_BEFORE]


def test_a_retry_doubles_nothing(kafka):
    """Retriable errors are librdkafka's to retry; each record arrives once."""
    kafka.push_request_errors(PRODUCE, NOT_LEADER, NOT_LEADER)
    processor, trace = traced(_exporter(kafka))
    trace(pub(1))
    assert processor.force_flush()
    assert len(_records(_landed(kafka))) == 1


def test_what_the_broker_refuses_is_failed_and_the_next_batch_goes_on(kafka):
    kafka.push_request_errors(PRODUCE, TOO_LARGE)
    processor, trace = traced(_exporter(kafka))
    trace(pub(1))
    assert not processor.force_flush()
    trace(pub(2))
    assert processor.force_flush()
    stats = processor.stats()[NAME]
    assert (stats["failed"], stats["exported"]) == (1, 1)
    assert [record.beans[0].msg_id for record in _records(_landed(kafka))] == [bean(2).msg_id]


def test_only_the_spans_of_the_refused_message_are_failed(kafka):
    kafka.push_request_errors(PRODUCE, TOO_LARGE)
    exporter = _exporter(kafka, kafka_config={"linger.ms": 0, "batch.num.messages": 1, "max.in.flight": 1})
    processor, trace = traced(exporter)
    trace(pub(1))
    trace(pub(2, topic="stock"))
    processor.force_flush()
    stats = processor.stats()[NAME]
    assert (stats["failed"], stats["exported"]) == (1, 1)
    assert exporter.stats()["undelivered_messages"] == 1


def test_missing_trace_topic_is_logged_once_with_its_setting(kafka, caplog):
    kafka.set_topic_error(TOPIC, UNKNOWN_TOPIC)
    processor, trace = traced(
        _exporter(kafka, kafka_config={"topic.metadata.propagation.max.ms": 50}), max_export_batch_size=1
    )
    with caplog.at_level(logging.WARNING, logger="otel_mqtrace.exporters.native_delivery"):
        for number in range(2):
            trace(pub(number))
            processor.run_once()
    [line] = [r.getMessage() for r in caplog.records if r.name == "otel_mqtrace.exporters.native_delivery"]
    assert TOPIC in line
    assert "MQTRACE_CREATE_TRACE_TOPIC" in line
    assert processor.stats()[NAME]["failed"] == 2


def test_creating_the_trace_topic_keeps_within_the_export_timeout():
    exporter, clock = NativeKafkaSpanExporter(bootstrap_servers="127.0.0.1:1", create_trace_topic=True), SystemClock()
    processor, trace = traced(exporter, export_timeout_millis=300, max_export_batch_size=1)
    trace(pub(1))
    began_ns = clock.monotonic_ns()
    processor.run_once()
    assert clock.monotonic_ns() - began_ns < 5_000_000_000
    assert processor.stats()[NAME]["failed"] == 1


def test_shutdown_ends_the_creation_of_the_trace_topic_early():
    exporter = NativeKafkaSpanExporter(bootstrap_servers="127.0.0.1:1", create_trace_topic=True)
    processor, trace = traced(exporter, background=True, max_export_batch_size=1)
    trace(pub(1))
    processor.shutdown(timeout_millis=200)
    assert emptied(processor, 5)
    assert processor.stats()[NAME]["exported"] == 0


def test_a_topic_that_cannot_be_created_is_sent_to_all_the_same(kafka, monkeypatch):
    built = []

    class Counted(cimpl.Producer):
        def __init__(self, *arguments, **options):
            built.append(1)
            super().__init__(*arguments, **options)

    class Refusing(admin.AdminClient):
        def create_topics(self, *_, **__):
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG))

    monkeypatch.setattr(cimpl, "Producer", Counted)
    monkeypatch.setattr(admin, "AdminClient", Refusing)
    processor, trace = traced(_exporter(kafka, create_trace_topic=True), max_export_batch_size=1)
    trace(pub(1))
    trace(pub(2))
    assert processor.force_flush()
    assert len(_records(_landed(kafka))) == 2
    assert built == [1]


class _Patient(NativeKafkaSpanExporter):
    patience_ms = 20_000

    def __init__(self, kafka):
        super().__init__(bootstrap_servers=kafka.bootstrap_servers, export_timeout_millis=20_000)

    def export(self, spans, timeout_millis=None):
        assert timeout_millis == 30_000
        return super().export(spans, self.patience_ms)


@pytest.mark.parametrize("rtt_ms", [None, 600], ids=["down", "slow"])
def test_what_was_given_up_does_not_come_later_and_the_broker_is_used_again(kafka, rtt_ms):
    exporter = _Patient(kafka)
    processor, trace = traced(exporter, max_export_batch_size=1)
    trace(pub(1))
    assert processor.force_flush()
    if rtt_ms is None:
        kafka.broker_down(1)
    else:
        kafka.set_rtt(1, rtt_ms)
    exporter.patience_ms = 200
    trace(pub(2))
    assert not processor.force_flush()
    exporter.patience_ms = 20_000
    if rtt_ms is None:
        kafka.broker_up(1)
    else:
        kafka.set_rtt(1, 0)
    trace(pub(3))
    assert processor.force_flush()
    stats = processor.stats()["_Patient"]
    assert (stats["exported"], stats["failed"]) == (2, 1)
    seen = [record.beans[0].msg_id for record in _records(_landed(kafka))]
    in_flight = {bean(2).msg_id} if rtt_ms else set()  # a request the broker already had may be in the log
    assert [msg_id for msg_id in seen if msg_id not in in_flight] == [bean(1).msg_id, bean(3).msg_id]


def test_shutdown_ends_a_running_export_early(kafka):
    processor, trace = traced(
        NativeKafkaSpanExporter(bootstrap_servers="127.0.0.1:1"), background=True, max_export_batch_size=1
    )
    trace(pub(1))
    processor.shutdown(timeout_millis=200)
    assert emptied(processor, 20)
    assert processor.stats()[NAME]["exported"] == 0


def test_batch_without_a_known_broker_fails_with_the_setting(monkeypatch, caplog):
    config.forget_application_kafka_config()
    monkeypatch.delenv("MQTRACE_BOOTSTRAP_SERVERS", raising=False)
    with caplog.at_level(logging.WARNING):
        processor, trace = traced(NativeKafkaSpanExporter())
        trace(pub(1))
        processor.force_flush()
    assert "MQTRACE_BOOTSTRAP_SERVERS" in caplog.text
    assert processor.stats()[NAME]["failed"] == 1


def test_application_broker_is_the_default(kafka):
    config.forget_application_kafka_config()
    processor, trace = traced(NativeKafkaSpanExporter())
    config.remember_application_kafka_config({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 10_000})
    try:
        trace(pub(1))
        assert processor.force_flush()
    finally:
        config.forget_application_kafka_config()
    assert len(_records(_landed(kafka))) == 1


def test_the_environment_names_broker_topic_and_properties(kafka, monkeypatch, tmp_path):
    properties = tmp_path / "client.properties"
    properties.write_text(f"# the trace broker\nbootstrap.servers = {kafka.bootstrap_servers}\n\nacks=all\n")
    monkeypatch.setenv("MQTRACE_KAFKA_CONFIG", str(properties))
    monkeypatch.setenv("MQTRACE_TRACE_TOPIC", "MY_TRACE")
    kafka.create_topic("MY_TRACE")
    processor, trace = traced(NativeKafkaSpanExporter())
    trace(pub(1))
    assert processor.force_flush()
    assert len(_records(_landed(kafka, "MY_TRACE"))) == 1


def test_the_environment_names_the_brokers(kafka, monkeypatch):
    monkeypatch.setenv("MQTRACE_BOOTSTRAP_SERVERS", kafka.bootstrap_servers)
    processor, trace = traced(NativeKafkaSpanExporter())
    trace(pub(1))
    assert processor.force_flush()
    assert len(_records(_landed(kafka))) == 1


def test_a_password_never_appears_in_a_log(monkeypatch, tmp_path, caplog):
    properties = tmp_path / "client.properties"
    properties.write_text("bootstrap.servers=127.0.0.1:1\nsasl.password=hunter2\nsasl.mechanism=NONE\nno.such=x\n")
    with caplog.at_level(logging.DEBUG):
        processor, trace = traced(NativeKafkaSpanExporter(kafka_config=str(properties)))
        trace(pub(1))
        processor.force_flush()
    assert processor.stats()[NAME]["failed"] == 1
    assert "hunter2" not in caplog.text


def test_the_size_bound_splits_batches_and_the_broker_accepts_each(kafka):
    processor, trace = traced(_exporter(kafka, max_message_bytes=2000))
    for number in range(100):
        trace(pub(number, keys=f"订单{number}"))
    assert processor.force_flush()
    landed = _landed(kafka)
    assert len(landed) > 5
    assert max(len(message.body) for message in landed) <= 2000
    assert len(_records(landed)) == 100


def test_it_also_works_behind_the_stock_processor(kafka):
    """As OTEL_TRACES_EXPORTER=mqtrace_native attaches it: ends only, foreign spans passed over."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(kafka)))
    tracer = provider.get_tracer("tests")
    tracer.start_span("foreign").end()
    tracer.start_span("process", attributes={"mqtrace.trace_type": "Sub", "messaging.message.id": bean(1).msg_id}).end()
    provider.shutdown()
    assert [record.trace_type for record in _records(_landed(kafka))] == [TraceType.SUB_AFTER]


def test_an_export_without_anything_native_needs_no_broker():
    assert NativeKafkaSpanExporter().export([span("foreign")]) is SpanExportResult.SUCCESS


def test_the_encoder_can_be_wrapped(kafka):
    seen = []

    def encode(trace_ctx, dialect):
        seen.append((trace_ctx.trace_type, dialect))
        return encode_context(trace_ctx, dialect)

    processor, trace = traced(_exporter(kafka, encode=encode, dialect="4.9.3"))
    trace(pub(1))
    assert processor.force_flush()
    assert seen == [(TraceType.PUB, "4.9.3")]


FORKED = """
import os, sys
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from tests.support.native_spans import pub, traced

processor, trace = traced(NativeKafkaSpanExporter(bootstrap_servers=sys.argv[1]), background=True)
trace(pub(1))
assert processor.force_flush()
pid = os.fork()
if not pid:
    trace(pub(2))
    assert processor.force_flush()
    processor.shutdown()
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
trace(pub(3))
assert processor.force_flush()
processor.shutdown()
"""


def test_a_forked_child_has_a_producer_of_its_own_and_ends_normally(run_code, kafka):
    """Its parent's is never touched, not even by its destructor, which would hang for ever."""
    run_code(FORKED, kafka.bootstrap_servers)
    assert sorted(record.beans[0].msg_id for record in _records(_landed(kafka))) == [bean(n).msg_id for n in (1, 2, 3)]


def test_without_the_client_one_sentence_names_the_extra(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "confluent_kafka.cimpl", None)
    with caplog.at_level(logging.WARNING):
        processor, trace = traced(NativeKafkaSpanExporter(bootstrap_servers="127.0.0.1:1"))
        trace(pub(1))
        processor.force_flush()
    assert "pip install 'otel-mqtrace[kafka]'" in caplog.text


NOT_AUTHORISED = 29
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


@pytest.mark.parametrize(
    ("options", "timeout_ms", "words"),
    [
        ({}, 300, ("not delivered", DEAD, "MY_TRACE", "MQTRACE_BOOTSTRAP_SERVERS")),
        ({"export_timeout_millis": 60_000}, 100, ("in time",)),
        ({"kafka_config": {"nonsense.key": "1"}}, 300, (DEAD, "nonsense.key", "MQTRACE_KAFKA_CONFIG")),
        ({"spool_dir": "spool"}, 300, ("wait on disk",)),
    ],
    ids=["nobody there", "given up by us", "a wrong property", "a spool"],
)
def test_failed_delivery_is_one_line_with_the_setting(said, tmp_path, monkeypatch, options, timeout_ms, words):
    monkeypatch.chdir(tmp_path)
    exporter = NativeKafkaSpanExporter(bootstrap_servers=DEAD, trace_topic="MY_TRACE", **options)
    [line] = said(exporter, timeout_ms=timeout_ms)
    assert all(word in line for word in words)
    assert "PURGE" not in line
    assert ("not delivered" in line) == ("spool_dir" not in options)


def test_unauthorised_broker_is_logged_with_the_setting(said):
    with EmbeddedKafka() as kafka:
        kafka.create_topic("MY_TRACE")
        kafka.set_topic_error("MY_TRACE", NOT_AUTHORISED)
        servers = kafka.bootstrap_servers
        lines = said(NativeKafkaSpanExporter(bootstrap_servers=servers, trace_topic="MY_TRACE"), timeout_ms=5_000)
    [line] = lines
    assert all(word in line for word in (servers, "MY_TRACE", "TOPIC_AUTHORIZATION_FAILED", "MQTRACE_KAFKA_CONFIG"))


def test_message_without_a_spool_is_logged_as_lost(said, tmp_path):
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


def test_the_exporters_own_producer_is_never_traced(kafka):
    recording = RecordingExporter()
    instrumentor = MqTraceInstrumentor()
    instrumentor.instrument(
        tracer_provider=recording_provider(recording),
        exporters=[NativeKafkaSpanExporter(bootstrap_servers=kafka.bootstrap_servers)],
    )
    try:
        producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("orders", b"x")
        assert producer.flush(20) == 0
        assert instrumentor.processor.force_flush()
    finally:
        instrumentor.uninstrument()
    assert [each.name for each in recording.take_all()] == ["send orders"]
    assert len(_landed(kafka)) == 1
