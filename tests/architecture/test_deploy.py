"""The files of ``docs/deploy`` are well formed, agree with each other, and start commands that exist."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer
import yaml

from tests.peers.go_build import PROGRAMS
from tests.peers.kafka.broker import VERSION

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


def _parsed(words):
    """What the real command makes of its words: it refuses an option that does not exist."""
    (entry,) = entry_points(group="mqtrace.commands", name=words[0])
    app = typer.Typer()
    app.command()(entry.load())
    return typer.main.get_command(app).make_context(words[0], words[1:]).params


@pytest.mark.parametrize("name", OURS)
def test_a_container_of_ours_starts_a_command_that_exists(name):
    """Its words are options of the command, with values of their types."""
    options = _parsed(SERVICES[name]["command"])
    assert options["landing"].is_relative_to("/landing")
    assert SERVICES[name]["volumes"] == ["landing:/landing"]
    assert "VOLUME /landing" in CONTAINERFILE


def test_an_option_that_does_not_exist_would_be_found():
    """The check above can fail."""
    with pytest.raises(Exception, match="No such option"):
        _parsed(["forward", "--source=files:.", "--no-such-option=1"])


def test_the_services_know_each_other():
    """Who is waited for, spoken to or mounted is there."""
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


def test_the_collector_is_told_everything_that_its_configuration_asks_for():
    """What has no default comes from the compose file; where ours send to is where it listens."""
    yaml.safe_load(COLLECTOR)
    asked = set(re.findall(r"\$\{env:(\w+)\}", COLLECTOR))
    assert asked == set(SERVICES["collector"]["environment"])
    listens = set(re.findall(r"0\.0\.0\.0:(\d+)", COLLECTOR))
    assert {"4317", "4318"} == listens


def test_the_images_are_of_the_versions_that_are_tested():
    """Kafka and the Collector: what ``make test-peers`` speaks with."""
    assert {SERVICES[name]["image"] for name in ("kafka", "trace-topic")} == {f"apache/kafka:{VERSION}"}
    assert SERVICES["collector"]["image"].endswith(f":{PROGRAMS['collector'].version}")


def test_everything_that_the_container_file_copies_is_there():
    """And the extras that it installs exist."""
    copied = re.findall(r"^COPY (.+) \S+$", CONTAINERFILE, re.MULTILINE)
    assert [path for line in copied for path in line.split() if not (ROOT / path).exists()] == []
    assert re.findall(r"/src\[([a-z,]+)\]", CONTAINERFILE) == ["cli,kafka,otlp"]


def test_the_unit_starts_the_same_command():
    """Its variables are those that its head tells to set, or systemd's own."""
    start = _unit()["Service"]["ExecStart"]
    program, *words = shlex.split(start)
    assert program.endswith("/bin/mqtrace")
    assert _parsed(words)["otlp_endpoint"] == "${OTLP_ENDPOINT}"
    told = set(
        re.findall(r"^#   (\w+)=", (DEPLOY / "mqtrace-forward.service").read_text(encoding="utf-8"), re.MULTILINE)
    )
    assert set(re.findall(r"\$\{(\w+)\}", start)) == {*told, "STATE_DIRECTORY"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_understands_the_unit(tmp_path):
    """Every section, key and value; the program is this environment's, for it must exist."""
    text = (DEPLOY / "mqtrace-forward.service").read_text(encoding="utf-8")
    unit = tmp_path / "mqtrace-forward.service"
    unit.write_text(text.replace("/opt/mqtrace/bin/mqtrace", str(Path(sys.executable).with_name("mqtrace"))))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False, timeout=60
    )
    assert [line for line in done.stderr.splitlines() if unit.name in line] == []
    assert done.returncode == 0, done.stderr
