"""This module knows how a SparkSession is built; nothing else in the project builds one.

Where it runs: on the master that is named (``sc://`` is a Spark Connect server), else where ``spark-submit`` or
``SPARK_REMOTE`` says, else on this machine. What ``spark-submit`` was told wins over our tables.

Every setting that decides how long a small local run takes (UI, shuffle partitions, JIT tiers) stands in one of the
tables below; those that decide what an expression means are ``MEANING``.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import MissingExtraError, MqTraceError, PeerError, UsageError
from spark_jobs.interrupt import held_back
from spark_jobs.java import find_java
from spark_jobs.package import write_package

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["DEFAULT_APP_NAME", "DEFAULT_DRIVER_MEMORY", "DEFAULT_MASTER", "MEANING", "build_session", "check_start"]

DEFAULT_MASTER: Final = "local[*]"
DEFAULT_APP_NAME: Final = "mqtrace"
DEFAULT_DRIVER_MEMORY: Final = "1g"

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

MEANING: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # what is given twice is no reason to give up
}
"""Settings of a session that decide what an expression means; a run has them whatever its session was given."""

_CHOSEN: Final[dict[str, str]] = {
    **MEANING,
    "spark.sql.ansi.enabled": "true",
    "spark.sql.parquet.compression.codec": "zstd",
}
_QUIET: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.debug.maxToStringFields": "64",
    "spark.sql.maxPlanStringLength": "10000",  # of a thousand queries that nobody looks at, or the heap fills with them
    "spark.sql.ui.retainedExecutions": "10",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # else every column asks the JVM for the place it was made
}
_LOCAL: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",  # nothing to adapt in 8 partitions, and each exchange would be a job more
    "spark.sql.shuffle.partitions": "8",
    "spark.default.parallelism": "4",
    "spark.sql.files.minPartitionNum": "1",
    "spark.shuffle.compress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.hadoop.parquet.dictionary.page.size": "65536",  # columns of ids soon give up what they gain nothing from
}
_INTERPRETED: Final[dict[str, str]] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",  # a task reads its plan for longer than it works
}
"""A run of few rows: 400 classes of generated Java are compiled for longer (half of its time) than they ever run."""
_LARGE: Final[dict[str, str]] = {
    "spark.shuffle.compress": "true",  # both sides' rows go to disk once: an eighth of the bytes is sooner there
    "spark.sql.files.minPartitionNum": "8",  # a few megabytes of packed bodies are work for every core
}
_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn|sc://.+")
_ONE_PROCESS: Final = re.compile(r"local(\[[^\]]+\])?")  # its workers find our code; other executors are sent it
_ASKED_OFTEN: Final = ("functions", "PythonUtils", "PythonSQLUtils", "org.apache.spark.sql.functions")
"""Names that pyspark asks its JVM for with every column; each time it looks for them in all of Spark's jars."""
_CONNECT: Final = "sc://"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit started the JVM before it started us
_MEMORY: Final = re.compile(r"(\d{1,12})([kmgt])", re.IGNORECASE)  # what both Spark and the JVM's -Xmx understand
_UNIT_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SMALL_BYTES: Final = 128 << 20
_MIDDLE_BYTES: Final = 4 << 30
_TINY_BYTES: Final = 8 << 20
_PARTITION_BYTES: Final = 32 << 20  # of input: what is made of it is sorted several times in a core's share of 1 GB
_MOST_PARTITIONS: Final = 2000
_LEAST_MIB: Final = 512  # Spark itself refuses less than 450
_MOST_MIB: Final = 64 << 20  # 64 TiB: half of what a process can address
# One JIT tier and one garbage collector thread: a job of seconds never earns back what the better ones cost to start.
# With one tier the JVM keeps 48 MB for compiled code; Spark's own generated classes fill that, and then it gives up.
_SMALL_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-XX:+UseSerialGC", "-Xshare:auto")
# Generated code of 40 columns is longer than what the JVM compiles by itself: a long run would interpret it for ever.
_LARGE_JVM: Final = ("-XX:-DontCompileHugeMethods",)
# The collector that takes least in all, pauses or not: a tenth of a run that lasts minutes. G1 beyond what was tried.
_MIDDLE_JVM: Final = (*_LARGE_JVM, "-XX:+UseParallelGC", "-XX:-UseGCOverheadLimit")


