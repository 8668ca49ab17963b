"""Start or connect the only SparkSession of a process; report failures and interrupts of Spark.

The master: the one given (``sc://`` is a Spark Connect server), else that of ``spark-submit`` or ``SPARK_REMOTE``, else
this machine. Settings of ``spark-submit`` win over the tables below.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from bridge.addresses import check_stores
from bridge.storage.stores import use_settings
from otel_mqtrace._errors import NO_ROOM, MissingExtraError, MqTraceError, PeerError, UsageError, describe_reason
from otel_mqtrace._program import search_path
from spark_jobs.java import find_java, has_pyspark
from spark_jobs.package import write_package

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import SparkSession

_FAILED_AT_THE_SERVER: Final = "SparkConnectGrpcException"  # by name: its module needs the connect extra
_OWN_MESSAGE: Final = re.compile(r"^(?:(?:otel_mqtrace|bridge)\.[\w.]+: |(?=\w+Error: \[Errno ))(.+)$", re.MULTILINE)
"""The last line of a traceback that ends in an error of ours or of the operating system."""

_PY4J_LOGGERS: Final = ("", "py4j.clientserver", "py4j.java_gateway")  # a filter does not see what children pass up


@contextmanager
def peer_errors() -> Iterator[None]:
    """Raise ``PeerError`` for a failed job: a full disk, a missing file, too little memory, a wrong setting.

    The message is that of the root cause, which Spark wraps several times. An exception of pyspark itself, such as that
    of a wrong plan, is a defect of ours and passes. Spark checks some settings only when a job needs them.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  (optional extra)
    from pyspark.errors import IllegalArgumentException, PySparkException, PythonException  # noqa: PLC0415

    try:
        yield
    except Py4JJavaError as error:
        raise _failure(_root_line(error.java_exception)) from error
    except PythonException as error:
        messages = _OWN_MESSAGE.findall(str(error))
        if not messages:
            raise
        raise _failure(messages[-1]) from error
    except PySparkException as error:
        is_setting = isinstance(error, IllegalArgumentException) and "spark." in str(error)
        if not is_setting and type(error).__name__ != _FAILED_AT_THE_SERVER:
            raise
        raise _failure(_first_line(error)) from error


def _failure(line: str) -> PeerError:
    # the errors of Spark's and pyarrow's writes name no file, so every place is named
    is_full = any(os.strerror(number) in line for number in NO_ROOM)
    fix = "free space where --out, spark.local.dir and TMPDIR lie," if is_full else "fix that"
    return PeerError(f"Spark failed: {line}; {fix} and run it again")


