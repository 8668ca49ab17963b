"""One input gives one answer, wherever and however Spark runs: verdict rows equal as multisets, and the result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spark_jobs.package import main as package
from tests.support.clusters import SPARK_HOME, connect_server, spark_environment, standalone

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
DUAL = ROOT / "tests" / "vectors" / "dual" / "scenarios-5.3.3-old"
OF_THE_RUN = {
    "spark",
    "wall_seconds",
    "versions",
    "trend",
    "run",
}  # what it cost, when it was, its number in its history
LONGEST_S = 600

# The settings of a session that must not matter, one set of them after the other in one session.
VARIED = [
    {"spark.sql.ansi.enabled": "false"},
    {"spark.sql.shuffle.partitions": "1"},
    {"spark.sql.shuffle.partitions": "16", "spark.sql.session.timeZone": "Asia/Shanghai"},
    {"spark.sql.shuffle.partitions": "200", "spark.sql.adaptive.enabled": "true"},
    {
        "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
        "spark.sql.legacy.javaCharsets": "false",
        "spark.sql.codegen.wholeStage": "true",
        "spark.sql.codegen.factoryMode": "FALLBACK",
    },
]
_VARYING = """
import json, sys
from pathlib import Path
from spark_jobs.jobs.batch import ReconcileOptions, run
from spark_jobs.report.files import write_reports
from spark_jobs.session import build_session

native, otlp, out, varied = sys.argv[1:]
spark = build_session(master="local[2]")
for number, settings in enumerate(json.loads(varied)):
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    folder = Path(out) / str(number)
    write_reports(run(ReconcileOptions(native=(native,), otlp=(otlp,), out=folder, grace_ms=0,
        profile="java-agent", native_writer="rocketmq-5.3.3"), spark=spark), folder)
    assert {name: spark.conf.get(name) for name in settings} == settings, "the session's own settings came back"
    for name, value in before.items():
        spark.conf.set(name, value)
"""


def _arguments(out: Path) -> list[str]:
    sides = ["--native", str(DUAL / "native.jsonl"), "--otlp", str(DUAL / "otlp.pb.framed")]
    written_by = ["--profile", "java-agent", "--native-writer", "rocketmq-5.3.3"]
    return ["reconcile", *sides, *written_by, "--grace", "0", "--out", str(out)]


def _run(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False, cwd=Path.home()
    )
    assert done.returncode in {0, 1}, done.stderr[-3000:]  # a gate may fail: the recording has losses


def _reconciled(out: Path, *options: str, **environment: str) -> tuple[Counter, dict]:
    command = [sys.executable, "-m", "spark_jobs", *_arguments(out), *options]
    _run(command, spark_environment(PYTHONPATH=str(ROOT), **environment))
    return _answer(out)


def _answer(out: Path) -> tuple[Counter, dict]:
    """Return the verdict rows as a multiset, and what the result says beside its own cost."""
    rows = pq.read_table(out / "verdicts").to_pylist()
    told = json.loads((out / "result.json").read_text())
    return Counter(map(repr, rows)), {name: value for name, value in told.items() if name not in OF_THE_RUN}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The answer of a plain local run."""
    return _reconciled(tmp_path_factory.mktemp("here"), "--master", "local[2]")


@pytest.fixture(scope="module")
def zipped(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("zip") / "mqtrace-spark.zip"
    assert package(["--out", str(target)]) == 0
    return target


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory) -> dict[str, str]:
    """The environment of a machine that has our dependencies and not us: another Python, a folder of packages."""
    packages = tmp_path_factory.mktemp("packages")
    for place in {Path(path) for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}}:
        for item in place.iterdir():
            if "otel_mqtrace" not in item.name and not (packages / item.name).exists():
                (packages / item.name).symlink_to(item)
    python = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    environment = spark_environment(PYTHONPATH=str(packages), PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python)
    question = [python, "-c", "import pyarrow, otel_mqtrace"]
    asked = subprocess.run(question, env=environment, capture_output=True, text=True, check=False, cwd=packages)
    assert "No module named 'otel_mqtrace'" in asked.stderr, "our packages must not be there"
    return environment


def test_settings_of_a_session_that_do_not_matter(here, tmp_path):
    """ANSI arithmetic or not, 1 to 200 partitions, adaptive or not, another time zone: the same, and they come back."""
    sides = [str(DUAL / "native.jsonl"), str(DUAL / "otlp.pb.framed")]
    _run(
        [sys.executable, "-c", _VARYING, *sides, str(tmp_path), json.dumps(VARIED)],
        spark_environment(PYTHONPATH=str(ROOT)),
    )
    for number, settings in enumerate(VARIED):
        assert _answer(tmp_path / str(number)) == here, settings


def test_executors_in_processes_of_their_own(here, tmp_path):
    """``local-cluster``: what only worked because everything was one JVM fails here."""
    assert (
        _reconciled(tmp_path, "--master", "local-cluster[2,1,1024]", "--conf", "spark.sql.ansi.enabled=false") == here
    )


def test_a_standalone_cluster_whose_machines_have_the_zip_only(elsewhere, zipped, here, tmp_path):
    """``spark-submit`` as documented, with nothing of ours on any path but the zip; its master and settings count."""
    with standalone(tmp_path, elsewhere) as address:
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", address, "--py-files", str(zipped)]
        settings = ["--conf", "spark.executor.memory=512m", "--conf", "spark.app.name=of the user's"]
        script = str(ROOT / "spark_jobs" / "__main__.py")
        _run([*submit, *settings, script, *_arguments(tmp_path / "out")], elsewhere)
        assert "of the user's" in (tmp_path / "master.log").read_text()
    assert _answer(tmp_path / "out") == here


def test_a_spark_connect_server(elsewhere, here, tmp_path):
    """A client without a JVM, a server without our code, found by ``SPARK_REMOTE``."""
    with connect_server(tmp_path, elsewhere) as address:
        answer = _reconciled(tmp_path / "out", SPARK_REMOTE=address)
    assert answer == here
    told = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (told["spark"]["jobs"], told["spark"]["stages"]) == (None, None)
    assert told["versions"]["java"]
