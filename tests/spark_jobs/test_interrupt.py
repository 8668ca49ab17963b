"""An interrupt ends a reconciliation, and nothing else: no orphan, no noise, nothing left half-written."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.interrupt import held_back, unlogged

DUAL = Path(__file__).parents[1] / "vectors" / "dual" / "app-4.9.8-dup"

# The command as it is, but for one thing: it presses Ctrl-C itself, when the stage that is named begins.
INTERRUPTED = """
import os, signal, sys, threading
from spark_jobs.jobs import batch
from otel_mqtrace.cli import main

stage, delay_s, *arguments = sys.argv[1:]
run = batch.run

def pressing(options, *, progress, **others):
    def watched(now):
        progress(now)
        if now == stage:
            threading.Timer(float(delay_s), os.kill, [os.getpid(), signal.SIGINT]).start()
    return run(options, progress=watched, **others)

batch.run = pressing
sys.exit(main(arguments))
"""


@pytest.fixture(autouse=True)
def interruptible():
    """Answer an interrupt as in a terminal, also where the whole run was started in the background and ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("stage", "delay_s"), [("starting Spark", 0.6), ("reading the native trace", 0.5)])
def test_an_interrupt_is_one_line_and_leaves_nothing(tmp_path, stage, delay_s):
    """While the JVM starts and while a job runs: 130, one line, no JVM that holds the pipes, no work directory."""
    sides = ["--native", str(DUAL / "native.jsonl"), "--otlp", str(DUAL / "otlp.jsonl"), "--out", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, stage, str(delay_s), "reconcile", *sides, "--master", "local[1]"],
        capture_output=True,  # until every process that inherited the pipes has ended
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mqtrace: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def _press(times, passed):
    with held_back():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        passed.append(times)


def test_an_interrupt_is_held_back_once():
    """The block runs to its end; who presses again does not wait for it."""
    passed = []
    for times in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            _press(times, passed)
    assert passed == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_set_within_the_block_is_taken_back():
    """As pyspark's, which calls the JVM in the middle of another call."""
    with held_back():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


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
def test_only_what_an_interrupt_causes_is_kept_out_of_the_log(caplog, name):
    """An error of its own is still news, and afterwards so is everything."""
    logger = logging.getLogger(name)
    with unlogged():
        _log_an_interrupted_call(logger)
        logger.error("lost the JVM")
    assert caplog.messages == ["lost the JVM"]
    _log_an_interrupted_call(logger)
    assert len(caplog.records) == 3
