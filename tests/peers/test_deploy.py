"""``docs/deploy`` without containers: what its files copy, install and start, with other addresses, against real servers."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.peers.jaeger.server import JaegerQuery
from tests.peers.peer import ServerProcess
from tests.support.native_vectors import recorded
from tests.support.programs import answers, run_program
from tests.support.topics import put_messages

pytestmark = pytest.mark.peers

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
SERVICES = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
INSTALL_SECONDS, PATIENCE_SECONDS = 600, 60


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The programs of the image: the container file's COPY and pip lines, in a virtual environment instead."""
    root = tmp_path_factory.mktemp("image")
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    for sources, target in re.findall(r"^COPY (.+) /(\S+)$", text, re.MULTILINE):
        for source in sources.split():
            _copy(ROOT / source, root / target / ("" if target.endswith("/") else "."))
    subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True, timeout=INSTALL_SECONDS)
    (install,) = re.findall(r"^RUN (pip install .+)$", text, re.MULTILINE)
    words = [word.replace("/src", str(root / "src")) for word in shlex.split(install)[1:]]
    done = run_program(root / "venv" / "bin" / "pip", *words, timeout_s=INSTALL_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    return root / "venv" / "bin"


def _copy(source, target):
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


@pytest.fixture
def collector(start_collector, jaeger, tmp_path):
    return start_collector(
        DEPLOY / "collector.yaml", JAEGER=jaeger.grpc_endpoint, SPANS=tmp_path / "spans" / "traces.jsonl"
    )


@pytest.fixture
def bodies(kafka):
    """The trace messages of a Java application, on a topic made as the deployment makes it."""
    _make_topic(kafka)
    bodies = [each.body for each in recorded("dual-app-4.9.8-dup")]
    put_messages(kafka.bootstrap_servers, TRACE_TOPIC, *bodies)
    return bodies


def _make_topic(kafka):
    places = {"kafka:9092": kafka.bootstrap_servers}
    made = kafka.topics(*(_elsewhere(word, places) for word in SERVICES["trace-topic"]["command"]))
    assert made.returncode == 0, made.stdout + made.stderr
    kafka.await_topic(TRACE_TOPIC)


def test_topic_is_made_and_the_health_check_answers(kafka):
    places = {"localhost:9092": kafka.bootstrap_servers}
    kind, script, *check = SERVICES["kafka"]["healthcheck"]["test"]
    assert (kind, [script]) == ("CMD", SERVICES["trace-topic"]["entrypoint"])
    for _ in range(2):  # a second start of the deployment changes nothing
        _make_topic(kafka)
    listed = kafka.topics(*(_elsewhere(word, places) for word in check))
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert TRACE_TOPIC in listed.stdout.split()


def test_deployed_forwarder_puts_a_java_application_into_jaeger(
    image, collector, bodies, kafka, jaeger, tmp_path, monkeypatch
):
    places = {
        "kafka:9092": kafka.bootstrap_servers,
        "http://collector:4318": collector.traces_url.removesuffix("/v1/traces"),
    }
    places |= {"http://collector:4317": f"http://{collector.grpc_endpoint}", "/landing": str(tmp_path / "landing")}
    service = SERVICES["forwarder"]
    entry = json.loads(re.findall(r"^ENTRYPOINT (.+)$", (DEPLOY / "Containerfile").read_text("utf-8"), re.MULTILINE)[0])
    command = [str(image / entry[0]), str(image / entry[1]), *(_elsewhere(word, places) for word in service["command"])]
    environment = {name: _elsewhere(value, places) for name, value in service["environment"].items()}
    for name in [name for name in os.environ if name.startswith(("OTEL_", "MQTRACE_", "PYTHON"))]:
        monkeypatch.delenv(name)
    log = tmp_path / "log"
    assert service["restart"] == "always"
    forwarder = ServerProcess("the forwarder", log)
    forwarder.start(command, environment, lambda: forwarder.has_logged(b" accepted, "))
    try:
        query = JaegerQuery(jaeger.query_url)
        (trace_id,) = query.ids_with(
            "PG_tx_d498dup", traces=1, messaging__message__id="C000020262BB60E53B936993952C0000"
        )
        names = [span["name"].partition(" ")[0] for span in query.trace(trace_id, spans=9)]
        assert names == ["send", *["end_transaction"] * 2, *["process"] * 6]
    finally:
        assert forwarder.stop(PATIENCE_SECONDS) == 0, log.read_text("utf-8")
    assert re.search(r"^otelcol_receiver_accepted_metric_points\S* [1-9]", collector.metrics(), re.MULTILINE)
    collector.stop()

    (spans,) = answers("inspect", tmp_path / "spans", "--json")
    (records,) = answers("inspect", tmp_path / "landing", "--json")
    assert (spans["malformed"], records["malformed"]) == (0, 0)
    summary = re.search(r"([\d,]+) trace messages? .* as ([\d,]+) spans? to", log.read_text("utf-8"))
    assert tuple(int(count.replace(",", "")) for count in summary.groups()) == (len(bodies), spans["items"])
    assert records["items"] > spans["items"]  # two halves are one span


def _elsewhere(word, places):
    for place, ours in places.items():
        word = word.replace(place, ours)
    return word
