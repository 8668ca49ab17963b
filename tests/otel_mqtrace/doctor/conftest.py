"""Run the doctor as a user does: the installed command, in an environment of its own."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.programs import MQTRACE, clean_environment, run_program

DOCTOR = (*MQTRACE, "doctor")
HEALTHY = {
    "MQTRACE_EXPORTERS": "mqtrace_native_file",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_METRICS_EXPORTER": "none",
    "OTEL_LOGS_EXPORTER": "none",
    "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka,aiokafka",
}
"""Records go to files, and nothing else is on."""


@pytest.fixture
def environment(tmp_path):
    """The environment of a healthy installation; what a test adds breaks it. ``None`` takes a variable away."""

    def make(**changes):
        made = clean_environment(**{**HEALTHY, "MQTRACE_LANDING_DIR": str(tmp_path / "landing"), **changes})
        return {name: value for name, value in made.items() if value is not None}

    return make


@pytest.fixture
def doctor(environment):
    """Run ``mqtrace doctor`` to its end."""

    return lambda *arguments, typed=None, **changes: run_program(
        *DOCTOR, *arguments, env=environment(**changes), input=typed
    )


@pytest.fixture
def ask(doctor):
    """Run ``mqtrace doctor --json`` and return its exit code, its findings by code, and its facts."""

    def run_json(*arguments, **changes):
        done = doctor("--json", *arguments, **changes)
        assert done.stdout, done.stderr
        report = json.loads(done.stdout.splitlines()[-1])
        assert report["healthy"] == (not report["findings"])
        return done.returncode, {each["code"]: each for each in report["findings"]}, report["facts"]

    return run_json


@pytest.fixture
def application(tmp_path):
    """Write a program and return the command line that runs it, under ``opentelemetry-instrument`` if asked for."""

    def write(text, *, instrumented=False):
        path = tmp_path / "app.py"
        path.write_text(text, encoding="utf-8")
        launcher = [str(Path(sys.executable).with_name("opentelemetry-instrument"))]
        return [*launcher * instrumented, sys.executable, str(path)]

    return write
