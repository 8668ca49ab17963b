"""``mqtrace doctor -- COMMAND``: the command runs as ever, and then what went untraced in it is report."""

import json
import signal
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from otel_mqtrace.cli import main
from otel_mqtrace.doctor.checks import Checkup
from otel_mqtrace.doctor.child_process import examine_reports
from otel_mqtrace.provider import EXPORTER_GROUP
from tests.otel_mqtrace.doctor.conftest import DOCTOR
from tests.support.opentelemetry_release import needs_sdk

SDK = """
import sys, confluent_kafka
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace import MqTraceInstrumentor
SERVERS, TOPIC = sys.argv[1:3]
conf = {"bootstrap.servers": SERVERS, "log_level": 0}
"""
HEALTHY = f"""{SDK}
trace.set_tracer_provider(TracerProvider())
MqTraceInstrumentor().instrument()
producer = confluent_kafka.Producer(conf)
producer.produce(TOPIC, b"x")
assert producer.flush(10) == 0
print(sys.stdin.read().upper())
sys.exit(7)
"""
BROKEN = f"""{SDK}
early = confluent_kafka.Producer(conf)
HELD = (confluent_kafka.Producer,)
original = confluent_kafka.Producer

class Slim(confluent_kafka.Producer):
    __slots__ = ()

def enclosing(kept):
    return lambda: kept

factory = enclosing(original)
MqTraceInstrumentor().instrument()
class Later(factory()):
    pass
confluent_kafka.Producer(conf).produce(TOPIC, b"x")
class Stranger(confluent_kafka.Producer):
    __module__ = "ddtrace.contrib.internal.kafka.patch"
confluent_kafka.Producer = Stranger
"""


def test_healthy_command_has_no_findings(application, doctor, kafka, topic):
    done = doctor("--", *application(HEALTHY), kafka.bootstrap_servers, topic, typed="hello")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("HELLO\n")
    assert "exit_code: 7" in done.stdout
    assert "healthy" in done.stdout
    assert "survey" not in done.stdout, "a heading without anything under it"
    assert all(line == line.rstrip() for line in done.stdout.splitlines()), "padded in a pipe"


def test_everything_untraced_is_reported(application, ask, kafka, topic):
    code, findings, facts = ask("--", *application(BROKEN), kafka.bootstrap_servers, topic)
    assert code == 1
    assert set(findings) == {
        "client_untraced",
        "name_bound_before",
        "untraceable_class",
        "class_of_original",
        "wrapped_twice",
        "no_provider",
    }
    assert "Datadog" in findings["wrapped_twice"]["what"]
    assert facts["command"]["exit_code"] == 0


def test_command_that_never_instruments_is_reported(ask):
    code, findings, facts = ask("--", sys.executable, "-c", "print(1, end=''); raise SystemExit(3)")
    assert (code, set(findings)) == (1, {"not_instrumented"})
    assert facts["command"]["exit_code"] == 3
    assert findings["not_instrumented"]["what"] == "the command ended with exit code 3 and never switched mqtrace on"


def test_failed_set_up_of_opentelemetry_is_not_a_missing_opentelemetry_instrument(ask, application):
    command = "env", *application("pass", instrumented=True)
    _, findings, _ = ask("--", *command, OTEL_TRACES_EXPORTER="no_such_exporter")
    assert "OpenTelemetry's set-up" in findings["not_instrumented"]["fix"]


@needs_sdk(40, "OpenTelemetry's instrumentation of that time wraps the client in another way")
def test_other_instrumentation_is_reported_under_opentelemetry_instrument(application, ask, kafka, topic):
    program = "import sys, confluent_kafka; confluent_kafka.Producer({'bootstrap.servers': sys.argv[1]})"
    command = [*application(program, instrumented=True), kafka.bootstrap_servers]
    code, findings, _ = ask("--", *command, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="aiokafka")
    assert code == 1
    assert "other_instrumentation" in findings
    (finding,) = {"stepped_back", "wrapped_twice"} & set(findings)  # whichever of the two was loaded first
    assert "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=confluent_kafka" in findings[finding]["what"]


