"""What a reader installs, each in an environment of its own: documented pages, one client alone, and the oldest versions."""

import os
import re
import shutil
import sys
from importlib.metadata import requires
from itertools import groupby

import pytest

from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.documented_world import application_run, documented_world
from tests.support.documents import INSTALLED, blocks
from tests.support.programs import run_program
from tests.support.source_tree import ROOT

pytestmark = pytest.mark.install

CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PIP_", "OTEL_", "MQTRACE_", "PYTHONPATH"))
} | {"PIP_NO_COMPILE": "1"}  # each environment is used once: compiling all of it ahead is a third of an installation


@pytest.fixture(scope="session")
def wheel():
    wheels = sorted((ROOT / "dist").glob("otel_mqtrace-*.whl"))
    assert len(wheels) == 1, "run make wheel"
    return wheels[0]


@pytest.fixture
def make_environment(tmp_path):
    """Make a virtual environment and install ``requirements``; return its ``bin``."""

    def make(*requirements):
        programs = tmp_path / "env" / "bin"
        assert run_program(sys.executable, "-m", "venv", programs.parent, env=CLEAN).returncode == 0
        if requirements:  # without the constraints of this project's own
            pip = programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"
            done = run_program(*pip, *requirements, env=CLEAN)
            assert done.returncode == 0, done.stderr
        return programs

    return make


QUICK = {name: value for name, value in CLEAN.items() if name.startswith("PIP_")}
WALKED = {
    page: [block for block in group if block.language == "sh"]
    for page, group in groupby(blocks(), key=lambda block: block.page)
    if page.startswith(INSTALLED)
}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    return application_run(tmp_path_factory.mktemp("application"))


def test_every_page_with_commands_is_walked():
    assert {"README.md", "docs/quickstart.md", "docs/how-to/kafka-application.md"} <= set(WALKED)


@pytest.mark.parametrize("page", [page for page, group in WALKED.items() if group])
def test_page_works_with_what_it_installs(page, left, wheel, make_environment, tmp_path):
    programs = make_environment()
    for block in WALKED[page]:
        home = shutil.copytree(left.home, tmp_path / str(block.number), symlinks=True)
        if "forward" in block.text and "files:" not in block.text:
            shutil.rmtree(home / "landing")  # the block makes it
        with documented_world(left) as world:
            text = world.placed(block.text).replace("'.[", f"'{wheel}[").replace("pip install", "pip install --quiet")
            world.run(text, home, on_spark="spark-cluster" not in page, programs=programs, **QUICK)
    checked = run_program(programs / "python", "-m", "pip", "check", env=CLEAN)
    assert checked.returncode == 0, checked.stdout


HANGS = ("-o", "faulthandler_timeout=600", "-o", "faulthandler_exit_on_timeout=true", "--max-worker-restart=0")
"""A test that hangs fails by name."""
TOOLS = ("pytest>=9.1", "pytest-xdist", "hypothesis", "billiard", "gevent", "gunicorn", "setuptools<80")
REQUIRED = "\n".join(requires("otel-mqtrace") or ())


def _oldest():
    bounds = dict(re.findall(r"^(opentelemetry-[a-z-]+)>=(\S+?)(?:;|$)", REQUIRED, re.MULTILINE))
    bounds.pop("opentelemetry-exporter-otlp-json-file", None)  # of the demo alone; it needs a newer SDK
    of_contrib = bounds["opentelemetry-instrumentation"]
    beside = ("opentelemetry-distro", "opentelemetry-instrumentation-confluent-kafka")
    stable = bounds["opentelemetry-sdk"]
    pins = {**bounds, **dict.fromkeys(beside, of_contrib), "opentelemetry-exporter-otlp": stable}
    return [f"{name}=={version if 'b' in version else version + '.0'}" for name, version in pins.items()]


def _run_tests(programs, tmp_path, *arguments):
    pytest_command = programs / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *HANGS
    environment = {**CLEAN, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = run_program(*pytest_command, *arguments, cwd=ROOT, env=environment, timeout_s=2_400)
    assert done.returncode == 0, done.stdout[-4_000:]


def test_library_passes_its_tests_with_the_oldest_opentelemetry(wheel, make_environment, tmp_path):
    programs = make_environment(f"{wheel}[cli,kafka,aiokafka,otlp,reconcile]", *TOOLS, *_oldest())
    newer = "--ignore=tests/otel_mqtrace/clients/rocketmq"  # whose client asks for a newer protobuf
    _run_tests(programs, tmp_path, "-n", "2", "tests/otel_mqtrace", newer)


def test_spans_are_read_with_the_oldest_pyarrow(wheel, make_environment, tmp_path):
    (version,) = re.findall(r"^pyarrow>=([0-9.]+)", REQUIRED, re.MULTILINE)
    programs = make_environment(f"{wheel}[cli,reconcile]", *TOOLS[:3], f"pyarrow=={version}.*", "numpy<2")
    tests = "sources/test_otlp_json.py", "normalise/test_event_batches.py"
    _run_tests(programs, tmp_path, *(f"tests/spark_jobs/{name}" for name in tests))


CONFLUENT = """
import sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1]})
producer.produce("orders", b"paid")
assert producer.flush(20) == 0
"""
AIOKAFKA = """
import asyncio, sys
from aiokafka import AIOKafkaProducer
async def main():
    async with AIOKafkaProducer(bootstrap_servers=sys.argv[1]) as producer:
        await producer.send_and_wait("orders", b"paid")
asyncio.run(main())
"""


@pytest.mark.parametrize(("extra", "program"), [("kafka", CONFLUENT), ("aiokafka", AIOKAFKA)])
def test_one_client_is_traced_without_a_warning(extra, program, wheel, make_environment, tmp_path):
    programs = make_environment(f"{wheel}[{extra},cli]", "opentelemetry-distro")
    (tmp_path / "app.py").write_text(program, encoding="utf-8")
    settings = {
        "PATH": f"{programs}:{CLEAN['PATH']}",
        "MQTRACE_EXPORTERS": "mqtrace_native_file",
        "MQTRACE_LANDING_DIR": str(tmp_path / "landing"),
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        command = ["opentelemetry-instrument", "python", "app.py", kafka.bootstrap_servers]
        done = run_program(*command, env={**CLEAN, **settings}, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mqtrace" not in done.stderr
    assert '"name": "send orders"' in done.stdout
    assert list((tmp_path / "landing").rglob("part-*.jsonl"))
