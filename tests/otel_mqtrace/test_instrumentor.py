"""Switching on and off: providers early and late, exporters good and bad, and never an exception."""

import json
import logging
import os
import sys
from concurrent.futures import ThreadPoolExecutor, TimeoutError, wait  # noqa: A004 - a class of its own in Python 3.10
from contextlib import suppress
from pathlib import Path
from threading import Event

import confluent_kafka
import pytest
from opentelemetry import trace
from opentelemetry.metrics import _internal as metrics_of_the_api
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from otel_mqtrace import MqTraceInstrumentor, MqTraceSpanProcessor
from otel_mqtrace.client_properties import application_kafka_config
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.hooks.sampling import processors_of
from otel_mqtrace.instrumentor import AioKafkaInstrumentor, ClientInstrumentor
from otel_mqtrace.provider import ProviderBinding
from otel_mqtrace.testing import RecordingExporter
from tests.support.landings import landed_bodies, records_of
from tests.support.opentelemetry_release import needs_sdk
from tests.support.programs import MQTRACE, clean_environment, run_in_child, run_program, run_python


@pytest.fixture
def instrumentor(monkeypatch):
    """The instrumentor under test, switched off at the end; no warning of a setting was given before."""
    monkeypatch.setattr("otel_mqtrace.config._warned", set())
    made = MqTraceInstrumentor()
    yield made
    if made.is_instrumented_by_opentelemetry:
        made.uninstrument()


@pytest.fixture
def provider():
    made = TracerProvider()
    yield made
    made.shutdown()


def _send(kafka, topic):
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "sasl.password": "secret"})
    producer.produce(topic, b"x")
    assert producer.flush(10) == 0


def test_processor_is_attached_with_the_given_exporters(instrumentor, kafka, topic, points, reader, monkeypatch):
    monkeypatch.setattr(metrics_of_the_api, "_METER_PROVIDER", MeterProvider([reader]))
    provider, exporter = TracerProvider(), RecordingExporter()
    options = {"queue_size": 7, "batch_size": 3, "linger_ms": 9, "export_timeout_ms": 8_000}
    instrumentor.instrument(provider, exporters=[exporter], **options)
    processor = instrumentor.processor
    assert isinstance(processor, MqTraceSpanProcessor)
    settings = processor.settings
    assert (settings.max_queue_size, settings.max_export_batch_size, settings.export_timeout_millis) == (7, 3, 8_000)
    _send(kafka, topic)
    assert processor.force_flush()
    exporter.take(f"send {topic}")
    assert [point.value for _, point in points("otel.sdk.processor.span.processed")] == [1]
    instrumentor.uninstrument()
    assert instrumentor.processor is None
    assert provider._active_span_processor._span_processors == ()


def test_exporter_object_needs_no_list_and_its_class_is_refused(instrumentor, caplog, tmp_path):
    provider, exporter = TracerProvider(), RecordingExporter()
    instrumentor.instrument(tracer_provider=provider, exporters=exporter)
    assert [lane.exporter for lane in instrumentor.processor.lanes] == [exporter]
    instrumentor.uninstrument()
    assert caplog.messages == []
    instrumentor.instrument(tracer_provider=provider, exporters=[RecordingExporter, exporter])
    assert "a list of names was expected" in caplog.text
    assert [lane.name for lane in instrumentor.processor.lanes] == ["RecordingExporter", "NativeKafkaSpanExporter"]


def test_client_is_patched_once_when_two_threads_instrument(instrumentor, caplog):
    with ThreadPoolExecutor(1) as other:

        class Provider(TracerProvider):
            def get_tracer(self, *args, **kwargs):
                with suppress(TimeoutError):
                    other.submit(instrumentor.instrument).result(0.2)
                return super().get_tracer(*args, **kwargs)

        instrumentor.instrument(tracer_provider=Provider(), exporters=())
    assert len([each for each in caplog.records if "already instrumented" in each.getMessage()]) == 1


