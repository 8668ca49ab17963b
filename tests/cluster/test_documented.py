"""The commands of the how-to as they stand there, on a store and clusters that answer to the names of the page."""

import os
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from bridge.storage.paths import as_path, remove_tree
from bridge.storage.stores import use_settings
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.cluster.cluster_runs import LONGEST_S, ROOT, mqtrace, put, verdict_rows
from tests.cluster.clusters import TestStore, connect_server, hdfs, s3, spark_environment, standalone, yarn
from tests.peers.peer import until
from tests.proofs.bench.trace_day import write_day
from tests.support.documents import FENCE
from tests.support.programs import run_program
from tests.support.topics import put_messages

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "how-to" / "spark-cluster.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: [text for _, language, text in FENCE.findall(part) if language == "sh"]
    for part in PAGE.split("\n## ")
}
STORE, REPORT, MESSAGES = "s3a://traces", "s3a://traces/report", 2000
# A reader is in a checkout, in an activated environment; a forwarder ends at the topic's end; a gate may fail.
PRELUDE = """
set -eu
may_fail() { code=0; command "$@" || code=$?; [ $code = 0 ] || [ $code = 1 ]; }
mqtrace() { case "$1" in (forward) set -- "$@" --once;; esac; may_fail mqtrace "$@"; }
spark-submit() { may_fail spark-submit "$@"; }
pip() { true; }
venv-pack() { cp "$ARCHIVE" "$2"; }
"""


class Reader:
    """Runs commands of the page; ``directory`` holds what they write beside the store."""

    def __init__(self, directory: Path, store: TestStore, names: dict[str, str]) -> None:
        self.directory, self.store, self.names = directory, store, names
        (directory / "spark_jobs").symlink_to(ROOT / "spark_jobs")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.conf = store.configuration(directory / "conf")
        self.environment = spark_environment(PATH=path, HADOOP_CONF_DIR=self.conf)

    def placed(self, text: str) -> str:
        for name, actual in self.names.items():
            text = text.replace(name, actual)
        return text

    def run(self, *blocks: str, **more: str) -> None:
        script = PRELUDE + self.placed("\n".join(blocks))
        environment = {**self.environment, **more}
        done = run_program("bash", "-c", script, cwd=self.directory, env=environment, timeout_s=LONGEST_S)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.fixture(scope="module")
def spans(tmp_path_factory: Any) -> Path:
    day = tmp_path_factory.mktemp("day")
    write_day(day, messages=MESSAGES)
    return day


@pytest.fixture(scope="module")
def reader(spans: Path, tmp_path_factory: Any) -> Iterator[Reader]:
    """A reader beside an S3 that holds the spans of the day, and a Kafka that holds its native trace."""
    home = tmp_path_factory.mktemp("reader")
    with s3(home) as store, EmbeddedKafka() as kafka:
        use_settings(store.settings)
        kafka.create_topic("RMQ_SYS_TRACE_TOPIC")
        bodies = parquet.read_table(spans / "native")["body"].to_pylist()
        put_messages(kafka.bootstrap_servers, "RMQ_SYS_TRACE_TOPIC", *bodies)
        for number, file in enumerate(sorted((spans / "otlp").iterdir())):
            put(file, as_path(f"{STORE}/otlp/2026-11-25-{number}.json"))
        yield Reader(home, store, {"broker:9092": kafka.bootstrap_servers})
    use_settings({})


@pytest.fixture(scope="module")
def expected(reader: Reader, tmp_path_factory: Any) -> Counter[str]:
    (block,) = SECTIONS["Land on a store, and reconcile there"]
    reader.run(block)
    sides = ["--native", f"{STORE}/landing/native", "--otlp", f"{STORE}/otlp"]
    out = tmp_path_factory.mktemp("expected")
    mqtrace("reconcile", *sides, "--out", str(out), "--engine", "local", HADOOP_CONF_DIR=reader.conf)
    rows = verdict_rows(out)
    assert verdict_rows(REPORT) == rows
    assert rows.total() == 2 * MESSAGES
    return rows


