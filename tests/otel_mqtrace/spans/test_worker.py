"""The background thread."""

from __future__ import annotations

import textwrap
import threading

import pytest

from otel_mqtrace.spans.worker import Worker, refuse_subinterpreter
from tests.support.lanes import GENEROUS_S


def test_a_worker_that_died_is_started_again():
    runs = threading.Semaphore(0)
    worker = Worker("test", runs.release)
    assert not worker.running
    for _ in range(2):
        assert worker.ensure_running()
        assert runs.acquire(timeout=GENEROUS_S)
        worker.join(GENEROUS_S)
        assert not worker.running


def test_a_living_worker_is_left_alone():
    stop, runs = threading.Event(), []

    def body():
        runs.append(1)
        stop.wait(GENEROUS_S)

    worker = Worker("test", body)
    assert worker.ensure_running()
    assert worker.ensure_running()
    stop.set()
    worker.join(GENEROUS_S)
    assert runs == [1]


def test_a_worker_knows_itself():
    """So that it never waits for its own work."""
    answers = []
    worker = Worker("test", lambda: answers.append(worker.is_current))
    worker.ensure_running()
    worker.join(GENEROUS_S)
    assert answers == [True]
    assert not worker.is_current


def test_a_subinterpreter_is_refused_with_the_mend(capfd):
    """Its threads would be refused, or outlive it; mod_wsgi makes one for each application unless told otherwise."""
    interpreters = pytest.importorskip("_xxsubinterpreters", reason="this Python has another door to subinterpreters")
    other = interpreters.create(isolated=False)
    code = """
    from otel_mqtrace._errors import SubinterpreterError
    from otel_mqtrace.spans.processor import MqTraceSpanProcessor
    try:
        MqTraceSpanProcessor()
    except SubinterpreterError as refusal:
        import os
        os.write(1, str(refusal).encode())
    """
    try:
        interpreters.run_string(other, textwrap.dedent(code))
    finally:
        interpreters.destroy(other)
    assert "WSGIApplicationGroup %{GLOBAL}" in capfd.readouterr().out
    refuse_subinterpreter()  # and here it is none
