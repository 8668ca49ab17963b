"""Run a program or a forked child to its end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

MQTRACE = (sys.executable, "-c", "import sys; from otel_mqtrace.cli import main; sys.exit(main())")

_SIGNALLED = """
import os, sys, threading
from otel_mqtrace import _program
from spark_jobs.exchange import workers
from spark_jobs.jobs import batch, stream

workers.LONG_MAP, workers._TASK_BYTES = 1, 1 << 10  # a small input gets another process as well
number, delay_s, stage, *sys.argv[1:] = sys.argv[1:]

def watched(run):
    def run_until(options, *, progress, **others):
        def show(now):
            progress(now)
            if now == stage:
                threading.Timer(float(delay_s), os.kill, [os.getpid(), int(number)]).start()
        return run(options, progress=show, **others)
    return run_until

batch.run, stream.run = watched(batch.run), watched(stream.run)
sys.exit(_program.start())
"""


def signalled_at(stage: str, number: int, *arguments: object, delay_s: float = 0) -> list[str]:
    """Return the words of an ``mqtrace`` that sends itself signal ``number`` some time after ``stage`` begins."""
    return [sys.executable, "-c", _SIGNALLED, *map(str, (int(number), delay_s, stage, *arguments))]


def run_program(*words: object, timeout_s: float = 600, **options: Any) -> subprocess.CompletedProcess[str]:
    """Return how a program ended and what it printed, until every process that inherited its pipes has ended.

    Only a program that hangs may reach ``timeout_s``: on a busy machine one of a minute takes five.
    """
    streams = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    how = {**streams, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "timeout": timeout_s, **options}
    return subprocess.run([*map(str, words)], text=True, check=False, **how)


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    words = ("-W", "ignore:This process:DeprecationWarning")  # of a fork beside threads, since Python 3.12
    return run_program(sys.executable, *words, "-c", code, *arguments, **options)


def answers(*arguments: object) -> list[dict[str, Any]]:
    """Run ``mqtrace``, which must succeed, and return the JSON objects that it printed, one for each line."""
    done = run_program(*MQTRACE, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def clean_environment(**changes: Any) -> dict[str, Any]:
    """Return this process's environment with ``changes`` as the only settings of OpenTelemetry and ours: spans are exported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MQTRACE_"))}
    return {**kept, "OTEL_METRICS_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none", **changes}


def run_in_child(act: Callable[[], Any]) -> int:
    """Run ``act`` in a forked child; return the small number that it returned."""
    pid = os.fork()
    if not pid:
        number = 255
        signal.alarm(60)  # a child that hangs fails its test, and not the whole run
        try:
            number = act() or 0
        finally:
            os._exit(number)  # a child must never run on into its parent's tests
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """Refuse this process larger files, as a full disk does; skip the test where there is no such limit."""
    resource = pytest.importorskip("resource", reason="this system has no limit on the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
