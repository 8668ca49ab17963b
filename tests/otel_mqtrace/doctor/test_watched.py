"""``mqtrace doctor -- COMMAND``: the command runs as ever, and then what went untraced in it is told."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otel_mqtrace.doctor.findings import Checkup
from otel_mqtrace.doctor.watched import examine_testimony

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


def test_a_healthy_command_runs_as_ever_and_nothing_is_found(application, environment, ask, kafka, topic):
    """Its input, its output and its exit code are its own; a span was recorded."""
    command = [*application(HEALTHY), kafka.bootstrap_servers, topic]
    asked = [sys.executable, "-c", "from otel_mqtrace.cli import main; raise SystemExit(main())", "doctor", "--"]
    done = subprocess.run(
        [*asked, *command], env=environment(), input="hello", capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("HELLO\n")
    assert "exit_code: 7" in done.stdout
    assert "healthy" in done.stdout


def test_everything_that_goes_untraced_is_told(application, ask, kafka, topic):
    """Clients and names from before, classes that cannot be traced, another one on top, and nobody who records."""
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


def test_a_command_that_never_instruments_is_told(ask):
    """And nothing else is said of it."""
    code, findings, facts = ask("--", sys.executable, "-c", "raise SystemExit(3)")
    assert (code, set(findings)) == (1, {"not_instrumented"})
    assert facts["command"]["exit_code"] == 3


def test_under_opentelemetry_instrument_the_incumbent_is_told(application, ask, kafka, topic):
    """Both installed, both enabled: which one to switch off stands there."""
    program = "import sys, confluent_kafka; confluent_kafka.Producer({'bootstrap.servers': sys.argv[1]})"
    instrumented = str(Path(sys.executable).with_name("opentelemetry-instrument"))
    command = [instrumented, *application(program), kafka.bootstrap_servers]
    code, findings, _ = ask("--", *command, OTEL_PYTHON_DISABLED_INSTRUMENTATIONS="aiokafka")
    assert code == 1
    assert "other_instrumentation" in findings
    (found,) = {"stepped_back", "wrapped_twice"} & set(findings)  # whichever of the two was loaded first
    assert "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS=confluent_kafka" in findings[found]["what"]


def test_a_signal_reaches_the_command(application, environment):
    """The doctor hands SIGTERM on, waits and still reports."""
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
    asked = [sys.executable, "-c", "from otel_mqtrace.cli import main; raise SystemExit(main())", "doctor", "--json"]
    with subprocess.Popen(
        [*asked, "--", *application(program)], env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        told = process.stdout.read()
    assert process.returncode == 1
    assert '"exit_code": 5' in told


def test_a_program_that_is_not_there_is_one_line(environment):
    """What cannot be started, and the mend."""
    asked = [sys.executable, "-c", "from otel_mqtrace.cli import main; raise SystemExit(main())", "doctor", "--"]
    done = subprocess.run(
        [*asked, "no-such-program"], env=environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("mqtrace: error: no-such-program cannot be started")
    assert len(done.stderr.splitlines()) == 1


def _told(**changes):
    account = {"offered": 3, "exported": 3, "dropped": {}, "failed": 0, "pending": 0}
    return {
        "pid": 1,
        "program": "app.py",
        "client": "confluent-kafka",
        "outcome": "instrumented",
        "ended": True,
        "survey": {},
        "provider": "opentelemetry.sdk.trace.TracerProvider",
        "records": True,
        "processor": {"Exporter": {**account, **changes.pop("account", {})}},
        "unrecorded": {},
        "application_servers": None,
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "findings"),
    [
        ({}, []),
        ({"account": {"dropped": {"queue_full": 2}}}, ["spans_lost"]),
        ({"account": {"failed": 1}}, ["spans_lost"]),
        ({"account": {"offered": 0}}, ["nothing_recorded"]),
        ({"unrecorded": {"transaction_too_long": 5}}, ["unrecorded"]),
        ({"ended": False}, ["ended_abruptly"]),
        ({"outcome": "switched_off"}, ["switched_off"]),
        ({"outcome": "no_client"}, ["client_missing"]),
        ({"outcome": "no_client", "client": "aiokafka"}, ["not_instrumented"]),
    ],
)
def test_what_a_process_tells_is_judged(changes, findings):
    """Losses, silence, an end without exit handlers, a switch."""
    checkup = Checkup()
    examine_testimony(checkup, [_told(**changes)])
    assert [each.code for each in checkup.findings] == findings
