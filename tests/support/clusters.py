"""Spark clusters and servers of a test's own, from pip's pyspark: on loopback, on free ports, stopped by process id."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from spark_jobs.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator

SPARK_HOME = Path(pyspark.__file__).parent
STARTS_WITHIN_S = 120


def spark_environment(**more: str) -> dict[str, str]:
    """Return this process's environment for a Spark that is started by its own scripts."""
    own = {"JAVA_HOME": str(find_java().path), "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **own, "PYSPARK_PYTHON": sys.executable, **more}


@contextmanager
def standalone(logs: Path, environment: dict[str, str]) -> Iterator[str]:
    """Give a master with two workers of one core each: its ``spark://`` address."""
    deploy = "org.apache.spark.deploy"
    with ExitStack() as running:
        arguments = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = running.enter_context(
            _process(logs / "master.log", environment, f"{deploy}.master.Master", *arguments)
        )
        address = _said(master, r"Starting Spark master at (spark://\S+)")
        for number in (1, 2):
            work = logs / f"worker-{number}"
            own = (*arguments, "--cores", "1", "--memory", "1g", "--work-dir", str(work), address)
            worker = running.enter_context(
                _process(logs / f"{number}.log", environment, f"{deploy}.worker.Worker", *own)
            )
            _said(worker, r"(Successfully registered with master)")
        yield address


@contextmanager
def connect_server(logs: Path, environment: dict[str, str]) -> Iterator[str]:
    """Give a Spark Connect server on two threads: its ``sc://`` address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    told = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    arguments = ("--class", server, "--master", "local[2]", *told, "spark-internal")
    with _process(logs / "connect.log", environment, "org.apache.spark.deploy.SparkSubmit", *arguments) as server:
        _said(server, r"(Spark Connect server started)")
        yield f"sc://127.0.0.1:{port}"


@contextmanager
def _process(log: Path, environment: dict[str, str], *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    with log.open("wb") as written:
        started = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), *words],
            stdout=written,
            stderr=written,
            env=environment,
            cwd=log.parent,  # Python finds what lies in its own directory
        )
    try:
        yield started, log
    finally:
        started.terminate()
        try:
            started.wait(timeout=20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def _said(running: tuple[subprocess.Popen[bytes], Path], pattern: str) -> str:
    """Wait until a log says it; what it said instead is the error."""
    process, log = running
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until:
        found = re.search(pattern, log.read_text(errors="replace"))
        if found:
            return found[1]
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
            break  # it ended
    raise AssertionError(f"{log.name} never said {pattern}: {log.read_text(errors='replace')[-2000:]}")