def test_client_may_be_imported_by_a_module_that_instruments(instrumentor, tmp_path, monkeypatch):
    """As a post-import hook does; the other thread stands for one that is importing that module."""
    monkeypatch.delitem(sys.modules, "hooked", raising=False)
    (tmp_path / "hooked.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from otel_mqtrace.instrumentor import MqTraceInstrumentor\n"
        "ThreadPoolExecutor(1).submit(MqTraceInstrumentor().instrument, exporters=()).result(20)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    class Hooked(ClientInstrumentor):
        client = module = requirement = extra = "hooked"

    other = Hooked()
    other.instrument(skip_dep_check=True, exporters=())
    assert "hooked" in sys.modules
    other.uninstrument()
    assert instrumentor.is_instrumented_by_opentelemetry


def test_spans_of_other_threads_wait_for_the_processor_that_clients_share(provider):
    with ThreadPoolExecutor(2) as others:

        def make():
            assert not wait([others.submit(each.ensure_attached) for each in (first, second)], 0.2).done
            return RecordingExporter()

        first, second = (ProviderBinding(provider, None, Settings(), [], {}, {"mqtrace_native": make}) for _ in "12")
        first.ensure_attached()
    assert processors_of(provider) == (first.processor,) == (second.processor,)


def test_logging_handler_that_sends_does_not_wait_for_ever_for_an_exporter_that_logs(caplog, monkeypatch, provider):
    monkeypatch.setattr("otel_mqtrace.provider._LONGEST_WAIT_S", 0.2)
    is_being_made, is_sending = Event(), Event()
    logger = logging.getLogger("sends")

    class SendingHandler(logging.Handler):
        def emit(self, record):
            is_sending.set()
            binding.ensure_attached()

    def make():
        is_being_made.set()
        is_sending.wait(20)  # the handler holds its lock, and waits
        logger.warning("an exporter is being made")
        return RecordingExporter()

    binding = ProviderBinding(provider, None, Settings(), [], {}, {"mqtrace_native": make})
    handler = SendingHandler()
    logger.addHandler(handler)
    with ThreadPoolExecutor(1) as other:
        attached = other.submit(binding.ensure_attached)
        is_being_made.wait(20)
        logger.warning("hello")
        attached.result(20)
    logger.removeHandler(handler)
    assert processors_of(provider) == (binding.processor,)
    assert [each.getMessage() for each in caplog.records if "mqtrace" in each.getMessage()] == [
        "mqtrace: an exporter takes long to start: until it has, other threads' spans are lost"
    ]


def test_child_forked_while_an_exporter_is_being_made_attaches_one_of_its_own(provider):
    is_being_made, is_forked, parent = Event(), Event(), os.getpid()

    def make():
        is_being_made.set()
        assert os.getpid() != parent or is_forked.wait(20)
        return RecordingExporter()

    binding = ProviderBinding(provider, None, Settings(), [], {}, {"mqtrace_native": make})
    with ThreadPoolExecutor(1) as other:
        other.submit(binding.ensure_attached)
        is_being_made.wait(20)
        child = run_in_child(lambda: binding.ensure_attached() or processors_of(provider) != (binding.processor,))
        is_forked.set()
    assert child == 0


def test_processor_of_the_application_stays_beside_ours(instrumentor, kafka, topic, tmp_path, provider):
    theirs, ours = RecordingExporter(), RecordingExporter()
    own = MqTraceSpanProcessor(theirs)
    provider.add_span_processor(own)
    instrumentor.instrument(
        tracer_provider=provider,
        exporters=[ours, ours, theirs, "mqtrace_native_file"],
        landing_dir=tmp_path / "landing",
    )
    assert instrumentor.processor is not own
    lanes = [each.name for each in instrumentor.processor.lanes]
    assert lanes == ["RecordingExporter", "NativeFileSpanExporter"]
    _send(kafka, topic)
    provider.force_flush()
    theirs.take(f"send {topic}")
    ours.take(f"send {topic}")
    instrumentor.uninstrument()
    assert list((tmp_path / "landing").glob("native/*/*.jsonl"))
    assert processors_of(provider) == (own,)


def test_existing_exporter_is_not_added_twice_with_one_warning(instrumentor, caplog, tmp_path, monkeypatch, provider):
    monkeypatch.setenv("MQTRACE_LANDING_DIR", str(tmp_path))
    provider.add_span_processor(MqTraceSpanProcessor(NativeFileSpanExporter()))
    for _ in range(2):
        instrumentor.instrument(tracer_provider=provider, exporters="mqtrace_native_file")
        assert instrumentor.processor is None
        assert len(processors_of(provider)) == 1
        instrumentor.uninstrument()
    (warning,) = [each.getMessage() for each in caplog.records if "not added again" in each.getMessage()]
    assert "'mqtrace_native_file'" in warning


def test_exporter_of_a_second_instrumentor_alone_is_refused_with_the_fix(instrumentor, caplog, tmp_path, provider):
    options = {"tracer_provider": provider, "landing_dir": tmp_path}
    instrumentor.instrument(exporters="mqtrace_native_file,nowhere", **options)
    second = AioKafkaInstrumentor()
    for exporters, refused in (
        (None, []),
        ("mqtrace_native_file,nowhere", []),
        ("console,elsewhere", ["elsewhere", "console"]),
        ([RecordingExporter()], ["RecordingExporter"]),
    ):
        second.instrument(exporters=exporters, **options)
        assert second.processor is instrumentor.processor
        assert list(second.refused_exporters) == refused
        second.uninstrument()
    assert "'console' is not added: the processor of the first instrumentor is shared" in caplog.text
    assert "no exporter named 'elsewhere'" in caplog.text
    assert caplog.text.count("no exporter named 'nowhere'") == 1


@pytest.mark.parametrize("warnings", [[], ["twice"], ["no SubBefore"]])
def test_exporter_of_the_sdk_is_one_warning(instrumentor, caplog, tmp_path, monkeypatch, warnings):
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "console, mqtrace_native_file")
    monkeypatch.setenv("MQTRACE_LANDING_DIR", str(tmp_path))
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(NativeFileSpanExporter() if warnings else RecordingExporter()))
    ours = "none" if "no SubBefore" in warnings else "mqtrace_native_file"
    for _ in range(2):
        instrumentor.instrument(tracer_provider=provider, exporters=ours)
        instrumentor.uninstrument()
    provider.shutdown()
    assert [it for each in caplog.records for it in ("twice", "no SubBefore") if it in each.getMessage()] == warnings


