"""Tests with the oldest OpenTelemetry and pyarrow that are declared, without the development tools."""

import re
import subprocess
from importlib.metadata import requires

import pytest

from tests.install.conftest import CLEAN, pip_install
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.install

_TOOLS = ("pytest>=8.3", "pytest-xdist", "hypothesis", "billiard", "gevent", "gunicorn", "setuptools<80")
_TESTED = (
    "tests/otel_mqtrace",
    "--ignore=tests/otel_mqtrace/clients/rocketmq",
)  # whose client asks for a newer protobuf


def _oldest():
    bounds = dict(
        re.findall(r"^(opentelemetry-[a-z-]+)>=(\S+?)(?:;|$)", "\n".join(requires("otel-mqtrace") or ()), re.MULTILINE)
    )
    bounds.pop("opentelemetry-exporter-otlp-json-file", None)  # of the demo alone; it needs a newer SDK
    of_contrib = bounds["opentelemetry-instrumentation"]
    beside = ("opentelemetry-distro", "opentelemetry-instrumentation-confluent-kafka")
    stable = bounds["opentelemetry-sdk"]
    pins = {**bounds, **dict.fromkeys(beside, of_contrib), "opentelemetry-exporter-otlp": stable}
    return [f"{name}=={version if 'b' in version else version + '.0'}" for name, version in pins.items()]


def _run_tests(programs, tmp_path, *arguments):
    done = subprocess.run(
        [programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={**CLEAN, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-4_000:]


def test_library_passes_its_tests_with_the_oldest_opentelemetry(wheel, make_environment, tmp_path):
    programs = make_environment()
    pip_install(programs, f"{wheel}[cli,kafka,aiokafka,otlp,reconcile]", *_TOOLS, *_oldest())
    _run_tests(programs, tmp_path, "-n", "2", *_TESTED)


def test_spans_are_read_with_the_oldest_pyarrow(wheel, make_environment, tmp_path):
    programs = make_environment()
    (version,) = re.findall(r"^pyarrow>=([0-9.]+)", "\n".join(requires("otel-mqtrace") or ()), re.MULTILINE)
    pip_install(programs, f"{wheel}[cli,reconcile]", *_TOOLS[:3], f"pyarrow=={version}.*", "numpy<2")
    tests = "sources/test_otlp_json.py", "normalise/test_event_batches.py"
    _run_tests(programs, tmp_path, *(f"tests/spark_jobs/{name}" for name in tests))
