"""One input gives one answer: on every store, on every master, however a session is set."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from bridge.storage.paths import StorePath, as_path, open_parquet
from bridge.storage.stores import use_settings
from tests.cluster import clusters
from tests.cluster.cluster_runs import DUAL, INPUTS, LONGEST_S, ROOT, arguments, mqtrace, put, run, submit, verdict_rows
from tests.peers.peer import until
from tests.proofs.bench.trace_day import write_day
from tests.support.programs import run_program, run_python

pytestmark = pytest.mark.cluster

STORES = {
    "azure": clusters.azure,
    "disk": lambda directory: nullcontext(clusters.TestStore(str(directory), {})),
    "gcs": clusters.gcs,
    "hdfs": clusters.hdfs,
    "s3": clusters.s3,
    "viewfs": clusters.viewfs,
}
ON_CLUSTERS = ["disk", "hdfs", "s3", "viewfs"]
WITH_MANIFESTS = sorted({*STORES} - {"disk"})
MESSAGES, HOT = int(os.environ.get("MQTRACE_DAY_MESSAGES", "20000")), 5_000


@contextmanager
def _filled(starting: AbstractContextManager[clusters.TestStore]) -> Iterator[clusters.TestStore]:
    with starting as running:
        use_settings(running.settings)
        for name in INPUTS:
            put(DUAL / name, as_path(running.root) / "in" / name)
        yield running
    use_settings({})


@pytest.fixture(scope="module", params=sorted(STORES))
def store(request: Any, tmp_path_factory: Any) -> Iterator[clusters.TestStore]:
    with _filled(STORES[request.param](tmp_path_factory.mktemp("store"))) as running:
        yield running


def _leftovers(out: str) -> list[str]:
    return [path.name for path in as_path(out).iterdir() if path.name.startswith(".work-")]


def test_two_runs_in_one_process_give_the_same_rows_and_one_set_of_files(store, here, tmp_path):
    out, conf = f"{store.root}/out/process", store.configuration(tmp_path / "conf")
    for _ in range(2):
        mqtrace(*arguments(out, f"{store.root}/in"), "--engine", "local", HADOOP_CONF_DIR=conf)
        assert verdict_rows(out) == here
    runs = (as_path(out) / "history" / "runs.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"] for line in runs] == [1, 2]
    assert not _leftovers(out)


@pytest.mark.parametrize("store", ON_CLUSTERS, indirect=True)
def test_workers_without_a_common_mount_and_without_our_package_give_the_same_rows(
    store, here, elsewhere, zipped, tmp_path
):
    out, driver = f"{store.root}/out/standalone", tmp_path / "driver"
    driver.mkdir()
    with clusters.standalone(tmp_path, elsewhere, hidden=driver) as address:
        own = {"spark.speculation": "true", "spark.executor.memory": "512m", "spark.app.name": "of the user's"}
        command = [
            *submit(address, zipped, *clusters.conf_words(own), *store.conf()),
            *arguments(out, f"{store.root}/in"),
        ]
        run(command, {**elsewhere, "TMPDIR": str(driver)}, driver)
        assert "of the user's" in (tmp_path / "master.log").read_text()
    assert verdict_rows(out) == here
    assert not _leftovers(out)


@pytest.mark.parametrize("store", ON_CLUSTERS, indirect=True)
def test_spark_connect_client_gives_the_same_rows(store, here, elsewhere, tmp_path):
    """A client without a JVM, a server without our code, found by ``SPARK_REMOTE``."""
    out, conf = f"{store.root}/out/connect", store.configuration(tmp_path / "conf")
    with clusters.connect_server(tmp_path, elsewhere) as address:
        mqtrace(*arguments(out, f"{store.root}/in"), SPARK_REMOTE=address, HADOOP_CONF_DIR=conf)
    assert verdict_rows(out) == here
    result = json.loads((as_path(out) / "result.json").read_text())
    assert (result["spark"]["jobs"], result["spark"]["stages"]) == (None, None)
    assert result["versions"]["java"]


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_yarn_gives_the_same_rows(mode, here, elsewhere, zipped, tmp_path):
    """Sources and ``--out`` are ``hdfs:///``: the file system is that of the cluster's own configuration."""
    with _filled(clusters.hdfs(tmp_path)) as store:
        conf, root = store.configuration(tmp_path / "conf"), "hdfs:///traces"
        memory = dict.fromkeys(("spark.executor.memory", "spark.yarn.am.memory", "spark.driver.memory"), "512m")
        names = ("PYTHONPATH", "PYSPARK_PYTHON", "JAVA_HOME")
        there = {
            f"{role}.{name}": elsewhere[name]
            for role in ("spark.yarn.appMasterEnv", "spark.executorEnv")
            for name in names
        }
        with clusters.yarn(tmp_path, Path(conf)):
            once = {"spark.yarn.maxAppAttempts": "1"}  # a failed gate is no reason to try again
            words = ["--deploy-mode", mode, *clusters.conf_words(memory | there | once)]
            command = [*submit("yarn", zipped, *words), *arguments(f"{root}/out", f"{root}/in")]
            run(command, {**elsewhere, "HADOOP_CONF_DIR": conf}, tmp_path)
        assert verdict_rows(f"{store.root}/out") == here
        runs = (as_path(store.root) / "out" / "history" / "runs.jsonl").read_text().splitlines()
        assert len(runs) == 1