def test_signal_is_passed_to_the_command(application, environment):
    program = """
import signal, sys
from otel_mqtrace import MqTraceInstrumentor
MqTraceInstrumentor().instrument()
def leave(*_):
    sys.exit(5)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""
    command = [*DOCTOR, "--json", "--", *application(program)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        report = process.stdout.read()
    assert process.returncode == 1
    assert '"exit_code": 5' in report


def test_missing_program_is_one_line_and_a_finding_in_json(capsys):
    assert main(["doctor", "--json", "--", "no-such-program"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("mqtrace: error: no-such-program cannot be started")
    assert len(captured.err.splitlines()) == 1
    assert [each["code"] for each in json.loads(captured.out)["findings"]] == ["command_not_started"]


OWN_PROVIDER = f"""{SDK}
from otel_mqtrace import AioKafkaInstrumentor, MqTraceSpanProcessor
from otel_mqtrace.testing import RecordingExporter
provider = TracerProvider()
if sys.argv[3] == "own":
    provider.add_span_processor(MqTraceSpanProcessor(RecordingExporter()))
for each in MqTraceInstrumentor(), AioKafkaInstrumentor():
    each.instrument(tracer_provider=provider)
producer = confluent_kafka.Producer(conf)
for _ in range(15):
    producer.produce(TOPIC, b"x")
assert producer.flush(10) == 0
"""


@pytest.mark.parametrize("processor", ["own", "ours"])
def test_provider_given_in_code_records_and_is_reported_once(application, ask, kafka, topic, processor):
    code, findings, facts = ask("--", *application(OWN_PROVIDER), kafka.bootstrap_servers, topic, processor)
    assert (code, findings) == (0, {})
    (process,) = facts["processes"]
    assert set(process["clients"]) == {"confluent-kafka", "aiokafka"}
    ((lane, account),) = [each for processor in process["processors"] for each in processor.items()]
    assert lane == "NativeFileSpanExporter"
    assert (account["exported"], account["pending"]) == (15, 0)


CONFIGURATION = """
file_format: "1.0"
tracer_provider:
  processors: [{{batch: {{exporter: {{mqtrace_native_file: {{directory: {landing}}}}}}}}}]
