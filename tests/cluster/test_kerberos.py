"""HDFS with Kerberos: the same rows with the ticket of ``kinit``, one line without it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.storage.paths import open_parquet
from tests.cluster.cluster_runs import DUAL, INPUTS, LONGEST_S, ROOT, arguments, mqtrace, verdict_rows
from tests.cluster.clusters import secure_hdfs, spark_environment
from tests.peers.peer import PeerUnavailableError
from tests.support.programs import run_program

pytestmark = pytest.mark.cluster

# A JVM of Hadoop's is with Kerberos or without for good: files are copied by processes of their own.
_COPY = """
import sys
from bridge.storage.paths import as_path
from tests.cluster.cluster_runs import put
put(*map(as_path, sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: Any) -> Iterator[dict[str, str]]:
    """The environment of a user with a ticket, whose directory ``hdfs:///traces`` holds the recorded pair."""
    try:
        with secure_hdfs(tmp_path_factory.mktemp("kerberos")) as environment:
            _copy(*(word for name in INPUTS for word in (DUAL / name, f"hdfs:///traces/in/{name}")), **environment)
            yield environment
    except PeerUnavailableError as error:
        pytest.skip(f"HDFS with Kerberos: {error}")


def _copy(*places: str | Path, **environment: str) -> None:
    for source, target in zip(places[::2], places[1::2], strict=True):
        command = [sys.executable, "-c", _COPY, str(source), str(target)]
        subprocess.run(
            command, env=spark_environment(PYTHONPATH=str(ROOT), **environment), check=True, timeout=LONGEST_S
        )


@pytest.mark.parametrize("engine", [("--engine", "local"), ("--master", "local[2]")], ids=["local", "spark"])
def test_ticket_of_kinit_gives_the_same_rows(engine, user, here, tmp_path):
    out = f"hdfs:///traces/out/{engine[1]}"
    mqtrace(*arguments(out, "hdfs:///traces/in"), *engine, **user)
    _copy(f"{out}/verdicts", tmp_path / "verdicts", **user)
    assert verdict_rows(tmp_path) == here


def _forward(source: Path, landing: str) -> list[str]:
    return ["forward", "--source", str(source), "--landing", landing, "--state", f"{source}-state", "--once"]


def _mqtrace(words: list[str], environment: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("mqtrace")
    return run_program(program, *words, env=environment, cwd=cwd, timeout_s=LONGEST_S)


def test_forwarder_lands_with_a_ticket(user, tmp_path):
    bodies = (DUAL / INPUTS[0]).read_text()
    (tmp_path / "source.jsonl").write_text(bodies)
    done = _mqtrace(_forward(tmp_path / "source.jsonl", "hdfs:///traces/landing"), spark_environment(**user), tmp_path)
    assert done.returncode == 0, done.stderr
    _copy("hdfs:///traces/landing/native", tmp_path / "native", **user)
    (part,) = (tmp_path / "native").glob("date=*/part-*")
    assert open_parquet(part).metadata.num_rows == len(bodies.splitlines())
    (counts,) = (tmp_path / "native").glob("_manifest/*.json")
    assert json.loads(counts.read_text())["file"] == part.relative_to(tmp_path / "native").as_posix()


@pytest.mark.parametrize("command", ["local", "spark", "forward"])
def test_missing_ticket_is_one_line_and_exit_code_2(command, user, tmp_path):
    (tmp_path / "source.jsonl").write_text((DUAL / INPUTS[0]).read_text())
    words = {
        "local": [*arguments(tmp_path / "out", "hdfs:///traces/in"), "--engine", "local"],
        "spark": [*arguments(tmp_path / "out", "hdfs:///traces/in"), "--master", "local[2]"],
        "forward": _forward(tmp_path / "source.jsonl", "hdfs:///traces/refused"),
    }[command]
    done = _mqtrace(words, spark_environment(**{**user, "KRB5CCNAME": str(tmp_path / "none")}), tmp_path)
    assert done.returncode == 2, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("Picked up JAVA_TOOL_OPTIONS"))
    assert line.startswith("mqtrace: error: cannot ")
    assert "no valid Kerberos ticket (kinit) or token; check its address and credentials" in line