@contextmanager
def kill_abandoned_processes() -> Iterator[None]:
    """Kill the processes that the functions of the block hold in a variable when an interrupt ends them.

    pyspark holds the JVM that it starts in a local variable only; interrupted, it leaves a JVM that never ends.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        for frame, _ in traceback.walk_tb(interrupt.__traceback__):
            for process in frame.f_locals.values():
                if isinstance(process, subprocess.Popen):
                    with suppress(OSError, AttributeError):  # it may not have been started yet
                        process.kill()
        raise


@contextmanager
def mute_interrupted_calls() -> Iterator[None]:
    """Keep log records of errors that an interrupt caused out of the log."""
    loggers = [logging.getLogger(name) for name in _PY4J_LOGGERS]
    for logger in loggers:
        logger.addFilter(_is_not_interrupt)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_not_interrupt)


def _is_not_interrupt(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is None


DEFAULT_DRIVER_MEMORY: Final = "1g"

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")

MEANING: Final[dict[str, str]] = {
    "spark.sql.session.timeZone": "UTC",
    # A blob has up to a megabyte; 10,000 of them, Spark's own limit, are more than a JVM or a worker of ours has.
    # 1.3 GB shuffled on local[2]: a JVM of 465 MB, and of 900 MB without it. Spark before 4.1 ignores it.
    "spark.sql.execution.arrow.maxBytesPerBatch": "4m",
}
"""Settings that a run needs, whatever else is given."""

_QUIET: Final[dict[str, str]] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",  # nothing to adapt, and each exchange would be a job more
}
# The better compiler takes 6 s of processor time while Spark starts and gains nothing in a shuffle of 1.3 GB; the
# serial collector takes 1 s less than G1 and 100 MB less memory.
_LOCAL_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_STANDALONE: Final = "spark://"
_MASTERS: Final = rf"{_STANDALONE}[^,/@]+:\d+(,[^,/@]+:\d+)*"  # one leads, and others may stand by
_MASTER: Final = re.compile(rf"local(\[[^\]]+\])?|local-cluster\[.+\]|{_MASTERS}|k8s://.+|yarn|sc://.+")
_ONE_PROCESS: Final = re.compile(r"local(\[[^\]]+\])?")  # its workers find our code; other executors are sent it
_CONNECT: Final = "sc://"
_CONNECT_PORT: Final = 15_002
_CONNECT_S: Final = 5.0
_NO_LOCAL_DIRECTORY: Final = 53  # the exit code of a JVM of Spark's that could not create its temporary directory
_HADOOP: Final = "spark.hadoop."
_JARS: Final = "spark.jars"
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"  # spark-submit started the JVM before it started us
_MEMORY: Final = re.compile(r"(\d{1,12})([kmgt])", re.IGNORECASE)  # what both Spark and the JVM's -Xmx understand
_UNIT_BYTES: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_LEAST_MIB: Final = 512  # Spark itself refuses less than 450
_MOST_MIB: Final = 64 << 20  # 64 TiB: half of what a process can address


def build_session(
    *, master: str | None = None, driver_memory: str = DEFAULT_DRIVER_MEMORY, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the process's SparkSession; start it if necessary, without UI, and local ones on loopback.

    An interrupt (Ctrl-C) ends the start and its JVM at once; signal handlers stay as they were. ``master`` is
    Spark's URL or ``sc://HOST:PORT`` for Spark Connect; ``driver_memory`` the heap of a driver that this call starts
    (``1g``, ``512m``); ``extra`` are Spark settings that win over every table of this module but ``MEANING``.

    Raises:
        MissingExtraError: pyspark or its pandas is not installed, or what its Connect client needs.
        PeerError: Java 17 or later is missing, the JVM did not start, or no Connect server answers.
        UsageError: the memory is not a size, or Spark refuses the master or a setting.
    """
    check_start(master=master, driver_memory=driver_memory)
    _session_class()  # before anything is started
    place, extra = _place(master), extra or {}
    own = {"spark.app.name": "mqtrace", "spark.driver.memory": driver_memory}
    try:
        if place is None:
            session = _start(_drop_given(_QUIET) | {**extra})
        elif place.startswith(_CONNECT):
            session = _connect(place, extra)
        else:
            session = _deploy(place, {**own, **extra})
        for name, value in MEANING.items():  # a new session checks all its settings at this first use
            session.conf.set(name, value)
    except MqTraceError:
        raise
    except Exception as error:
        raise _start_error(error, place) from error
    return session


def check_start(*, master: str | None, driver_memory: str) -> None:
    """Refuse by ``UsageError`` what Spark's launcher or the JVM would answer in many lines of their own."""
    if master is not None and not _MASTER.fullmatch(master):
        known = "local[N], spark://HOST:PORT, yarn, k8s://URL or sc://HOST:PORT"
        raise UsageError(f"unknown Spark master {master!r}; use {known}")
    found = _MEMORY.fullmatch(driver_memory)
    if not found:
        raise UsageError(f"invalid driver memory {driver_memory!r}: write a number and k, m, g or t, as in 768m")
    if not _LEAST_MIB <= int(found[1]) * _UNIT_BYTES[found[2].lower()] >> 20 <= _MOST_MIB:
        raise UsageError(f"driver memory {driver_memory!r} is not between 512m, which Spark needs, and 64t")


def choose_engine(
    engine: str | None, *, master: str | None, conf: Mapping[str, str], driver_memory: str, stream: bool = False
) -> tuple[str, str | None]:
    """Return ``spark`` or ``local``: the engine that is named, else Spark where it can start; with the reason then.

    An option that only Spark has (``stream``, a master, settings, memory) chooses Spark.

    Raises:
        UsageError: the engine is unknown, or ``local`` with an option of Spark only.
    """
    options = {
        "--stream": stream,
        "--master": master is not None,
        "--conf": bool(conf),
        "--driver-memory": driver_memory != DEFAULT_DRIVER_MEMORY,
    }
    given = [name for name, is_given in options.items() if is_given]
    if engine == "local":
        if given:
            raise UsageError(f"--engine local does not take {given[0]}: leave it out, or use --engine spark")
        return "local", None
    if engine not in {None, "spark"}:
        raise UsageError(f"unknown engine {engine!r}: use spark or local")
    return ("spark", None) if engine or given else _default_engine()


def _default_engine() -> tuple[str, str]:
    if not has_pyspark():
        return "local", "pyspark is not installed"
    place = _place(None)
    if place is None:
        return "spark", "spark-submit started this process"
    if place.startswith(_CONNECT):  # no JVM is started here
        return "spark", "SPARK_REMOTE names a Spark Connect server"
    try:
        find_java()
    except PeerError:
        return "local", "Spark needs Java, which was not found"
    return "spark", "pyspark and Java are installed; --engine local needs neither"


