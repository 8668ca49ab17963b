"""The background thread."""

from __future__ import annotations

import threading

from otel_mqtrace.spans.worker import Worker
from tests.support.lanes import GENEROUS_S


def test_a_worker_that_died_is_started_again():
    """Whatever killed it, the next need brings it back."""
    runs = threading.Semaphore(0)
    worker = Worker("test", runs.release)
    assert not worker.running
    for _ in range(2):
        assert worker.ensure_running()
        assert runs.acquire(timeout=GENEROUS_S)
        worker.join(GENEROUS_S)
        assert not worker.running


def test_a_living_worker_is_left_alone():
    """Asking twice starts one."""
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