def test_refused_option_is_not_passed_to_the_exporter(instrumentor, caplog, monkeypatch, provider):
    monkeypatch.setenv("MQTRACE_SPOOL_DIR", "")
    instrumentor.instrument(tracer_provider=provider, exporters="mqtrace_native", spool_dir=5, trace_topic=7)
    assert [each.name for each in instrumentor.processor.lanes] == ["NativeKafkaSpanExporter"]
    warnings = [each.getMessage() for each in caplog.records]
    assert len(warnings) == 2
    assert not any("cannot be used" in each for each in warnings)


def test_size_of_the_spool_is_an_option_too(instrumentor, caplog, tmp_path, provider):
    options = {"bootstrap_servers": "127.0.0.1:1", "spool_dir": tmp_path, "spool_bytes": 1, "export_timeout_ms": 200}
    instrumentor.instrument(tracer_provider=provider, exporters="mqtrace_native", **options)
    provider.get_tracer("tests").start_span("process", attributes={"mqtrace.trace_type": "Sub"}).end()
    instrumentor.processor.force_flush()
    assert "it is full (1 bytes)" in caplog.text


def test_exporter_with_a_wrong_variable_of_opentelemetry_is_refused_with_the_fix(instrumentor, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5s")
    instrumentor.instrument(tracer_provider=TracerProvider(), exporters="mqtrace_otlp")
    assert "'5s'; correct its variables OTEL_EXPORTER_…" in instrumentor.refused_exporters["mqtrace_otlp"]


@pytest.mark.parametrize(
    "option",
    [
        *({"tracer_provider": "nonsense"}, {"meter_provider": 5}, {"clock": 5}),
        *({"produce_hook": 3}, {"consume_hook": "f"}, {"exporters": 5}, {"exporters": [5]}),
        *({"process_context": "sideways"}, {"queue_size": -1}, {"nonsense": 1}),
    ],
)
@pytest.mark.parametrize("method", ["instrument", "_instrument"])
def test_option_of_a_wrong_type_is_one_warning(instrumentor, caplog, option, method):
    before = instrumentor.unrecorded
    getattr(instrumentor, method)(**{"tracer_provider": TracerProvider(), "exporters": (), **option})
    (warning,) = caplog.records
    assert f"option {next(iter(option))}" in warning.getMessage()
    assert warning.exc_info is None
    assert instrumentor.patches is not None
    assert instrumentor.unrecorded == before
    instrumentor._uninstrument()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("raise ImportError('libssl.so.3: cannot open')", "confluent-kafka cannot be imported: libssl.so.3"),
        ("import no_such_part", "confluent-kafka cannot be imported: No module named 'no_such_part'"),
        (
            "raise TypeError('Descriptors cannot be created.\\nadvice')",
            "Descriptors cannot be created.; it is not traced",
        ),
        ("raise ModuleNotFoundError(name='confluent_kafka')", "pip install 'otel-mqtrace[kafka]'"),
    ],
)
def test_client_that_cannot_be_imported_is_logged_with_the_error(tmp_path, broken, message):
    (tmp_path / "confluent_kafka").mkdir()
    (tmp_path / "confluent_kafka" / "__init__.py").write_text(broken, encoding="utf-8")
    program = f"""
import logging, sys
logging.basicConfig()
sys.path.insert(0, {str(tmp_path)!r})
from otel_mqtrace import MqTraceInstrumentor
MqTraceInstrumentor().instrument()
"""
    done = run_python(program, env=clean_environment())
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["", ".hooks.send", ".spans.processor", ".provider", ".clients.aiokafka"])
def test_propagator_that_is_not_installed_is_replaced_by_the_default_with_a_warning(name):
    program = f"""
import os
import otel_mqtrace{name}
from otel_mqtrace import MqTraceInstrumentor
MqTraceInstrumentor().instrument()
from opentelemetry import propagate
print(MqTraceInstrumentor().is_instrumented_by_opentelemetry, os.environ["OTEL_PROPAGATORS"])
print(*sorted(propagate.get_global_textmap().fields))
"""
    done = run_python(program, env=clean_environment(OTEL_PROPAGATORS="b4"))
    assert done.stdout == "True b4\nbaggage traceparent tracestate\n"
    assert done.stderr.count("Propagator b4 not found") == 1