def configure_stores(conf: Mapping[str, str], given: Mapping[str, Collection[object]]) -> None:
    """Open stores with the ``spark.hadoop.*`` of ``conf``; below ``spark-submit`` also with its own Hadoop's.

    Raises:
        UsageError: a name in ``given`` is unknown, from :func:`~bridge.addresses.check_stores`.
    """
    found: dict[str, str] = {}
    if _SUBMITTED in os.environ:
        from pyspark import SparkContext  # noqa: PLC0415  (optional extra, present below spark-submit)

        SparkContext._ensure_initialized()  # noqa: SLF001  (the JVM's settings are in the JVM)
        jvm: Any = SparkContext._jvm  # noqa: SLF001
        given_to_spark = jvm.org.apache.spark.SparkConf()
        found[_JARS] = given_to_spark.get(_JARS, "")
        hadoop = jvm.org.apache.spark.deploy.SparkHadoopUtil.get().newConfiguration(given_to_spark)
        pairs = hadoop.iterator()
        while pairs.hasNext():
            pair = pairs.next()
            found[pair.getKey()] = hadoop.get(pair.getKey())  # with what it refers to put in
    own = {name.removeprefix(_HADOOP): value for name, value in conf.items() if name.startswith((_HADOOP, _JARS))}
    use_settings({**found, **own})
    check_stores(given)


def _place(master: str | None) -> str | None:
    """Return the master URL of the run; ``None`` where ``spark-submit`` chose it."""
    if master is None and _SUBMITTED in os.environ:
        return None
    return master or os.environ.get("SPARK_REMOTE") or "local[*]"


def _deploy(place: str, own: Mapping[str, str]) -> SparkSession:
    """Start a driver here for the master; send our code to executors that do not run our Python anyway."""
    os.environ.pop("SPARK_REMOTE", None)  # Spark would go there all the same
    if place.startswith(_STANDALONE):
        _reach("Spark master", place, *(f"//{each}" for each in place.removeprefix(_STANDALONE).split(",")))
    is_local = place.startswith("local")
    _set_environment(is_local=is_local)
    # Not beside options that are given: a JVM refuses two collectors.
    chosen = own.get(_JAVA_OPTIONS, " ".join(_LOCAL_JVM) if is_local else "")
    is_alone = bool(_ONE_PROCESS.fullmatch(place))
    imports = {"PYTHONPATH": search_path(), "PYTHONSAFEPATH": "1"} if is_alone else {}
    settings = {
        **_QUIET,
        **(_LOCAL if is_local else {}),
        # Without the working directory, which may have packages of our names (Python 3.11).
        **{f"spark.executorEnv.{name}": value for name, value in imports.items()},
        **own,
        _JAVA_OPTIONS: f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()} {chosen}",
        "spark.master": place,
    }
    session = _start(settings)
    if not is_alone:
        session.sparkContext.addPyFile(str(_pack_code()[1]))
    return session


def _drop_given(settings: Mapping[str, str]) -> dict[str, str]:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (optional extra, present here)

    SparkContext._ensure_initialized()  # noqa: SLF001  (the JVM's settings are in the JVM)
    given = SparkConf()
    return {name: value for name, value in settings.items() if not given.contains(name)}


def _connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    _reach("Spark Connect server", url, url)
    try:
        session = _session_class().builder.remote(url).getOrCreate()
    except ImportError as error:
        raise MissingExtraError("Spark Connect", "connect") from error
    except Exception as error:
        line = _first_line(error)
        raise PeerError(f"no Spark Connect server answers at {url}: {line[:200]}; check the address") from error
    for name, value in settings.items():
        session.conf.set(name, value)
    session.addArtifacts(str(_pack_code()[1]), pyfile=True)
    return session


def _reach(server: str, url: str, *addresses: str) -> None:
    """Connect to one of the addresses once: Spark's own clients try for minutes, and some ignore an interrupt."""
    for address in addresses:
        place = urlsplit(address)
        try:
            with socket.create_connection((place.hostname or "", place.port or _CONNECT_PORT), _CONNECT_S):
                return
        except (OSError, ValueError) as error:
            reason = error
    raise PeerError(f"no {server} answers at {url}: {describe_reason(reason)}; check the address") from reason


@cache
def _pack_code() -> tuple[tempfile.TemporaryDirectory[str], Path]:
    directory = tempfile.TemporaryDirectory(prefix="mqtrace-")
    return directory, write_package(Path(directory.name) / "mqtrace-spark.zip")


