"""The files of ``docs/deploy`` are well formed, agree with each other, and start commands that exist."""

import configparser
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.documents.stand_in import parsed
from tests.peers.go_build import PROGRAMS
from tests.peers.kafka.broker import VERSION
from tests.support.programs import run_program

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES = COMPOSE["services"]
COLLECTOR = (DEPLOY / "collector.yaml").read_text(encoding="utf-8")
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
OURS = [name for name, service in SERVICES.items() if "build" in service]


def _unit():
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str
    unit.read(DEPLOY / "mqtrace-forward.service", encoding="utf-8")
    return unit


@pytest.mark.parametrize("name", OURS)
def test_container_of_ours_starts_a_command_that_exists(name):
    options = parsed(*SERVICES[name]["command"])
    assert Path(options["landing"]).is_relative_to("/landing")
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
    asked = set(re.findall(r"\$\{env:(\w+)\}", COLLECTOR))
    assert asked == set(SERVICES["collector"]["environment"])
    listens = set(re.findall(r"0\.0\.0\.0:(\d+)", COLLECTOR))
    assert {"4317", "4318"} == listens


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
    start = _unit()["Service"]["ExecStart"]
    program, *words = shlex.split(start)
    assert program.endswith("/bin/mqtrace")
    assert parsed(*words)["otlp_endpoint"] == "${OTLP_ENDPOINT}"
    names = set(
        re.findall(r"^#   (\w+)=", (DEPLOY / "mqtrace-forward.service").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert set(re.findall(r"\$\{(\w+)\}", start)) == {*names, "STATE_DIRECTORY"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit(tmp_path):
    text = (DEPLOY / "mqtrace-forward.service").read_text(encoding="utf-8")
    unit = tmp_path / "mqtrace-forward.service"
    unit.write_text(text.replace("/opt/mqtrace/bin/mqtrace", str(Path(sys.executable).with_name("mqtrace"))))
    done = run_program("systemd-analyze", "verify", "--man=no", unit)
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
    assert done.returncode == 0, done.stderr
