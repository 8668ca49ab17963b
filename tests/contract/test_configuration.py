"""Configuration: every row of the table changes what it says it changes, and no wrong value breaks a start."""

from __future__ import annotations

import json
import logging
from dataclasses import fields

import confluent_kafka
import pytest
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor
from otel_mqtrace.cli import main
from otel_mqtrace.config import Settings
from otel_mqtrace.testing import RecordingExporter, recording_provider
from otel_mqtrace.testing.embedded.cluster import EmbeddedKafka
from otel_mqtrace.wire.native import DIALECTS, decode_body
from tests.contract.story import TRACE_TOPIC, trace_messages
from tests.support.consuming import current_span_id, poll

DEFAULTS = {
    "MQTRACE_ENABLED": True,
    "MQTRACE_TRACE_TOPIC": "RMQ_SYS_TRACE_TOPIC",
    "MQTRACE_EXPORTERS": ("mqtrace_native",),
    "MQTRACE_BOOTSTRAP_SERVERS": None,
    "MQTRACE_KAFKA_CONFIG": None,
    "MQTRACE_LANDING_DIR": "mqtrace-landing",
    "MQTRACE_DIALECT": "5.5.0",
    "MQTRACE_REGION_ID": "DefaultRegion",
    "MQTRACE_PRESET": None,
    "MQTRACE_QUEUE_SIZE": None,
    "MQTRACE_BATCH_SIZE": None,
    "MQTRACE_LINGER_MS": None,
    "MQTRACE_MAX_MESSAGE_BYTES": 128_000,
    "MQTRACE_PROCESS_CONTEXT": "auto",
    "MQTRACE_RECEIVE_SPANS": False,
    "MQTRACE_TOPIC_EXCLUDE": (),
    "MQTRACE_CREATE_TRACE_TOPIC": False,
}
"""The contract's table; ``None`` is "not said": the part that uses it has the default (see the tests of that row)."""
WRONG = {
    "MQTRACE_ENABLED": ("perhaps", "True"),
    "MQTRACE_PRESET": ("rocketmq9", "no preset"),
    "MQTRACE_QUEUE_SIZE": ("many", "2048"),
    "MQTRACE_BATCH_SIZE": ("0", "100"),
    "MQTRACE_LINGER_MS": ("-4", "500"),
    "MQTRACE_MAX_MESSAGE_BYTES": ("0", "128000"),
    "MQTRACE_PROCESS_CONTEXT": ("sideways", "'auto'"),
    "MQTRACE_RECEIVE_SPANS": ("sometimes", "False"),
    "MQTRACE_CREATE_TRACE_TOPIC": ("later", "False"),
}
"""Variable → (a wrong value, how the default is named); every text is a right value of the others."""


