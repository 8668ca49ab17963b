"""The same verdicts wherever files lie: HDFS and S3 as sources and ``--out``, on every master that can be had here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bridge.storage import StorePath, as_path, open_parquet, use_settings
from spark_jobs.package import main as package
from spark_jobs.storage import list_files
from tests.peers.peer import until
from tests.proofs.bench.trace_day import write_day
from tests.support.clusters import (
    SPARK_HOME,
    TestStore,
    connect_server,
    hdfs,
    s3,
    s3a_jars,
    spark_environment,
    standalone,
    yarn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
DUAL = ROOT / "tests" / "vectors" / "dual" / "scenarios-5.3.3-old"
INPUTS = ("native.jsonl", "otlp.pb.framed")
STORES = {"hdfs": hdfs, "s3": s3}
LONGEST_S = 900
SCRIPT = str(ROOT / "spark_jobs" / "__main__.py")


@pytest.fixture(scope="module", params=sorted(STORES))
def store(request: Any, tmp_path_factory: Any) -> Iterator[TestStore]:
    with STORES[request.param](tmp_path_factory.mktemp("store")) as running:
        use_settings(running.settings)
        for name in INPUTS:
            _put(DUAL / name, as_path(running.root) / "in" / name)
        yield running
    use_settings({})


@pytest.fixture(scope="module")
def here(tmp_path_factory: Any) -> Counter[str]:
    """The verdicts of a run in one process on local files."""
    out = tmp_path_factory.mktemp("here")
    _mqtrace(*_arguments(str(DUAL), str(out)), "--engine", "local")
    return verdict_rows(str(out))


def _put(source: Path, target: Any) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())


def _arguments(inputs: str, out: str) -> list[str]:
    sides = ["--native", f"{inputs}/{INPUTS[0]}", "--otlp", f"{inputs}/{INPUTS[1]}"]
    written_by = ["--profile", "java-agent", "--native-writer", "rocketmq-5.3.3"]
    return ["reconcile", *sides, *written_by, "--grace", "0", "--out", out]


def _run(command: list[str], environment: dict[str, str], cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False, cwd=cwd
    )
    told = done.stderr[-3000:] + done.stdout[-3000:]  # spark-submit joins both of Python's into its own output
    assert done.returncode in {0, 1}, told  # a gate may fail: the recording has losses


def _mqtrace(*words: str, **environment: str) -> None:
    _run([sys.executable, "-m", "spark_jobs", *words], spark_environment(PYTHONPATH=str(ROOT), **environment))


def verdict_rows(out: str) -> Counter[str]:
    """Return the verdict rows below ``out`` as a multiset, without where each side was read."""
    rows: Counter[str] = Counter()
    for file in list_files(as_path(out) / "verdicts"):
        for row in open_parquet(file).read().to_pylist():
            for side in ("native", "otlp"):
                (row[side] or {}).pop("path", None)
            rows[repr(row)] += 1
    return rows


def _leftovers(out: str) -> list[str]:
    return [path.name for path in as_path(out).iterdir() if path.name.startswith(".work-")]


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: Any) -> Path:
    target = tmp_path_factory.mktemp("zip") / "mqtrace-spark.zip"
    assert package(["--out", str(target)]) == 0
    return target


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: Any) -> dict[str, str]:
    """The environment of a machine that has our dependencies and not us."""
    packages = tmp_path_factory.mktemp("packages")
    for place in {Path(path) for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}}:
        for item in place.iterdir():
            if "otel_mqtrace" not in item.name and not (packages / item.name).exists():
                (packages / item.name).symlink_to(item)
    python = str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}")
    environment = spark_environment(PYTHONPATH=str(packages), PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=python)
    asked = [python, "-c", "import pyarrow, otel_mqtrace"]
    said = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False, cwd=packages)
    assert "No module named 'otel_mqtrace'" in said.stderr
    return environment


def test_two_runs_in_one_process_give_the_same_rows_and_one_set_of_files(store, here, tmp_path):
    out, conf = f"{store.root}/out/process", store.configuration(tmp_path / "conf")
    for _ in range(2):
        _mqtrace(*_arguments(f"{store.root}/in", out), "--engine", "local", HADOOP_CONF_DIR=conf)
        assert verdict_rows(out) == here
    runs = (as_path(out) / "history" / "runs.jsonl").read_text().splitlines()
    assert [json.loads(line)["run"] for line in runs] == [1, 2]
    assert not _leftovers(out)


def test_workers_without_a_common_mount_and_without_our_package_give_the_same_rows(
    store, here, elsewhere, zipped, tmp_path
):
    """Workers see an empty directory where the driver's files are; settings and code reach them through Spark."""
    out, driver = f"{store.root}/out/standalone", tmp_path / "driver"
    driver.mkdir()
    with standalone(tmp_path, elsewhere, hidden=driver) as address:
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", address, "--py-files", str(zipped)]
        speculative = ["--conf", "spark.speculation=true", "--conf", "spark.executor.memory=512m"]
        command = [*submit, *speculative, *store.conf(), SCRIPT, *_arguments(f"{store.root}/in", out)]
        _run(command, {**elsewhere, "TMPDIR": str(driver)}, cwd=driver)
    assert verdict_rows(out) == here
    assert not _leftovers(out)


