"""This module knows how a SparkSession is built; nothing else in the project builds one.

Every setting that decides a result (time zone, ANSI arithmetic, the policy for duplicate map keys) or that decides how
long a small local run takes (UI, shuffle partitions, JIT tiers) stands in one of the tables below.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from otel_mqtrace._errors import MissingExtraError, PeerError, UsageError
from spark_jobs.interrupt import held_back
from spark_jobs.java import find_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

__all__ = ["DEFAULT_APP_NAME", "DEFAULT_DRIVER_MEMORY", "DEFAULT_MASTER", "build_session", "check_start"]

DEFAULT_MASTER: Final = "local[*]"
DEFAULT_APP_NAME: Final = "mqtrace"
DEFAULT_DRIVER_MEMORY: Final = "1g"

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

_MEANING: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",  # OTLP forbids duplicate keys, real files have them
    "spark.sql.legacy.javaCharsets": "true",  # bodies of RocketMQ 4.x are in the JVM's own charset, e.g. GBK
    "spark.sql.legacy.codingErrorAction": "true",  # bytes that are no text become U+FFFD, never an exception
    "spark.sql.parquet.compression.codec": "zstd",
}
_QUIET: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.debug.maxToStringFields": "64",
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
}
_MASTER: Final = re.compile(r"local(\[[^\]]+\])?|local-cluster\[.+\]|spark://.+|k8s://.+|yarn")
_MEMORY: Final = re.compile(r"(\d{1,12})([kmgt])", re.IGNORECASE)  # what both Spark and the JVM's -Xmx understand
_UNIT_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LEAST_MIB: Final = 512  # Spark itself refuses less than 450
_MOST_MIB: Final = 64 << 20  # 64 TiB: half of what a process can address
# One JIT tier and one garbage collector thread: a job of seconds never earns back what the better ones cost to start.
_SMALL_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


def build_session(
    *,
    master: str = DEFAULT_MASTER,
    app_name: str = DEFAULT_APP_NAME,
    driver_memory: str = DEFAULT_DRIVER_MEMORY,
    small: bool = True,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return the process's SparkSession, started when there is none: UTC, ANSI, loopback only, no UI, no chatter.

    An interrupt (Ctrl-C) while the JVM starts is delivered when it has; how the process answers one stays as it was.

    Args:
        master: Spark's master URL; everything that starts with ``local`` gets the settings of a small machine.
        app_name: what Spark calls the application.
        driver_memory: heap of a driver that this call starts, in Spark's notation (``1g``, ``512m``).
        small: tune a local JVM for a run of seconds rather than of hours.
        extra: further Spark settings; they win over every table of this module.

    Raises:
        MissingExtraError: pyspark is not installed.
        PeerError: there is no Java 17 or later, or the JVM did not start.
        UsageError: the memory is none, or Spark refuses the master or a setting.
    """
    check_start(master=master, driver_memory=driver_memory)
    builder_class = _session_class()
    local = master.startswith("local")
    _environment(local=local)
    settings = {**_MEANING, **_QUIET, **(_LOCAL if local else {}), "spark.driver.memory": driver_memory}
    settings["spark.driver.extraJavaOptions"] = _java_options(small=local and small)
    settings |= {**(extra or {}), "spark.master": master, "spark.app.name": app_name}
    try:
        return _started(builder_class, settings)
    except Exception as error:
        raise _start_error(error, master) from error


def check_start(*, master: str, driver_memory: str) -> None:
    """Refuse by ``UsageError`` what Spark's launcher or the JVM would answer in many lines of their own."""
    if not _MASTER.fullmatch(master):
        raise UsageError(f"unknown Spark master {master!r}; use local[N], spark://HOST:PORT, yarn or k8s://URL")
    found = _MEMORY.fullmatch(driver_memory)
    if not found:
        raise UsageError(f"driver memory {driver_memory!r} is no size; write a number and k, m, g or t, as in 768m")
    if not _LEAST_MIB <= int(found[1]) * _UNIT_BYTES[found[2].lower()] >> 20 <= _MOST_MIB:
        raise UsageError(f"driver memory {driver_memory!r} is not between 512m, which Spark needs, and 64t")


def _started(session_class: type[SparkSession], settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (optional extra, present here)

    with held_back():  # the last thing a new context does is to set a handler of its own
        SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
    builder = session_class.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _session_class() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  (optional extra: the sentence below is the point)
    except ImportError as error:
        raise MissingExtraError("reconciling on Spark", "spark") from error
    return SparkSession


def _environment(*, local: bool) -> None:
    """Point Spark at this interpreter (it takes ``python3`` from PATH otherwise) and at a Java that can run it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark import SparkContext  # noqa: PLC0415  (optional extra, present here)

    if SparkContext._gateway is None:  # noqa: SLF001  (no public way to ask whether a JVM runs already)
        os.environ["JAVA_HOME"] = str(find_java().path)


def _java_options(*, small: bool) -> str:
    options = (f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}", *(_SMALL_JVM if small else ()))
    return " ".join(options)


def _start_error(error: Exception, master: str) -> PeerError | UsageError:
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "JAVA_GATEWAY_EXITED" in said:
        return PeerError(
            "Spark's JVM did not start: check the memory asked for, and that JAVA_HOME is Java 17 or later"
        )
    return UsageError(f"Spark refuses master {master!r} or a setting: {said[:200]}")
