"""What is fetched for a peer: whole or not at all, and a skip with its reason where it cannot be had; and its ports."""

import os
from pathlib import Path

import pytest

from tests.peers import go_build
from tests.peers.peer import free_ports, jars_of, peers_cache
from tests.support.programs import run_python
from tests.support.source_tree import ROOT

POM = Path(__file__).parent / "kafka" / "broker.xml"
ONE_JAR = """for word; do case $word in -DoutputDirectory=*) folder=${word#*=};; esac; done
mkdir -p "$folder"; echo one > "$folder/one.jar"
"""


@pytest.fixture
def put_program(tmp_path, monkeypatch):
    """Put a program before all others of its name, given its shell script; what is fetched goes to an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    def put(name, script):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
        program.chmod(0o755)

    return put


def test_download_of_jars_that_ends_half_way_is_a_skip_and_leaves_nothing(put_program):
    put_program("mvn", ONE_JAR + "echo '[ERROR] Could not transfer two.jar'; exit 1\n")
    with pytest.raises(
        pytest.skip.Exception, match=r"Maven could not fetch Kafka's jars: \[ERROR\] Could not transfer"
    ):
        jars_of(POM, "Kafka")
    assert {path.suffix for path in peers_cache().iterdir()} == {".lock"}
    put_program("mvn", ONE_JAR)
    assert [path.name for path in jars_of(POM, "Kafka").iterdir()] == ["one.jar"]
    put_program("mvn", "exit 1")
    assert jars_of(POM, "Kafka").is_dir()


def test_download_of_modules_that_ends_half_way_is_a_skip(put_program):
    put_program("go", "echo 'go: downloading one v1.0.0' >&2; echo 'dial tcp: connection reset' >&2; exit 1\n")
    with pytest.raises(pytest.skip.Exception, match=r"the modules of jaeger: dial tcp: connection reset$"):
        go_build.built(go_build.PROGRAMS["jaeger"])


def test_ports_are_given_once_to_one_process_and_to_no_connection():
    own = free_ports(50)
    done = run_python("from tests.peers.peer import free_ports; print(*free_ports(500))", cwd=ROOT)
    others = [*map(int, done.stdout.split())]
    assert (len({*own, *others}), len(own) + len(others)) == (550, 550)
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split())
    assert not [port for port in own for each in (port, port - 2) if low <= each <= high]