def test_spark_connect_client_gives_the_same_rows(store, here, elsewhere, tmp_path):
    out, conf = f"{store.root}/out/connect", store.configuration(tmp_path / "conf")
    with connect_server(tmp_path, elsewhere) as address:
        _mqtrace(*_arguments(f"{store.root}/in", out), "--master", address, HADOOP_CONF_DIR=conf)
    assert verdict_rows(out) == here


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_yarn_gives_the_same_rows(mode, here, elsewhere, zipped, tmp_path):
    with hdfs(tmp_path) as store:
        use_settings(store.settings)
        for name in INPUTS:
            _put(DUAL / name, as_path(store.root) / "in" / name)
        conf, out = store.configuration(tmp_path / "conf"), f"{store.root}/out/yarn"
        with yarn(tmp_path, Path(conf)):
            submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", mode]
            memory = ("spark.executor.memory", "spark.yarn.am.memory", "spark.driver.memory")
            settings = [word for name in memory for word in ("--conf", f"{name}=512m")]
            there = [
                word
                for name in ("PYTHONPATH", "PYSPARK_PYTHON", "JAVA_HOME")
                for role in ("appMasterEnv", "executorEnv")
                for word in (
                    "--conf",
                    f"spark.{'yarn.' if role == 'appMasterEnv' else ''}{role}.{name}={elsewhere[name]}",
                )
            ]
            files = ["--py-files", str(zipped), SCRIPT]
            command = [*submit, *settings, *there, *files, *_arguments(f"{store.root}/in", out)]
            _run(command, {**elsewhere, "HADOOP_CONF_DIR": conf}, cwd=tmp_path)
        assert verdict_rows(out) == here
    use_settings({})