def _start(settings: Mapping[str, str]) -> SparkSession:
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (optional extra, present here)

    with _keep_handler(), kill_abandoned_processes():  # a new context ends with setting its own signal handler
        SparkContext.getOrCreate(SparkConf().setAll(list(settings.items())))
    builder = _session_class().builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def _keep_handler() -> Iterator[None]:
    """Restore the handler of SIGINT after the block."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        with suppress(ValueError):  # not the main thread, which alone gets signals
            signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def _session_class() -> type[SparkSession]:
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415  (optional extra: the sentence below is the point)
        from pyspark.sql.pandas.utils import require_minimum_pandas_version  # noqa: PLC0415

        require_minimum_pandas_version()  # a platform's own pyspark may come without
    except ImportError as error:
        raise MissingExtraError("reconciling on Spark", "spark") from error
    return SparkSession


def _set_environment(*, is_local: bool) -> None:
    """Point Spark at this interpreter (it takes ``python3`` from PATH otherwise) and at a Java that can run it.

    On the machines of a cluster the interpreter may be somewhere else: there, the environment wins.
    """
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark import SparkContext  # noqa: PLC0415  (optional extra, present here)

    if SparkContext._gateway is None:  # noqa: SLF001  (no public way to find out whether a JVM runs already)
        os.environ["JAVA_HOME"] = str(find_java().path)


def _start_error(error: Exception, master: str | None) -> PeerError | UsageError:
    from pyspark import SparkContext  # noqa: PLC0415  (optional extra, present here)

    thrown, home = getattr(error, "java_exception", None), os.environ.get("SPARK_HOME")
    line = _first_line(error) if thrown is None else _root_line(thrown)
    if "JAVA_GATEWAY_EXITED" in line:
        return PeerError(
            "Spark's JVM did not start; its own lines above say why: check --driver-memory, --conf, JAVA_TOOL_OPTIONS, "
            "HADOOP_CONF_DIR, and that JAVA_HOME is Java 17 or later"
        )
    process = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001  (as in _set_environment)
    with suppress(subprocess.TimeoutExpired):
        if thrown is None and process is not None and process.wait(2) == _NO_LOCAL_DIRECTORY:
            named = os.environ.get("SPARK_LOCAL_DIRS") or "spark.local.dir, else TMPDIR"
            return UsageError(f"Spark cannot write to {named}: set SPARK_LOCAL_DIRS to a directory that can be written")
    # With a Spark of another release pyspark fails in many ways; spark-submit sets SPARK_HOME to its own.
    doubt = f"; unset SPARK_HOME ({home}) if that is not pyspark's release" if home and master else ""
    return UsageError(f"Spark refuses master {master or 'of spark-submit'!r} or a setting: {line[:200]}{doubt}")


def _root_line(thrown: Any) -> str:
    """Return the first line of the root cause of a Java exception."""
    while (cause := thrown.getCause()) is not None:
        thrown = cause
    return _first_line(thrown.toString())


def _first_line(error: object) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


# -- a run on a session. Over Connect, which has no context, unknown values are ``None``, never 0 -----
def is_connect(spark: SparkSession) -> bool:
    """Return whether the session is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


@contextmanager
def job_group(spark: SparkSession, name: str, description: str) -> Iterator[None]:
    """Put the jobs of the block into a group; an interrupt cancels those that still run."""
    context = None if is_connect(spark) else spark.sparkContext
    if context is None:
        spark.addTag(name)
    else:
        context.setJobGroup(name, description)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(Exception):  # the JVM or the server may be gone too
            spark.interruptTag(name) if context is None else context.cancelJobGroup(name)
        raise
    finally:
        if context is None:
            spark.removeTag(name)
        else:
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def count_jobs(spark: SparkSession, group: str) -> tuple[int | None, int | None]:
    """Return how many jobs and stages a group of jobs took; ``None`` over Connect, where that is unknown."""
    if is_connect(spark):
        return None, None
    tracker = spark.sparkContext.statusTracker()
    jobs = [info for job in tracker.getJobIdsForGroup(group) if (info := tracker.getJobInfo(job))]
    return len(jobs), len({stage for info in jobs for stage in info.stageIds})


def read_parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at once; over Connect, where that is unknown, its usual number of partitions."""
    if is_connect(spark):
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)
    return int(spark.sparkContext.defaultParallelism)


def read_versions(spark: SparkSession) -> dict[str, str]:
    """Return the versions of Spark and of its Java."""
    if is_connect(spark):
        frame = spark.range(1).selectExpr("java_method('java.lang.System', 'getProperty', 'java.version')")
        java = frame.collect()[0][0]
    else:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  (no public way, and no job for it)
        java = jvm.java.lang.System.getProperty("java.version")
    return {"spark": spark.version, "java": str(java)}