def test_s3a_of_hadoop_reads_what_was_written(here, tmp_path):
    """Spark's own reader, given the files that ``_files.json`` names."""
    out = "s3a://traces/out"
    code = (
        "import json, sys\n"
        "from spark_jobs.session import build_session\n"
        "spark = build_session(master='local[1]', extra=json.loads(sys.argv[1]))\n"
        "print('rows', spark.read.parquet(sys.argv[2]).count())"
    )
    with _filled(clusters.s3(tmp_path)) as store:
        mqtrace(*arguments(out), "--engine", "local", HADOOP_CONF_DIR=store.configuration(tmp_path / "conf"))
        settings = {f"spark.hadoop.{name}": value for name, value in store.settings.items()}
        settings["spark.jars"] = clusters.s3a_jars()
        environment = clusters.spark_environment(PYTHONPATH=str(ROOT))
        done = run_python(code, json.dumps(settings), f"{out}/verdicts", env=environment, timeout_s=LONGEST_S)
        assert f"rows {here.total()}" in done.stdout, done.stderr[-2000:]


@pytest.mark.parametrize("store", WITH_MANIFESTS, indirect=True)
def test_forwarder_killed_while_landing_leaves_whole_parts_and_loses_nothing(store, tmp_path):
    bodies = [json.loads(line) for line in (DUAL / INPUTS[0]).read_text().splitlines()]
    source, landing = tmp_path / "source", f"{store.root}/landing"
    source.mkdir()
    for number in range(4):
        lines = (json.dumps(body) + "\n" for body in bodies[number::4])
        (source / f"{number}.jsonl").write_text("".join(lines))
    environment = clusters.spark_environment(
        PYTHONPATH=str(ROOT), HADOOP_CONF_DIR=store.configuration(tmp_path / "conf")
    )
    words = ("forward", "--source", str(source), "--landing", landing, "--state", str(tmp_path / "state"))
    command = [str(Path(sys.executable).with_name("mqtrace")), *words]
    native = as_path(landing) / "native"
    running = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: list(native.glob("date=*/part-*")) or running.poll() is not None, bool, patience_s=LONGEST_S)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    for manifest in native.glob("_manifest/*.json"):  # as if killed between a part and its counts
        manifest.unlink()
    assert run_program(*command, "--once", env=environment, timeout_s=LONGEST_S).returncode == 0
    (source / "4.jsonl").write_text(json.dumps(bodies[0]) + "\n")
    assert run_program(*command, "--once", env=environment, timeout_s=LONGEST_S).returncode == 0
    parts = [part for part in native.glob("date=*/part-*") if isinstance(part, StorePath)]
    counts = [json.loads(file.read_text()) for file in native.glob("_manifest/*.json")]
    assert {one["file"] for one in counts} == {part.relative_to(native).as_posix() for part in parts}
    rows = [row for part in parts for row in open_parquet(part).read(columns=["source", "offset", "body"]).to_pylist()]
    assert sum(one["messages"] for one in counts) == len(rows)
    assert len({(row["source"], row["offset"]) for row in rows}) == len(bodies) + 1