def test_s3a_of_hadoop_reads_what_was_written(here, tmp_path):
    """Spark's own reader, given the files that ``_files.json`` names."""
    with s3(tmp_path) as store:
        use_settings(store.settings)
        out = "s3a://traces/out"
        _mqtrace(
            *_arguments(str(DUAL), out), "--engine", "local", HADOOP_CONF_DIR=store.configuration(tmp_path / "conf")
        )
        settings = {f"spark.hadoop.{name}": value for name, value in store.settings.items()}
        code = (
            "import json, sys; from spark_jobs.session import build_session\n"
            "spark = build_session(master='local[1]', extra=json.loads(sys.argv[1]))\n"
            "print('rows', spark.read.parquet(sys.argv[2]).count())"
        )
        extra = json.dumps({**settings, "spark.jars": s3a_jars()})
        done = subprocess.run(
            [sys.executable, "-c", code, extra, f"{out}/verdicts"],
            env=spark_environment(PYTHONPATH=str(ROOT)),
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
        assert f"rows {here.total()}" in done.stdout, done.stderr[-2000:]
    use_settings({})


def test_forwarder_killed_while_landing_leaves_whole_parts_and_loses_nothing(store, tmp_path):
    """The landing is reconciled where it lies; a message that was landed twice counts once."""
    bodies = [json.loads(line) for line in (DUAL / INPUTS[0]).read_text().splitlines()]
    source, landing = tmp_path / "source", f"{store.root}/landing"
    source.mkdir()
    for number in range(4):
        lines = (json.dumps(body) + "\n" for body in bodies[number::4])
        (source / f"{number}.jsonl").write_text("".join(lines))
    environment = spark_environment(PYTHONPATH=str(ROOT), HADOOP_CONF_DIR=store.configuration(tmp_path / "conf"))
    words = ("forward", "--source", str(source), "--landing", landing, "--state", str(tmp_path / "state"))
    command = [str(Path(sys.executable).with_name("mqtrace")), *words]
    native = as_path(landing) / "native"
    running = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    until(lambda: list(native.glob("date=*/part-*")) or running.poll() is not None, bool, patience_s=LONGEST_S)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    for manifest in native.glob("_manifest/*.json"):  # as if killed between a part and its counts
        manifest.unlink()
    assert subprocess.run([*command, "--once"], env=environment, check=False, timeout=LONGEST_S).returncode == 0
    (source / "4.jsonl").write_text(json.dumps(bodies[0]) + "\n")
    assert subprocess.run([*command, "--once"], env=environment, check=False, timeout=LONGEST_S).returncode == 0
    parts = [part for part in native.glob("date=*/part-*") if isinstance(part, StorePath)]
    counts = [json.loads(told.read_text()) for told in native.glob("_manifest/*.json")]
    assert {one["file"] for one in counts} == {part.relative_to(native).as_posix() for part in parts}
    rows = [row for part in parts for row in open_parquet(part).read(columns=["source", "offset", "body"]).to_pylist()]
    assert sum(one["messages"] for one in counts) == len(rows)
    assert len({(row["source"], row["offset"]) for row in rows}) == len(bodies) + 1


def test_day_with_a_hot_message_survives_a_killed_executor_on_a_store(store, elsewhere, zipped, tmp_path):
    """100,000 messages, one of them delivered 10,000 times; speculation on; a second run over the history."""
    messages, hot = int(os.environ.get("MQTRACE_DAY_MESSAGES", "100000")), 10_000
    write_day(tmp_path / "day", messages=messages, hot=hot)
    for file in (tmp_path / "day").rglob("*"):
        if file.is_file():
            _put(file, as_path(store.root) / "day" / file.relative_to(tmp_path / "day").as_posix())
    truth = json.loads((tmp_path / "day" / "truth.json").read_text())
    out = f"{store.root}/out/day"
    sides = ["--native", f"{store.root}/day/native", "--otlp", f"{store.root}/day/otlp"]
    words = ["reconcile", *sides, "--complete", "--out", out]
    with standalone(tmp_path, elsewhere, hidden=tmp_path / "day") as address:
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", address, "--py-files", str(zipped)]
        conf = ["--conf", "spark.speculation=true", "--conf", "spark.executor.memory=512m", *store.conf()]
        for number in (1, 2):
            running = subprocess.Popen(
                [*submit, *conf, SCRIPT, *words], env=elsewhere, stderr=subprocess.PIPE, cwd=tmp_path
            )
            if number == 1:
                _kill_one_executor(as_path(out), tmp_path)
            _, said = running.communicate(timeout=LONGEST_S)
            assert running.returncode in {0, 1}, said[-3000:]
            result = json.loads((as_path(out) / "result.json").read_text())
            assert result["conservation"]["holds"]
            assert {name: result["status"].get(name, 0) for name in truth["status"]} == truth["status"]
            assert verdict_rows(out).total() == sum(result["status"].values())


def _kill_one_executor(out: Any, logs: Path) -> None:
    """Kill an executor once the events are being judged, which is while they are shuffled."""
    until(lambda: any(out.glob(".work-*/judged")) or any(out.glob(".work-*/*/files-*")), bool, patience_s=LONGEST_S)
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                words = (directory / "cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and any(str(logs) in w for w in words):
                os.kill(int(directory.name), signal.SIGKILL)
                return
    raise AssertionError("no executor was there to be killed")
