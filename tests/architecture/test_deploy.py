"""The files of ``docs/deploy``: well formed, in agreement, with commands and metrics that exist, every metric shown."""

import configparser
import json
import os
import re
import shlex
import shutil
import sys
from collections import Counter
from importlib import import_module
from itertools import product
from pathlib import Path

import pytest
import yaml

from tests.documents.stand_in import parsed
from tests.peers.go_build import PROGRAMS
from tests.peers.kafka.broker import VERSION
from tests.support.programs import run_program
from tests.support.source_tree import ROOT
from tools.monitoring import ALERTS, LEFT_OUT, PANELS, metric_names, resolve

DEPLOY = ROOT / "docs" / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
COLLECTOR = (DEPLOY / "collector.yaml").read_text(encoding="utf-8")
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
UNIT = (DEPLOY / "mqtrace-forward.service").read_text(encoding="utf-8")
OURS = [name for name, service in SERVICES.items() if "build" in service]


@pytest.mark.parametrize("name", OURS)
def test_container_of_ours_starts_a_command_that_exists(name):
    assert Path(parsed(*SERVICES[name]["command"])["landing"]).is_relative_to("/landing")
    assert SERVICES[name]["volumes"] == ["landing:/landing"]
    assert "VOLUME /landing" in CONTAINERFILE


def test_services_know_each_other():
    for service in SERVICES.values():
        assert ("image" in service) != ("build" in service)
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (DEPLOY / source).is_file()
    words = [word for name in OURS for word in (*SERVICES[name]["command"], *SERVICES[name]["environment"].values())]
    hosts = {host for word in words for host in re.findall(r"(?<=://)([a-z-]+):\d+", word)}
    assert hosts == {"kafka", "collector"}
    assert SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"].startswith("INSIDE://kafka:9092")


def test_collector_container_has_everything_its_configuration_needs():
    yaml.safe_load(COLLECTOR)
    assert set(re.findall(r"\$\{env:(\w+)\}", COLLECTOR)) == set(SERVICES["collector"]["environment"])
    assert {"4317", "4318"} == set(re.findall(r"0\.0\.0\.0:(\d+)", COLLECTOR))


def test_images_are_of_the_versions_that_are_tested():
    assert {SERVICES[name]["image"] for name in ("kafka", "trace-topic")} == {f"apache/kafka:{VERSION}"}
    assert SERVICES["collector"]["image"].endswith(f":{PROGRAMS['collector'].version}")


PUBLIC_IMAGES = {"python", "apache/kafka", "otel/opentelemetry-collector-contrib", "jaegertracing/jaeger"}


def _instructions():
    lines = [line for line in CONTAINERFILE.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def test_images_are_public_ones():
    images = [service["image"] for service in SERVICES.values() if "image" in service]
    images += [words for name, words in _instructions() if name == "FROM"]
    assert {image.partition(":")[0] for image in images} <= PUBLIC_IMAGES


def test_landing_is_made_as_the_container_file_makes_it(tmp_path):
    (line,) = [words for name, words in _instructions() if name == "RUN" and words.startswith("mkdir")]
    landing = tmp_path / "landing"
    owner = f"{os.getuid()}:{os.getgid()}"
    done = run_program("sh", "-ec", line.replace("/landing", str(landing)).replace("65532:65532", owner))
    assert (done.returncode, landing.is_dir()) == (0, True)
    assert ("USER", "65532:65532") in _instructions()


def test_everything_that_the_container_file_copies_is_there():
    copied = re.findall(r"^COPY (.+) \S+$", CONTAINERFILE, re.MULTILINE)
    assert [path for line in copied for path in line.split() if not (ROOT / path).exists()] == []
    assert re.findall(r"/src\[([a-z,]+)\]", CONTAINERFILE) == ["cli,kafka,otlp"]


def test_unit_starts_the_same_command():
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str
    unit.read_string(UNIT)
    start = unit["Service"]["ExecStart"]
    program, *words = shlex.split(start)
    assert program.endswith("/bin/mqtrace")
    assert parsed(*words)["otlp_endpoint"] == "${OTLP_ENDPOINT}"
    names = re.findall(r"^#   (\w+)=", UNIT, re.MULTILINE)
    assert set(re.findall(r"\$\{(\w+)\}", start)) == {*names, "STATE_DIRECTORY"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit(tmp_path):
    unit = tmp_path / "mqtrace-forward.service"
    unit.write_text(UNIT.replace("/opt/mqtrace/bin/mqtrace", str(Path(sys.executable).with_name("mqtrace"))))
    done = run_program("systemd-analyze", "verify", "--man=no", unit)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
    assert done.returncode == 0, done.stderr


NAMES = metric_names()
DASHBOARD = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
CREATED = re.compile(
    r'(?:create_(?:observable_)?(?:up_down_)?(?:counter|gauge|histogram)\(\s*|\((?="otel\.sdk\.))"([\w.]+)"'
)
"""A name where an instrument is made of it, or in a table of the SDK's own metrics."""
EXPRESSIONS = [*(expr for panel in PANELS for expr in panel.queries.values()), *(alert.expr for alert in ALERTS)]


def test_every_metric_that_the_code_creates_has_a_prometheus_name():
    written = {
        name
        for package in ("otel_mqtrace", "bridge", "spark_jobs")
        for path in (ROOT / package).rglob("*.py")
        for name in CREATED.findall(path.read_text(encoding="utf-8"))
    }
    assert written <= set(NAMES)
    assert len(written) >= 10


def test_every_metric_is_shown_or_left_out_with_a_reason():
    used = {name for expr in EXPRESSIONS for name in re.findall(r"<([a-z][\w.]+)>", expr)}
    assert used | set(LEFT_OUT) == set(NAMES)
    assert not used & set(LEFT_OUT)
    assert all(LEFT_OUT.values())


def test_metrics_in_the_expressions_are_those_of_the_code():
    texts = [re.sub(r"by \([^)]*\)", "", resolve(expr)) for expr in EXPRESSIONS]
    named = {name for text in texts for name in re.findall(r"\b(?:mqtrace|messaging|otel_sdk)_\w+", text)}
    assert {name.removesuffix("_bucket") for name in named} <= set(NAMES.values())


def test_panels_have_places_and_numbers_of_their_own():
    assert max(Counter(panel["id"] for panel in DASHBOARD["panels"]).values()) == 1
    cells = Counter()
    for place in (panel["gridPos"] for panel in DASHBOARD["panels"]):
        columns, rows = (range(place[at], place[at] + place[size]) for at, size in ("xw", "yh"))
        cells.update(product(columns, rows))
    assert set(cells.values()) == {1}
    assert max(x for x, _ in cells) == 23


def test_dashboard_is_one_by_the_models_of_grafana():
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason="its releases need Python 3.11")
    import_module("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    encoder = import_module("grafana_foundation_sdk.cog.encoder").JSONEncoder()
    read = json.loads(encoder.encode(models.Dashboard.from_json(DASHBOARD)))
    assert _within(DASHBOARD, read) == DASHBOARD
    assert _within(DASHBOARD | {"no_such_key": 1}, read) == DASHBOARD


def _within(ours, theirs):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {key: _within(value, theirs[key]) for key, value in ours.items() if key in theirs}
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [_within(*pair) for pair in zip(ours, theirs, strict=True)]
    return theirs