@pytest.mark.parametrize("store", ["hdfs"], indirect=True)
def test_day_with_a_hot_message_survives_an_executor_killed_during_the_shuffle(store, elsewhere, zipped, tmp_path):
    """One message is delivered thousands of times; speculation is on; a second run goes over the history."""
    day, out = tmp_path / "day", f"{store.root}/out/day"
    write_day(day, messages=MESSAGES, hot=HOT)
    put(day, as_path(store.root) / "day")
    truth = json.loads((day / "truth.json").read_text())
    mqtrace(*_of_day(day, tmp_path / "local"), "--engine", "local")
    expected = verdict_rows(tmp_path / "local")
    with clusters.standalone(tmp_path, elsewhere, hidden=day) as address:
        conf = clusters.conf_words({"spark.speculation": "true", "spark.executor.memory": "512m"})
        command = [*submit(address, zipped, *conf, *store.conf()), *_of_day(f"{store.root}/day", out)]
        for number in (1, 2):
            log = tmp_path / f"driver-{number}.log"
            with log.open("wb") as output:
                running = subprocess.Popen(command, env=elsewhere, stdout=output, stderr=output, cwd=tmp_path)
            if number == 1:
                _kill_an_executor(tmp_path, running)
            assert running.wait(timeout=LONGEST_S) in {0, 1}, log.read_text()[-3000:]
            result = json.loads((as_path(out) / "result.json").read_text())
            assert result["conservation"]["holds"]
            if number == 1:
                assert "Lost executor" in log.read_text()
                assert {name: result["status"].get(name, 0) for name in truth["status"]} == truth["status"]
                assert verdict_rows(out) == expected
    assert verdict_rows(out).total() == sum(result["status"].values())


def _of_day(inputs: str | Path, out: str | Path) -> list[str]:
    return ["reconcile", "--native", f"{inputs}/native", "--otlp", f"{inputs}/otlp", "--complete", "--out", str(out)]


def _kill_an_executor(logs: Path, driver: subprocess.Popen[bytes]) -> None:
    """Kill an executor once it has written what others fetch from it."""

    def shuffled() -> list[Path]:
        return [file for number in (1, 2) for file in (logs / f"worker-{number}" / "tmp").rglob("shuffle_*.data")]

    written = until(shuffled, lambda matches: bool(matches) or driver.poll() is not None, patience_s=LONGEST_S)
    assert written, "nothing was shuffled"
    worker = written[0].relative_to(logs).parts[0]
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            with suppress(OSError):
                is_executor = b"CoarseGrainedExecutorBackend" in (directory / "cmdline").read_bytes()
                if is_executor and str(logs / worker) in str((directory / "cwd").readlink()):
                    os.kill(int(directory.name), signal.SIGKILL)
                    return
    raise AssertionError("no executor was there to be killed")


OF_THE_RUN = {"spark", "wall_seconds", "versions", "trend", "run"}
"""What it cost, when it was, its number in its history."""

OTHER_SETTINGS = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.shuffle.partitions": "16",
    "spark.sql.session.timeZone": "Asia/Shanghai",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}


def _answer(out: Path) -> tuple[Counter[str], dict[str, Any]]:
    result = json.loads((out / "result.json").read_text())
    return verdict_rows(out), {name: value for name, value in result.items() if name not in OF_THE_RUN}


@pytest.fixture(scope="module")
def on_spark(tmp_path_factory: Any) -> tuple[Counter[str], dict[str, Any]]:
    out = tmp_path_factory.mktemp("spark")
    mqtrace(*arguments(out), "--master", "local[2]")
    return _answer(out)


@pytest.mark.parametrize(
    ("master", "settings"),
    [("local[2]", OTHER_SETTINGS), ("local-cluster[2,1,1024]", {"spark.sql.ansi.enabled": "false"})],
    ids=["other settings", "executors in processes of their own"],
)
def test_settings_and_processes_of_a_session_do_not_matter(master, settings, on_spark, tmp_path):
    """``local-cluster``: what only worked because everything was one JVM fails here."""
    mqtrace(*arguments(tmp_path), "--master", master, *clusters.conf_words(settings))
    assert _answer(tmp_path) == on_spark