@pytest.mark.parametrize("command", ["doctor", "forward --once --landing {0} --source {0}"])
def test_command_runs_although_a_propagator_is_not_installed(command, tmp_path):
    done = run_program(*MQTRACE, *command.format(tmp_path).split(), env=clean_environment(OTEL_PROPAGATORS="b4"))
    assert "tracecontext,baggage is used" in done.stderr
    assert "defect" not in done.stderr


def test_late_provider_is_used_from_the_first_span(instrumentor, kafka, topic, monkeypatch):
    exporter = RecordingExporter()
    instrumentor.instrument(exporters=[exporter])
    assert instrumentor.processor is None
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    _send(kafka, topic)
    instrumentor.processor.force_flush()
    exporter.take(f"send {topic}")


def test_disabled_instrumentation_imports_no_client_and_is_reported(run_code, tmp_path):
    run_code(f"""
        import os, sys
        os.environ |= {{"MQTRACE_ENABLED": "false", "MQTRACE_DOCTOR_REPORT": {str(tmp_path)!r}}}
        from otel_mqtrace import MqTraceInstrumentor
        MqTraceInstrumentor().instrument()
        assert "confluent_kafka" not in sys.modules
        """)
    (report,) = tmp_path.glob("*.json")
    assert json.loads(report.read_bytes())["clients"]["confluent-kafka"]["outcome"] == "switched_off"


