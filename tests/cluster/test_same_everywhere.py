"""One input gives one answer, wherever and however Spark runs: verdict rows equal as multisets, and the result."""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cluster_runs import DUAL, INPUTS, ROOT, arguments, conf_words, mqtrace, run, submit, verdict_rows
from tests.cluster.clusters import connect_server, spark_environment, standalone

pytestmark = pytest.mark.cluster

OF_THE_RUN = {
    "spark",
    "wall_seconds",
    "versions",
    "trend",
    "run",
}  # what it cost, when it was, its number in its history

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
from spark_jobs.jobs.options import ReconcileOptions
from spark_jobs.jobs.batch import run
from spark_jobs.report.files import render_reports, write_texts
from spark_jobs.session import build_session

native, otlp, out, varied = sys.argv[1:]
spark = build_session(master="local[2]")
for number, settings in enumerate(json.loads(varied)):
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    folder = Path(out) / str(number)
    run(ReconcileOptions(native=(native,), otlp=(otlp,), out=folder, grace_ms=0, profile="java-agent",
        native_writer="rocketmq-5.3.3"), spark=spark,
        report=lambda result, _: write_texts(render_reports(result), folder))
    assert {name: spark.conf.get(name) for name in settings} == settings, "the session's own settings came back"
    for name, value in before.items():
        spark.conf.set(name, value)
"""


Answer = tuple[Counter[str], dict[str, Any]]


def _reconciled(out: Path, *options: str, **environment: str) -> Answer:
    mqtrace(*arguments(out), *options, **environment)
    return _answer(out)


def _answer(out: Path) -> Answer:
    """Return the verdict rows as a multiset, and what the result says beside its own cost."""
    result = json.loads((out / "result.json").read_text())
    return verdict_rows(out), {name: value for name, value in result.items() if name not in OF_THE_RUN}


@pytest.fixture(scope="module")
def here(tmp_path_factory: Any) -> Answer:
    return _reconciled(tmp_path_factory.mktemp("spark"), "--master", "local[2]")


def test_settings_of_a_session_that_do_not_matter(here, tmp_path):
    """ANSI arithmetic or not, 1 to 200 partitions, adaptive or not, another time zone: the same, and they come back."""
    sides = [str(DUAL / name) for name in INPUTS]
    command = [sys.executable, "-c", _VARYING, *sides, str(tmp_path), json.dumps(VARIED)]
    run(command, spark_environment(PYTHONPATH=str(ROOT)))
    for number, settings in enumerate(VARIED):
        assert _answer(tmp_path / str(number)) == here, settings


def test_executors_in_processes_of_their_own(here, tmp_path):
    """``local-cluster``: what only worked because everything was one JVM fails here."""
    assert (
        _reconciled(tmp_path, "--master", "local-cluster[2,1,1024]", "--conf", "spark.sql.ansi.enabled=false") == here
    )


def test_standalone_cluster_with_only_the_zip_gives_the_same_rows(elsewhere, zipped, here, tmp_path):
    """``spark-submit`` as documented, with nothing of ours on any path but the zip; its master and settings count."""
    with standalone(tmp_path, elsewhere) as address:
        conf = conf_words({"spark.executor.memory": "512m", "spark.app.name": "of the user's"})
        run([*submit(address, zipped, *conf), *arguments(tmp_path / "out")], elsewhere, tmp_path)
        assert "of the user's" in (tmp_path / "master.log").read_text()
    assert _answer(tmp_path / "out") == here


def test_spark_connect_server_gives_the_same_rows(elsewhere, here, tmp_path):
    """A client without a JVM, a server without our code, found by ``SPARK_REMOTE``."""
    with connect_server(tmp_path, elsewhere) as address:
        answer = _reconciled(tmp_path / "out", SPARK_REMOTE=address)
    assert answer == here
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["spark"]["jobs"], result["spark"]["stages"]) == (None, None)
    assert result["versions"]["java"]
