"""Failures of Spark are one line with the cause; errors that an interrupt causes stay out of the log."""

import logging
import os
import re
import signal
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PythonException

from bridge.storage.paths import DamagedInputError
from otel_mqtrace._errors import PeerError
from otel_mqtrace._program import delay_interrupt
from spark_jobs.session import mute_interrupted_calls, peer_errors
from tests.support.programs import MQTRACE, clean_environment, run_program

DUAL = Path(__file__).parents[1] / "vectors" / "dual" / "app-4.9.8-dup"
SIDES = ["--native", DUAL / "native.jsonl", "--otlp", DUAL / "otlp.jsonl"]

pytestmark = pytest.mark.usefixtures("interruptible")


@pytest.mark.spark
@pytest.mark.parametrize(
    ("master", "setting", "directory", "why"),
    [
        ("local[1]", "spark.sql.shuffle.partitions=x", "", r"refuses .*\[1\]' or a setting: .*spark.sql.shuffle.part"),
        ("local[0]", "spark.a=b", "", r"refuses master 'local\[0\]' .* Asked to run locally with 0 threads\n"),
        ("local[1]", "spark.a=b", "/dev/null", "cannot write to /dev/null: set SPARK_LOCAL_DIRS"),
    ],
    ids=["setting", "master", "directory"],
)
def test_wrong_master_setting_or_directory_is_named_in_the_last_line(tmp_path, master, setting, directory, why):
    """In a process of its own: only a new session leaves its settings unchecked until their first use."""
    arguments = [*SIDES, "--out", tmp_path, "--master", master, "--conf", setting]
    environment = clean_environment(SPARK_LOCAL_DIRS=str(tmp_path / directory))
    done = run_program(*MQTRACE, "reconcile", *arguments, env=environment)
    assert (done.returncode, done.stdout, directory or done.stderr.count("\n")) == (2, "", directory or 1), done.stderr
    assert re.match(f"mqtrace: error: Spark *{why}", done.stderr.splitlines(keepends=True)[-1])


def _press(times, passed, error=None):
    with delay_interrupt():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        if error is not None:
            raise error
        passed.append(times)


def test_delayed_interrupt_lets_the_block_end_and_a_second_one_does_not():
    passed = []
    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            _press(times, passed)
    assert passed == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_delayed_interrupt_wins_over_the_error_of_what_got_the_signal_too():
    with pytest.raises(KeyboardInterrupt):
        _press(1, [], OSError("the JVM of a terminated group is gone"))
    with pytest.raises(OSError, match="alone"):
        _press(0, [], OSError("alone"))


def _log_an_interrupted_call(logger):
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        logger.exception("interrupted")
        try:
            os.close(-1)
        except OSError:
            logger.exception("and what came of it")


@pytest.mark.parametrize("name", [None, "py4j.clientserver", "py4j.java_gateway"])
def test_only_errors_caused_by_an_interrupt_stay_out_of_the_log(caplog, name):
    logger = logging.getLogger(name)
    with mute_interrupted_calls():
        _log_an_interrupted_call(logger)
        logger.error("lost the JVM")
    assert caplog.messages == ["lost the JVM"]
    _log_an_interrupted_call(logger)
    assert len(caplog.records) == 3


FAILURES = {
    "a file that cannot be read": (
        lambda spark, path: spark.read.schema("x int").parquet(f"file://{path}").select("x").collect(),
        PeerError,
        r"^Spark failed: [^\n]*broken\.parquet is not a Parquet file[^\n]*; fix that[^\n]*$",
    ),
    "a setting that a job finds wrong": (
        lambda spark, _: spark.conf.set("spark.sql.shuffle.partitions", "x"),
        PeerError,
        r"^Spark failed: .*\"spark.sql.shuffle.partitions\".*; fix that",
    ),
    "a wrong plan, which is a defect": (
        lambda spark, _: spark.range(1).select("no such column"),
        AnalysisException,
        "no such column",
    ),
}


@pytest.mark.spark
@pytest.mark.parametrize(("act", "kind", "message"), FAILURES.values(), ids=FAILURES)
def test_failure_of_spark_is_one_line_with_the_root_cause(spark, tmp_path, act, kind, message):
    path = tmp_path / "broken.parquet"
    path.write_text("no parquet at all")
    with pytest.raises(kind, match=message), peer_errors():
        act(spark, path)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (PeerError("kafka://h:1/t is silent"), PeerError, "^Spark failed: kafka://h:1/t is silent; fix that"),
        (OSError(28, "No space", "/otlp"), PeerError, r"^Spark failed: OSError: \[Errno 28\] No space: '/otlp'; "),
        (DamagedInputError("part-0.parquet: no"), PeerError, r"^Spark failed: part-0.parquet: no; fix that"),
        (ZeroDivisionError("ours"), PythonException, "ours"),
    ],
    ids=["a peer", "a full disk", "a damaged file", "a defect"],
)
def test_error_of_a_task_keeps_its_own_message(spark, error, kind, message):
    def failing(batches):
        list(batches)
        raise error
        yield

    with pytest.raises(kind, match=message), peer_errors():
        spark.range(1).mapInArrow(failing, "x int").collect()


def test_error_of_a_connect_server_is_its_first_line():
    """The rest is the stack of its JVM; a wrong plan stays an error of pyspark."""
    connect = pytest.importorskip("pyspark.errors.exceptions.connect", reason="the connect extra is not installed")
    full = r"^Spark failed: No space left on device; free space where --out, spark.local.dir and TMPDIR lie, and run"
    with pytest.raises(PeerError, match=full), peer_errors():
        raise connect.SparkConnectGrpcException("No space left on device\n\tat org.apache.spark…")
    with pytest.raises(connect.AnalysisException), peer_errors():
        raise connect.AnalysisException("no such column")
