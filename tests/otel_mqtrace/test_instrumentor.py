"""Switching on and off: providers early and late, exporters good and bad, and never an exception."""

from __future__ import annotations

import base64
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_of_the_api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor
from otel_mqtrace.config import Settings, application_kafka_config
from otel_mqtrace.testing import RecordingExporter


class LateProvider(trace.ProxyTracerProvider):
    """A global provider that becomes a real one later, as the SDK's set-up makes it."""


@pytest.fixture
def clean():
    """Switch off whatever a test has switched on."""
    yield
    if MqTraceInstrumentor().is_instrumented_by_opentelemetry:
        MqTraceInstrumentor().uninstrument()


def _send(kafka, topic):
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "sasl.password": "secret"})
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0


def test_our_processor_is_attached_with_the_exporters_given(clean, kafka, topic):
    """Spans go through our queue to the exporter object, and uninstrument takes the processor off again."""
    provider, exporter = TracerProvider(), RecordingExporter()
    instrumentor = MqTraceInstrumentor()
    instrumentor.instrument(tracer_provider=provider, exporters=[exporter], queue_size=7, batch_size=3, linger_ms=9)
    processor = instrumentor.processor
    assert isinstance(processor, MqTraceSpanProcessor)
    assert (processor.settings.max_queue_size, processor.settings.max_export_batch_size) == (7, 3)
    _send(kafka, topic)
    assert processor.force_flush()
    exporter.take(f"send {topic}")
    instrumentor.uninstrument()
    assert instrumentor.processor is None
    assert provider._active_span_processor._span_processors == ()


def test_a_processor_the_application_attached_itself_is_left_alone(clean):
    """No second set of lanes for the same spans."""
    provider = TracerProvider()
    provider.add_span_processor(MqTraceSpanProcessor(RecordingExporter()))
    MqTraceInstrumentor().instrument(tracer_provider=provider, exporters=[RecordingExporter()])
    assert MqTraceInstrumentor().processor is None
    provider.shutdown()


def test_a_provider_that_comes_late_is_found_at_the_first_span(clean, kafka, topic, monkeypatch):
    """instrument() first, set_tracer_provider() later."""
    exporter = RecordingExporter()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    MqTraceInstrumentor().instrument(exporters=[exporter])
    assert MqTraceInstrumentor().processor is None
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    _send(kafka, topic)
    MqTraceInstrumentor().processor.force_flush()
    exporter.take(f"send {topic}")


def test_exporters_are_loaded_by_name_and_a_bad_one_is_one_warning(clean, caplog, tmp_path):
    """The rest goes on."""
    provider = TracerProvider()
    with caplog.at_level(logging.WARNING):
        MqTraceInstrumentor().instrument(
            tracer_provider=provider, exporters="console,no_such_exporter", landing_dir=str(tmp_path)
        )
    assert len(MqTraceInstrumentor().processor.lanes) == 1
    assert len([record for record in caplog.records if "no_such_exporter" in record.getMessage()]) == 1


def test_switched_off_by_the_environment_nothing_happens(clean, monkeypatch):
    """MQTRACE_ENABLED=false."""
    monkeypatch.setenv("MQTRACE_ENABLED", "false")
    before = confluent_kafka.Producer
    MqTraceInstrumentor().instrument()
    assert confluent_kafka.Producer is before


def test_the_applications_own_connection_is_learned_without_anything_else(instrument, kafka, topic, spans):
    """What the native exporter needs to reach the same brokers, and no callback, no group."""
    instrument()
    confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "ssl.ca.location": "probe"})
    assert application_kafka_config() == {"bootstrap.servers": kafka.bootstrap_servers, "ssl.ca.location": "probe"}
    MqTraceInstrumentor().uninstrument()
    assert application_kafka_config() is None


def test_no_password_gets_into_a_span(instrument, kafka, topic, spans):
    """The client's configuration is read, not kept."""
    instrument()
    _send(kafka, topic)
    span = spans.take()
    assert "secret" not in span.to_json()


def test_wrong_options_never_raise(clean, caplog):
    """A wrong value is a warning and the default."""
    with caplog.at_level(logging.WARNING):
        MqTraceInstrumentor().instrument(
            tracer_provider=TracerProvider(), exporters=(), process_context="sideways", queue_size=-1, nonsense=1
        )
    assert MqTraceInstrumentor().is_instrumented_by_opentelemetry
    assert {"sideways", "-1", "nonsense"} <= {word.strip("':") for word in caplog.text.split()}


def test_the_configuration_is_a_dataclass_of_every_setting():
    """Declarative configuration validates options by it."""
    assert MqTraceInstrumentor.configuration is Settings
    assert MqTraceInstrumentor().instrumentation_dependencies() == ("confluent-kafka >= 2.6",)