instrumentation/development: {{python: {{mqtrace_confluent_kafka: {{exporters: []}}}}}}
"""


def test_configuration_file_without_a_propagator_is_found(application, ask, kafka, topic, tmp_path):
    pytest.importorskip("opentelemetry.configuration", reason="opentelemetry-configuration is not installed")
    path = tmp_path / "otel.yaml"
    path.write_text(CONFIGURATION.format(landing=tmp_path / "landing"), encoding="utf-8")
    program = "import sys, confluent_kafka; p = confluent_kafka.Producer({'bootstrap.servers': sys.argv[1]}); "
    program += "p.produce(sys.argv[2], b'x'); p.flush()"
    command = [*application(program, instrumented=True), kafka.bootstrap_servers, topic]
    code, findings, _ = ask("--", *command, OTEL_CONFIG_FILE=str(path))
    assert (code, set(findings)) == (1, {"no_propagator"})
    assert "(pid " in findings["no_propagator"]["where"]


def test_warnings_are_reported_and_still_on_stderr(application, doctor):
    program = """
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace import MqTraceInstrumentor
MqTraceInstrumentor().instrument(tracer_provider=TracerProvider(), exporters="nobody")
"""
    done = doctor("--json", "--", *application(program))
    known = sorted({point.name for point in entry_points(group=EXPORTER_GROUP)})
    line = f"no exporter named 'nobody'; spans do not go there: name one of {', '.join(known)}"
    assert done.stderr == f"mqtrace: {line}\n"
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["facts"]["processes"][0]["warnings"] == [line]
    assert done.returncode == 1
    assert [(each["code"], each["severity"]) for each in report["findings"]] == [("exporter_not_attached", "error")]


def _output(**changes):
    account = {"offered": 3, "exported": 3, "dropped": {}, "failed": 0, "pending": 0, **changes.pop("account", {})}
    client = {
        "outcome": changes.pop("outcome", "instrumented"),
        "survey": changes.pop("survey", {}),
        "provider": "opentelemetry.sdk.trace.TracerProvider",
        "records": changes.pop("records", True),
    }
    others = {name: {**client, "outcome": "instrumented"} for name in changes.pop("besides", ())}
    return {
        "pid": 1,
        "program": "app.py",
        "ended": True,
        "running": False,
        "clients": {changes.pop("client", "confluent-kafka"): client, **others},
        "processors": [{"Exporter": account}],
        "unrecorded": {},
        "propagated": ["baggage", "traceparent", "tracestate"],
        "refused_exporters": {},
        "warnings": [],
        "application_servers": None,
        **changes,
    }


def _findings(*reports):
    checkup = Checkup()
    examine_reports(checkup, reports, [])
    return checkup.findings


@pytest.mark.parametrize(
    ("changes", "findings"),
    [
        ({}, []),
        ({"account": {"dropped": {"queue_full": 2}}}, ["spans_lost"]),
        ({"account": {"failed": 1}}, ["spans_lost"]),
        ({"account": {"offered": 0}}, ["nothing_recorded"]),
        ({"account": {"offered": 0}, "besides": ["aiokafka", "rocketmq-python-client"]}, ["nothing_recorded"]),
        ({"unrecorded": {"transaction_too_long": 5}}, ["unrecorded"]),
        ({"ended": False}, ["ended_abruptly"]),
        ({"ended": False, "besides": ["aiokafka"]}, ["ended_abruptly"]),
        ({"ended": False, "running": True}, []),
        ({"outcome": "switched_off"}, ["switched_off"]),
        ({"outcome": "no_client"}, ["client_missing"]),
        ({"outcome": "no_client", "client": "aiokafka"}, ["client_missing"]),
        ({"outcome": "no_client", "besides": ["aiokafka"]}, []),
        ({"refused_exporters": {"mqtrace_native": "no module"}, "warnings": ["no module"]}, ["exporter_not_attached"]),
        ({"warnings": ["the spool is full"]}, ["warned"]),
        ({"outcome": "broken_client: libssl.so.3", "client": "aiokafka"}, ["client_broken"]),
        ({"outcome": "stepped_back: ddtrace", "besides": ["aiokafka"]}, ["stepped_back"]),
        ({"records": False}, ["no_provider"]),
        ({"propagated": []}, ["no_propagator"]),
        ({"propagated": ["baggage"]}, ["no_propagator"]),
    ],
)
def test_report_of_a_process_becomes_findings(changes, findings):
    assert [each.code for each in _findings(_output(**changes))] == findings


def test_process_without_a_span_beside_one_with_spans_is_no_finding():
    none = {"account": {"offered": 0}}
    findings = _findings(_output(), _output(**none), _output(**none, ended=False))
    assert [each.code for each in findings] == ["ended_abruptly"]


PROCESSES = f"""{SDK}
import multiprocessing

def send():
    trace.set_tracer_provider(TracerProvider())
    MqTraceInstrumentor().instrument()
    producer = confluent_kafka.Producer(conf)
    producer.produce(TOPIC, b"x")
    assert producer.flush(10) == 0

if __name__ == "__main__":
    for start in "fork", "spawn":
        process = multiprocessing.get_context(start).Process(target=send)
        process.start()
        process.join()
"""


def test_processes_of_multiprocessing_are_no_findings(application, ask, kafka, topic):
    """Its resource tracker is a Python process as any other, instrumented at its start, and sends nothing."""
    code, findings, facts = ask("--", *application(PROCESSES, instrumented=True), kafka.bootstrap_servers, topic)
    assert (code, findings) == (0, {})
    processors = [processor for each in facts["processes"] for processor in each["processors"]]
    assert sum(lane["exported"] for processor in processors for lane in processor.values()) == 2


def test_loss_warning_of_a_process_is_the_fix():
    warnings = ["a", "native traces are not delivered: No such configuration property", "3 spans lost"]
    first, *_ = _findings(_output(account={"failed": 3}, warnings=warnings))
    assert first.fix.endswith("No such configuration property")