def test_connection_of_the_application_is_remembered_without_other_settings(instrumentor, instrument, kafka, spans):
    instrument()
    confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "ssl.ca.location": "probe"})
    confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap_servers, "ssl.ca.location": "of the second"})
    assert application_kafka_config() == {"bootstrap.servers": kafka.bootstrap_servers, "ssl.ca.location": "probe"}
    instrumentor.uninstrument()
    assert application_kafka_config() is None


def test_password_is_not_on_a_span(instrument, kafka, topic, spans):
    instrument()
    _send(kafka, topic)
    assert "secret" not in spans.take().to_json()


def test_configuration_is_the_dataclass_of_every_setting():
    assert MqTraceInstrumentor.configuration is Settings
    assert MqTraceInstrumentor().instrumentation_dependencies() == ("confluent-kafka >= 2.6",)


@pytest.mark.parametrize(("is_disabled", "warnings"), [("false", 1), ("true", 0)])
def test_first_unrecorded_span_is_one_warning_unless_the_sdk_is_disabled(
    instrumentor, kafka, topic, monkeypatch, caplog, is_disabled, warnings
):
    monkeypatch.delenv("OTEL_PYTHON_TRACER_PROVIDER", raising=False)
    monkeypatch.setenv("OTEL_SDK_DISABLED", is_disabled)
    instrumentor.instrument()
    assert "no span is recorded" not in caplog.text
    _send(kafka, topic)
    _send(kafka, topic)
    lines = [record.getMessage() for record in caplog.records if "no span is recorded" in record.getMessage()]
    assert ["opentelemetry-distro" in line for line in lines] == [True] * warnings


SEND = """
import sys, confluent_kafka
producer = confluent_kafka.Producer({"bootstrap.servers": sys.argv[1]})
for topic in sys.argv[2:]:
    producer.produce(topic, b"x")
assert producer.flush(10) == 0
"""
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


@needs_sdk(40, "it has no declarative configuration")
def test_declarative_configuration_sets_everything(kafka, topic, tmp_path):
    excluded = f"{topic}-excluded"
    kafka.create_topic(excluded, partitions=1)
    path = tmp_path / "otel.yaml"
    path.write_text(DECLARATIVE.format(landing=tmp_path / "landing", topic=topic, excluded=excluded), encoding="utf-8")
    command = (Path(sys.executable).with_name("opentelemetry-instrument"), sys.executable, "-c", SEND)
    disabled = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka,aiokafka"}
    environment = clean_environment(OTEL_CONFIG_FILE=str(path), **disabled)
    done = run_program(*command, kafka.bootstrap_servers, topic, excluded, env=environment)
    assert done.returncode == 0, done.stderr
    assert {record.beans[0].topic for record in records_of(landed_bodies(tmp_path / "landing"))} == {topic}
    assert done.stderr.count("mqtrace:") == done.stderr.count(": no SubBefore is written; ") == 1


def test_exporters_that_cannot_be_listed_leave_the_application_running(instrumentor, caplog):
    def broken():
        yield "mqtrace_native_file"
        raise OSError("the list of exporters is on a disk that fails")

    instrumentor.instrument(tracer_provider=TracerProvider(), exporters=broken())
    assert not instrumentor.is_instrumented_by_opentelemetry
    assert "tracing failed in MqTraceInstrumentor.instrument" in caplog.text
    assert instrumentor.unrecorded["failed in MqTraceInstrumentor.instrument"] == 1