@pytest.fixture
def started(clean, monkeypatch):
    """Switch tracing on as a service does: with these environment variables and nothing in code; spans are kept."""
    exporter = RecordingExporter()

    def start(**environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        MqTraceInstrumentor().instrument(tracer_provider=recording_provider(exporter))
        return exporter

    return start


def _stopped():
    MqTraceInstrumentor().uninstrument()


@pytest.mark.parametrize("variable", DEFAULTS)
def test_default_is_as_written(variable):
    """And the same name in lower case is a keyword option."""
    name = variable.removeprefix("MQTRACE_").lower()
    assert getattr(Settings.from_env(environ={}), name) == DEFAULTS[variable]
    assert name in {each.name for each in fields(MqTraceInstrumentor.configuration)}


@pytest.mark.parametrize("variable", WRONG)
def test_a_wrong_value_warns_once_and_the_start_goes_on(clean, monkeypatch, caplog, variable):
    """One warning with name, value and default used; the client is instrumented."""
    value, default = WRONG[variable]
    monkeypatch.setenv(variable, value)
    plain = confluent_kafka.Producer
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            MqTraceInstrumentor().instrument(tracer_provider=TracerProvider(), exporters=())
            assert confluent_kafka.Producer is not plain
            _stopped()
    (said,) = [record.getMessage() for record in caplog.records if variable in record.getMessage()]
    assert value in said
    assert default in said


def test_enabled(started, own_kafka, send):
    """``false``: the client is as if we were not installed."""
    plain = confluent_kafka.Producer
    exporter = started(MQTRACE_ENABLED="false")
    assert confluent_kafka.Producer is plain
    send()
    exporter.assert_empty()


def test_trace_topic_and_the_applications_own_bootstrap(started, own_kafka, send):
    """Records go to the topic named, on the brokers the application itself uses."""
    own_kafka.create_topic("traces")
    started(MQTRACE_TRACE_TOPIC="traces")
    send()
    _stopped()
    assert len(trace_messages(own_kafka.bootstrap_servers, "traces")) == 1


def test_exporters(started, own_kafka, send):
    """Names of entry points; each has a lane of the processor that is attached; ``none`` attaches nothing."""
    started(MQTRACE_EXPORTERS="mqtrace_native_file, mqtrace_native")
    assert len(MqTraceInstrumentor().processor.lanes) == 2
    _stopped()
    started(MQTRACE_EXPORTERS="none")
    assert MqTraceInstrumentor().processor is None


@pytest.mark.parametrize("way", ["MQTRACE_BOOTSTRAP_SERVERS", "MQTRACE_KAFKA_CONFIG"])
def test_dedicated_trace_broker(started, own_kafka, send, tmp_path, way):
    """By its address, or by a properties file with everything the client needs."""
    with EmbeddedKafka() as dedicated:
        for broker in (dedicated, own_kafka):
            broker.create_topic(TRACE_TOPIC)
        properties = tmp_path / "trace.properties"
        properties.write_text(f"# the trace cluster\nbootstrap.servers={dedicated.bootstrap_servers}\n")
        started(**{way: dedicated.bootstrap_servers if way.endswith("SERVERS") else str(properties)})
        send()
        _stopped()
        assert len(trace_messages(dedicated.bootstrap_servers)) == 1
        assert trace_messages(own_kafka.bootstrap_servers) == []


def test_landing_dir(started, send, tmp_path):
    """Where ``mqtrace_native_file`` writes."""
    started(MQTRACE_EXPORTERS="mqtrace_native_file", MQTRACE_LANDING_DIR=str(tmp_path / "here"))
    send()
    _stopped()
    (part,) = (tmp_path / "here").rglob("part-*.jsonl")
    assert "body_base64" in json.loads(part.read_text().splitlines()[0])


def test_dialect(started, own_kafka, send):
    """How records are written, and the header that says so."""
    own_kafka.create_topic(TRACE_TOPIC)
    other = next(name for name in DIALECTS if name != "5.5.0")
    started(MQTRACE_DIALECT=other)
    send()
    _stopped()
    ((_, headers),) = trace_messages(own_kafka.bootstrap_servers)
    assert headers["mqtrace.dialect"].decode() == other


def test_region_id(started, own_kafka, send):
    """On the span and in the record."""
    own_kafka.create_topic(TRACE_TOPIC)
    exporter = started(MQTRACE_REGION_ID="cn-hangzhou")
    send()
    _stopped()
    assert exporter.take("send orders").attributes["mqtrace.region_id"] == "cn-hangzhou"
    ((body, _),) = trace_messages(own_kafka.bootstrap_servers)
    assert decode_body(body).contexts[0].region_id == "cn-hangzhou"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (2048, 100, 500)),
        ({"MQTRACE_PRESET": "rocketmq4"}, (1024, 100, 500)),
        ({"MQTRACE_QUEUE_SIZE": "64"}, (64, 64, 500)),
        ({"MQTRACE_BATCH_SIZE": "7"}, (2048, 7, 500)),
        ({"MQTRACE_LINGER_MS": "9"}, (2048, 100, 9)),
    ],
)
def test_preset_queue_batch_and_linger(started, environment, expected):
    """Of the processor that is attached."""
    started(**environment)
    settings = MqTraceInstrumentor().processor.settings
    assert (settings.max_queue_size, settings.max_export_batch_size, settings.schedule_delay_ms) == expected


