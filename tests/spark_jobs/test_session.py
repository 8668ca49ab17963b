"""The session of a process: its settings, where it runs, its job groups, and what it refuses before a JVM starts."""

import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from otel_mqtrace._errors import MissingExtraError, UsageError
from spark_jobs import session


@pytest.mark.spark
def test_session_has_its_settings_and_is_returned_again_with_those_that_a_run_needs(spark):
    conf = spark.sparkContext.getConf()
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.driver.memory") == "1g"
    again = session.build_session(master="local[2]", extra={"spark.sql.session.timeZone": "Asia/Shanghai"})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.session.timeZone") == "UTC"


@pytest.mark.spark
def test_python_workers_are_this_interpreter(spark):
    """A worker from PATH would lack pyarrow, and say so only in the middle of a job."""

    def interpreter(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"executable": [sys.executable]})

    (row,) = spark.range(1).coalesce(1).mapInArrow(interpreter, "executable string").collect()
    assert row.executable == sys.executable


@pytest.mark.parametrize(
    ("named", "environment", "ground", "reason"),
    [
        (None, {}, "local[*]", "pyspark and Java are installed; --engine local needs neither"),
        (None, {"SPARK_REMOTE": "sc://h:1"}, "sc://h:1", "SPARK_REMOTE names a Spark Connect server"),
        (None, {"PYSPARK_GATEWAY_PORT": "1"}, None, "spark-submit started this process"),
        ("local[1]", {"PYSPARK_GATEWAY_PORT": "1", "SPARK_REMOTE": "sc://h:1"}, "local[1]", None),
    ],
)
def test_master_is_the_option_then_spark_submit_then_spark_remote_then_this_machine(
    monkeypatch, named, environment, ground, reason
):
    monkeypatch.setattr("spark_jobs.session.find_java", lambda: "java")
    for name in ("SPARK_REMOTE", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert session._place(named) == ground
    assert session.choose_engine(None, master=named, conf={}, driver_memory="1g") == ("spark", reason)


@pytest.mark.parametrize("memory", ["lots", "1", "1gb", "-1g", "", "1.5g", "511m", "65t", "999999999999999g"])
def test_invalid_memory_is_refused(memory):
    with pytest.raises(UsageError, match="driver memory"):
        session.build_session(driver_memory=memory)


def test_pyspark_without_pandas_is_a_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"otel-mqtrace\[spark\]"):
        session.build_session()


def test_spark_home_is_named_where_spark_does_not_start(monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark-3")
    failure = TypeError("'JavaPackage' object is not callable")
    named = "is not callable; unset SPARK_HOME (/opt/spark-3) if that is not pyspark's release"
    assert str(session._start_error(failure, "local[*]")).endswith(named)
    assert "SPARK_HOME" not in str(session._start_error(failure, None))  # spark-submit has set it


@pytest.mark.spark
def test_given_options_of_the_jvm_leave_its_log_settings(monkeypatch):
    def start(conf):
        raise KeyboardInterrupt(conf.get("spark.driver.extraJavaOptions"))

    monkeypatch.setattr("pyspark.SparkContext.getOrCreate", start)
    with pytest.raises(KeyboardInterrupt, match=r"^-Dlog4j2\.configurationFile=\S+ -XX:\+UseG1GC$"):
        session.build_session(master="local[1]", extra={"spark.driver.extraJavaOptions": "-XX:+UseG1GC"})


@pytest.mark.spark
def test_cost_counts_the_jobs_of_its_group_only(spark):
    spark.range(3).collect()
    with session.job_group(spark, "of-a-test", "two jobs"):
        spark.range(3).collect()
        spark.range(3).collect()
    assert session.count_jobs(spark, "of-a-test") == (2, 2)
    assert set(session.read_versions(spark)) == {"spark", "java"}


def test_process_that_an_interrupted_block_was_starting_is_ended():
    """As pyspark's JVM at Ctrl-C: the launcher's local variable alone names it."""
    started = []

    def launch():
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        started.append(process)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), session.kill_abandoned_processes():
        launch()
    with started[0] as process:
        assert process.wait(timeout=30) == -signal.SIGKILL


@pytest.mark.usefixtures("interruptible")
def test_interrupt_while_spark_starts_is_not_delayed_and_its_handler_stays(monkeypatch):
    """A new context sets a handler of its own."""
    delayed = []

    def press(_):
        signal.raise_signal(signal.SIGINT)
        delayed.append("to the end of the start")

    def set_handler(_):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise OSError

    for start, error in ((press, KeyboardInterrupt), (set_handler, OSError)):
        monkeypatch.setattr("pyspark.SparkContext.getOrCreate", start)
        with pytest.raises(error):
            session._start({})
        assert (delayed, signal.getsignal(signal.SIGINT)) == ([], signal.default_int_handler)