@pytest.fixture
def report(expected: Counter[str]) -> Iterator[Counter[str]]:
    """The verdicts that a run has to leave in the report, which no run before it has touched."""
    remove_tree(REPORT)
    return expected


def test_every_section_with_commands_is_walked_through():
    walked = {"Land on a store, and reconcile there", "Prepare the machines", "Standalone", "YARN", "Spark Connect"}
    assert {name for name, blocks in SECTIONS.items() if blocks} == walked | {"Run it for weeks", "Kubernetes"}


@pytest.mark.parametrize("block", SECTIONS["Standalone"], ids=["mqtrace", "spark-submit", "window"])
def test_documented_commands_work_on_a_standalone_cluster(block, reader, report, elsewhere, tmp_path):
    with standalone(tmp_path, elsewhere) as address:
        reader.names["spark://spark-master:7077"] = address
        there = {"PYSPARK_PYTHON": elsewhere["PYSPARK_PYTHON"], "PYSPARK_DRIVER_PYTHON": sys.executable}
        reader.run(*SECTIONS["Prepare the machines"], block, **there)
    if "--begin" in block:
        rows = verdict_rows(REPORT)
        outside = sum(count for row, count in rows.items() if "'status': 'OUT_OF_SCOPE'" in row)
        assert 0 < outside < rows.total() == report.total()
    else:
        assert verdict_rows(REPORT) == report


def test_documented_commands_work_on_spark_connect(reader, report, elsewhere, tmp_path):
    with connect_server(tmp_path, elsewhere) as address:
        reader.names["sc://spark-connect:15002"] = address
        reader.run(*SECTIONS["Spark Connect"])
    assert verdict_rows(REPORT) == report


def test_stream_for_weeks_reports_and_ends_by_sigterm(reader, report):
    (native,) = as_path(f"{STORE}/landing/native").glob("date=*")
    (block,) = SECTIONS["Run it for weeks"]
    command = reader.placed(block).replace("date=2026-11-25", native.name)
    log = reader.directory / "stream.log"
    with log.open("wb") as output:
        shell, streams = ["bash", "-c", f"exec {command}"], {"stdout": output, "stderr": output}
        running = subprocess.Popen(shell, cwd=reader.directory, env=reader.environment, **streams)
    until(lambda: b"run 1:" in log.read_bytes() or running.poll() is not None, bool, patience_s=LONGEST_S)
    until(lambda: list(as_path(f"{REPORT}/2026-11-25").glob(".lock-*")), lambda held: not held, patience_s=LONGEST_S)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=LONGEST_S) in {0, 1}, log.read_text()[-3000:]
    assert verdict_rows(f"{REPORT}/2026-11-25") == report
    assert (as_path(f"{STORE}/history") / "runs.jsonl").read_text().count("\n") == 1


def test_documented_commands_work_on_yarn(reader, report, elsewhere, tmp_path):
    """The archive of the environment has a Python that starts this machine's, with our dependencies and not us."""
    archive = tmp_path / "environment.tar.gz"
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    own = f'#!/bin/sh\nexport PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{elsewhere["PYTHONPATH"]}"\n'
    python.write_text(f'{own}exec {elsewhere["PYSPARK_PYTHON"]} "$@"\n')
    python.chmod(0o755)
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(python, "bin/python")
    with hdfs(tmp_path) as store:
        use_settings({**store.settings, **reader.store.settings})
        put(as_path(f"{STORE}/landing"), as_path(f"{store.root}/landing"))
        put(as_path(f"{STORE}/otlp"), as_path(f"{store.root}/otlp"))
        conf = store.configuration(tmp_path / "conf")
        with yarn(tmp_path, Path(conf)):
            reader.run(*SECTIONS["Prepare the machines"], *SECTIONS["YARN"], HADOOP_CONF_DIR=conf, ARCHIVE=str(archive))
        rows = verdict_rows(f"{store.root}/report")
    use_settings(reader.store.settings)
    assert rows == report
