"""The one session is set up for right results, on loopback, without chatter."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from otel_mqtrace._errors import UsageError
from spark_jobs.session import _place, build_session


@pytest.mark.spark
def test_the_session_computes_in_utc_with_ansi_arithmetic_on_loopback(spark):
    """What decides a result, and who can connect, is set here and nowhere else."""
    conf = spark.sparkContext.getConf()
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.driver.memory") == "1g"


@pytest.mark.spark
def test_python_workers_are_this_interpreter(spark):
    """A worker from PATH would lack pyarrow, and say so only in the middle of a job."""

    def interpreter(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"executable": [sys.executable]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(interpreter, "executable string").collect()
    assert row.executable == sys.executable


@pytest.mark.spark
def test_a_session_that_runs_already_is_returned(spark):
    """Jobs of one process share it."""
    assert build_session(master="local[2]").sparkContext is spark.sparkContext


@pytest.mark.parametrize(
    ("named", "environment", "ground"),
    [
        (None, {}, "local[*]"),
        (None, {"SPARK_REMOTE": "sc://h:1"}, "sc://h:1"),
        (None, {"PYSPARK_GATEWAY_PORT": "1"}, None),
        ("local[1]", {"PYSPARK_GATEWAY_PORT": "1", "SPARK_REMOTE": "sc://h:1"}, "local[1]"),
    ],
)
def test_a_run_works_where_it_is_told_to(monkeypatch, named, environment, ground):
    """The option, then ``spark-submit`` (it chose: ``None``), then ``SPARK_REMOTE``, then this machine."""
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _place(named) == ground


def test_a_wrong_master_is_refused_before_a_jvm_starts():
    """Spark's launcher would die with a page of Java."""
    with pytest.raises(UsageError, match="unknown Spark master 'nonsense'"):
        build_session(master="nonsense")


@pytest.mark.parametrize("memory", ["lots", "1", "1gb", "-1g", "", "1.5g", "511m", "65t", "999999999999999g"])
def test_a_wrong_memory_is_refused_before_a_jvm_starts(memory):
    """The JVM would say it in three lines of its own, or Spark after it has started."""
    with pytest.raises(UsageError, match=r"^driver memory"):
        build_session(driver_memory=memory)


def test_a_start_is_quiet():
    """In a process of its own: nothing of the JVM's on standard error but its word about an incubator module."""
    code = "from spark_jobs.session import build_session; print(build_session(master='local[1]').range(3).count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "3\n"
    assert [line for line in done.stderr.splitlines() if "incubator" not in line] == []