def test_the_books_are_metrics_of_the_global_meter_provider(clean, kafka, topic, monkeypatch):
    """Nobody passes a provider on the zero-code path: what became of our spans is told all the same."""
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics_of_the_api, "_METER_PROVIDER", MeterProvider([reader]))
    MqTraceInstrumentor().instrument(tracer_provider=TracerProvider(), exporters=[RecordingExporter()])
    _send(kafka, topic)
    assert MqTraceInstrumentor().processor.force_flush()
    (resource,) = reader.get_metrics_data().resource_metrics
    names = {metric.name for scope in resource.scope_metrics for metric in scope.metrics}
    assert "otel.sdk.processor.span.processed" in names


def test_a_first_span_that_nobody_records_is_one_warning(clean, kafka, topic, monkeypatch, caplog):
    """Without an SDK every span is lost in silence: said at the first one, with the mend, and not again."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.delenv("OTEL_PYTHON_TRACER_PROVIDER", raising=False)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "false")
    with caplog.at_level(logging.WARNING):
        MqTraceInstrumentor().instrument()
        assert "no span is recorded" not in caplog.text
        _send(kafka, topic)
        _send(kafka, topic)
    (said,) = [record.getMessage() for record in caplog.records if "no span is recorded" in record.getMessage()]
    assert "opentelemetry-distro" in said


def test_an_sdk_that_was_switched_off_is_nothing_to_warn_of(clean, kafka, topic, monkeypatch, caplog):
    """OTEL_SDK_DISABLED=true says so already."""
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with caplog.at_level(logging.WARNING):
        MqTraceInstrumentor().instrument()
        _send(kafka, topic)
    assert "no span is recorded" not in caplog.text


SEND = """
import sys, confluent_kafka
producer = confluent_kafka.Producer({"bootstrap.servers": sys.argv[1]})
for topic in sys.argv[2:]:
    producer.produce(topic, b"x")
assert producer.flush(10) == 0
"""


@pytest.fixture
def run_instrumented(kafka, tmp_path):
    """Run a program that sends under ``opentelemetry-instrument`` with the given environment; return what it wrote."""
    program = tmp_path / "app.py"
    program.write_text(SEND, encoding="utf-8")
    landing = tmp_path / "landing"

    def run(*topics, **environment):
        ours = ("MQTRACE_", "OTEL_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        command = [Path(sys.executable).with_name("opentelemetry-instrument"), sys.executable, str(program)]
        done = subprocess.run(
            [*command, kafka.bootstrap_servers, *topics],
            env={**kept, "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka,aiokafka", **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        bodies = [
            base64.b64decode(json.loads(line)["body_base64"]).decode()
            for part in landing.glob("native/*/*.jsonl")
            for line in part.read_text("utf-8").splitlines()
        ]
        return done, "".join(bodies)

    return run


NOTHING_ELSE = {"OTEL_TRACES_EXPORTER": "none", "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}


def test_the_environment_alone_is_enough(run_instrumented, topic, tmp_path):
    """opentelemetry-instrument, no line of code changed: a record on disk."""
    files = {"MQTRACE_EXPORTERS": "mqtrace_native_file", "MQTRACE_LANDING_DIR": str(tmp_path / "landing")}
    _, records = run_instrumented(topic, **NOTHING_ELSE, **files)
    assert topic in records


def test_disabled_by_its_name_nothing_is_traced(run_instrumented, topic, tmp_path):
    """OTEL_PYTHON_DISABLED_INSTRUMENTATIONS, as for any other instrumentation."""
    files = {"MQTRACE_EXPORTERS": "mqtrace_native_file", "MQTRACE_LANDING_DIR": str(tmp_path / "landing")}
    off = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka,aiokafka,mqtrace_confluent_kafka"}
    _, records = run_instrumented(topic, **NOTHING_ELSE, **files, **off)
    assert records == ""


DECLARATIVE = """
file_format: "1.0"
tracer_provider:
  processors:
    - simple:
        exporter:
          mqtrace_native_file:
            directory: {landing}
instrumentation/development:
  python:
    mqtrace_confluent_kafka:
      exporters: []
      topic_exclude: [{excluded}, "audit.*"]
      topic_sampling: {{"{topic}": 1}}
      process_spans: explicit
      receive_spans: false
      queue_size: 512
"""


def test_a_declarative_configuration_sets_everything(run_instrumented, kafka, topic, tmp_path):
    """OTEL_CONFIG_FILE: our exporter among OpenTelemetry's processors, our settings as YAML's own types."""
    excluded = f"{topic}-excluded"
    kafka.create_topic(excluded, partitions=1)
    path = tmp_path / "otel.yaml"
    path.write_text(DECLARATIVE.format(landing=tmp_path / "landing", topic=topic, excluded=excluded), encoding="utf-8")
    done, records = run_instrumented(topic, excluded, OTEL_CONFIG_FILE=str(path))
    assert topic in records
    assert excluded not in records
    assert "mqtrace:" not in done.stderr