def build_session(  # noqa: PLR0913 - what decides what is built, each by its name
    *,
    master: str | None = None,
    app_name: str = DEFAULT_APP_NAME,
    driver_memory: str = DEFAULT_DRIVER_MEMORY,
    input_bytes: int = 0,
    lasting: bool = False,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the process's SparkSession, started when there is none: UTC, ANSI, no UI, no chatter; local on loopback.

    An interrupt (Ctrl-C) while the JVM starts is delivered when it has; how the process answers one stays as it was.

    Args:
        master: Spark's master URL, or ``sc://HOST:PORT`` for Spark Connect; everything that starts with ``local`` gets
            the settings of a small machine. ``None``: what ``spark-submit`` or ``SPARK_REMOTE`` says, else here.
        app_name: what Spark calls the application.
        driver_memory: heap of a driver that this call starts, in Spark's notation (``1g``, ``512m``).
        input_bytes: how much will be read: says whether a local run is one of seconds or of hours.
        lasting: the session is for many runs, as a stream's is: a local one gets both JIT tiers and the parallel
            collector, whatever there is to read at its start; how expressions are evaluated goes by ``input_bytes``.
        extra: further Spark settings; they win over every table of this module.

    Raises:
        MissingExtraError: pyspark is not installed, or what its Connect client needs.
        PeerError: there is no Java 17 or later, the JVM did not start, or no Connect server answers.
        UsageError: the memory is none, or Spark refuses the master or a setting.
    """
    check_start(master=master, driver_memory=driver_memory)
    _session_class()  # before anything is started
    ground, extra = _ground(master), extra or {}
    own = {"spark.app.name": app_name, "spark.driver.memory": driver_memory}
    try:
        if ground is None:
            return _started(_beside_submitted({**_CHOSEN, **_QUIET}) | {**extra})
        if ground.startswith(_CONNECT):
            return _connected(ground, {**_CHOSEN, **extra})
        return _deployed(ground, {**own, **extra}, input_bytes=input_bytes, lasting=lasting)
    except MqTraceError:
        raise
    except Exception as error:
        raise _start_error(error, ground) from error


def _deployed(ground: str, own: Mapping[str, str], *, input_bytes: int, lasting: bool) -> SparkSession:
    """Start a driver here for the master; executors that do not run our Python anyway are sent our code."""
    os.environ.pop("SPARK_REMOTE", None)  # Spark would go there all the same
    local = ground.startswith("local")
    _environment(local=local)
    settings = {**_CHOSEN, **_QUIET, **(_local_settings(input_bytes) if local else {})}
    settings["spark.driver.extraJavaOptions"] = _java_options(
        input_bytes if local else _MIDDLE_BYTES + 1, lasting=lasting
    )
    session = _started({**settings, **own, "spark.master": ground})
    if not _ONE_PROCESS.fullmatch(ground):
        session.sparkContext.addPyFile(str(_packed()[1]))
    return session


def _local_settings(input_bytes: int) -> dict[str, str]:
    """Return the tables for one machine: partitions that fit into its memory, and what pays for so many bytes."""
    fitting = min(_MOST_PARTITIONS, input_bytes // _PARTITION_BYTES)
    by_size = _INTERPRETED if input_bytes <= _TINY_BYTES else _LARGE if input_bytes > _SMALL_BYTES else {}
    settings = {**_LOCAL, **by_size}
    few = int(settings["spark.sql.shuffle.partitions"])
    return {**settings, "spark.sql.shuffle.partitions": str(max(few, fitting))}


def _ground(master: str | None) -> str | None:
    """Return the master URL of the run; ``None`` where ``spark-submit`` chose it."""
    if master is None and _SUBMITTED in os.environ:
        return None
    return master or os.environ.get("SPARK_REMOTE") or DEFAULT_MASTER


def _beside_submitted(settings: Mapping[str, str]) -> dict[str, str]:
    """Return those of ``settings`` that ``spark-submit`` and its files leave open."""
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (optional extra, present here)

    SparkContext._ensure_initialized()  # noqa: SLF001  (the JVM's settings are in the JVM)
    given = SparkConf()
    return {name: value for name, value in settings.items() if not given.contains(name)}


def _connected(url: str, settings: Mapping[str, str]) -> SparkSession:
    try:
        session = _session_class().builder.remote(url).getOrCreate()
    except ImportError as error:
        raise MissingExtraError("Spark Connect", "connect") from error
    except Exception as error:
        said = _first_line(error)
        raise PeerError(f"no Spark Connect server answers at {url}: {said[:200]}; check the address") from error
    for name, value in settings.items():
        session.conf.set(name, value)
    session.addArtifacts(str(_packed()[1]), pyfile=True)
    return session


@cache
def _packed() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    """Return our code as a zip for the executors, beside the directory that keeps it until this process ends."""
    directory = tempfile.TemporaryDirectory(prefix="mqtrace-")
    return directory, write_package(Path(directory.name) / "mqtrace-spark.zip")


def check_start(*, master: str | None, driver_memory: str) -> None:
    """Refuse by ``UsageError`` what Spark's launcher or the JVM would answer in many lines of their own."""
    if master is not None and not _MASTER.fullmatch(master):
        known = "local[N], spark://HOST:PORT, yarn, k8s://URL or sc://HOST:PORT"
        raise UsageError(f"unknown Spark master {master!r}; use {known}")
    found = _MEMORY.fullmatch(driver_memory)
    if not found:
        raise UsageError(f"driver memory {driver_memory!r} is no size; write a number and k, m, g or t, as in 768m")
    if not _LEAST_MIB <= int(found[1]) * _UNIT_BYTES[found[2].lower()] >> 20 <= _MOST_MIB:
        raise UsageError(f"driver memory {driver_memory!r} is not between 512m, which Spark needs, and 64t")


def _started(settings: Mapping[str, str]) -> SparkSession:
    session_class = _session_class()
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (optional extra, present here)

    with held_back():  # the last thing a new context does is to set a handler of its own
        context = SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
    _remember_names(context._jvm)  # noqa: SLF001  (nothing public makes a column cheaper)
    builder = session_class.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _remember_names(jvm: Any) -> None:
    for name in _ASKED_OFTEN:
        found = getattr(jvm, name)
        if not isinstance(found, _Members):
            setattr(jvm, name, _Members(found))


class _Members:
    """A class of the JVM whose members are asked for once; one message to the JVM makes a column then, not three."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._of, name)
        setattr(self, name, member)
        return member


def _session_class() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  (optional extra: the sentence below is the point)
    except ImportError as error:
        raise MissingExtraError("reconciling on Spark", "spark") from error
    return SparkSession


def _environment(*, local: bool) -> None:
    """Point Spark at this interpreter (it takes ``python3`` from PATH otherwise) and at a Java that can run it.

    On the machines of a cluster the interpreter may be somewhere else: there, what the environment says wins.
    """
    if local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark import SparkContext  # noqa: PLC0415  (optional extra, present here)

    if SparkContext._gateway is None:  # noqa: SLF001  (no public way to ask whether a JVM runs already)
        os.environ["JAVA_HOME"] = str(find_java().path)


def _java_options(input_bytes: int, *, lasting: bool) -> str:
    middle = _MIDDLE_JVM if input_bytes <= _MIDDLE_BYTES else _LARGE_JVM
    options = _SMALL_JVM if input_bytes <= _SMALL_BYTES and not lasting else middle
    return " ".join((f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}", *options))


def _start_error(error: Exception, master: str | None) -> PeerError | UsageError:
    said = _first_line(error)
    if "JAVA_GATEWAY_EXITED" in said:
        return PeerError(
            "Spark's JVM did not start: check the memory asked for, and that JAVA_HOME is Java 17 or later"
        )
    return UsageError(f"Spark refuses master {master or 'of spark-submit'!r} or a setting: {said[:200]}")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