def test_max_message_bytes(started, own_kafka, send):
    """The bound of a trace message, encoded: what fits no longer is another message."""
    own_kafka.create_topic(TRACE_TOPIC)
    started(MQTRACE_MAX_MESSAGE_BYTES="250")
    for _ in range(2):
        send()
    MqTraceInstrumentor().processor.force_flush()
    _stopped()
    bodies = [body for body, _ in trace_messages(own_kafka.bootstrap_servers)]
    assert [len(decode_body(body).contexts) for body in bodies] == [1, 1]
    assert all(len(body) <= 250 for body in bodies)


@pytest.mark.parametrize(
    ("mode", "ways"),
    [("link", {"link"}), ("parent", {"parent"}), ("both", {"link", "parent"}), ("auto", {"link", "parent"})],
)
def test_process_context(started, own_kafka, send, mode, ways):
    """How the process span refers to the sender; ``auto`` links, and is a child when nothing else is current."""
    exporter = started(MQTRACE_PROCESS_CONTEXT=mode, MQTRACE_EXPORTERS="none")
    assert current_span_id() == 0
    send()
    _read(own_kafka)
    sent, processed = exporter.take("send orders"), exporter.take("process orders")
    seen = {"link"} if [link.context.span_id for link in processed.links] == [sent.context.span_id] else set()
    seen |= {"parent"} if processed.parent and processed.parent.span_id == sent.context.span_id else set()
    assert seen == ways


def _read(kafka, topic="orders"):
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "billing", "enable.auto.commit": False}
    )
    low = next(p for p, (_, high) in kafka.watermarks(topic).items() if high)
    consumer.assign([confluent_kafka.TopicPartition(topic, low, 0)])
    poll(consumer)
    consumer.close()


@pytest.mark.parametrize(("value", "polls"), [("true", 1), ("false", 0)])
def test_receive_spans(started, own_kafka, send, value, polls):
    """A ``poll T`` span per poll that returned something."""
    exporter = started(MQTRACE_RECEIVE_SPANS=value, MQTRACE_EXPORTERS="none")
    send()
    _read(own_kafka)
    assert len(exporter.take_all("poll orders")) == polls


def test_topic_exclude(started, send):
    """Patterns never traced; the trace topic never is."""
    exporter = started(MQTRACE_TOPIC_EXCLUDE="audit.*, *-noise", MQTRACE_EXPORTERS="none")
    for topic in ("audit.log", "much-noise", TRACE_TOPIC, "orders"):
        send(topic)
    exporter.take("send orders")
    exporter.assert_empty()


def test_secrets_are_never_shown(started, own_kafka, send, tmp_path, caplog, capsys):
    """Neither in the log, nor on a span, nor by the doctor: right settings, wrong ones, unknown ones."""
    properties = tmp_path / "trace.properties"
    properties.write_text("sasl.username=u\nsasl.password=hunter2\nsecurity.protocol=nonsense\n")
    with caplog.at_level(logging.DEBUG):
        exporter = started(MQTRACE_KAFKA_CONFIG=str(properties), MQTRACE_BOOTSTRAP_SERVERS="127.0.0.1:1")
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": own_kafka.bootstrap_servers, "sasl.password": "hunter2", "log_level": 0}
        )
        producer.produce("orders", b"x")
        assert producer.flush(20) == 0
        _stopped()
    shown = caplog.text + exporter.take("send orders").to_json()
    main(["doctor", "--json"])
    told = capsys.readouterr()
    assert "hunter2" not in shown + told.out + told.err
    assert told.out


def test_code_wins_over_the_environment(started, own_kafka, send, monkeypatch):
    """The same names in lower case as keyword options of ``instrument()``."""
    exporter = RecordingExporter()
    monkeypatch.setenv("MQTRACE_REGION_ID", "environment")
    MqTraceInstrumentor().instrument(
        tracer_provider=recording_provider(exporter), exporters=(), region_id="code", topic_exclude=["audit"]
    )
    send("audit")
    send()
    assert exporter.take().attributes["mqtrace.region_id"] == "code"
    assert isinstance(MqTraceSpanProcessor(exporter, background=False), MqTraceSpanProcessor)
