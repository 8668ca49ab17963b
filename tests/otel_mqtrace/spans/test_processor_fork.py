"""What becomes of a processor when its process forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import Scripted, span

FORKING = """
import json, multiprocessing, os, sys, threading
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import Scripted

class Writing(Scripted):
    after_forks = 0
    def export(self, spans):
        os.write(1, (json.dumps([os.getpid() == parent, [s.name for s in spans], self.after_forks]) + "\\n").encode())
        return super().export(spans)
    def after_fork(self):
        self.after_forks += 1

parent = os.getpid()
processor = MqTraceSpanProcessor(Writing(), schedule_delay_millis=60_000)
provider = TracerProvider()
provider.add_span_processor(processor)
tracer = provider.get_tracer("x")
tracer.start_span("of the parent").end()

def child():
    assert processor.stats()["Writing"]["offered"] == 0
    tracer.start_span("of the child").end()
    assert processor.stats()["Writing"]["offered"] == 1

if sys.argv[1] == "fork":
    pid = os.fork()
    if not pid:
        child()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
else:
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_forked_child_exports_its_own_spans_and_only_those(way):
    done = subprocess.run([sys.executable, "-c", FORKING, way], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(map(json.loads, done.stdout.splitlines())) == [
        [False, ["of the child"], 1],
        [True, ["of the parent"], 0],
    ]


def test_a_fork_nobody_told_of_is_noticed_by_its_pid(monkeypatch):
    """uWSGI forks without running Python's hooks."""
    exporter = Scripted()
    processor = MqTraceSpanProcessor(exporter, background=False)
    processor.on_end(span("of the parent"))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    processor.on_end(span("of the child"))
    processor.force_flush()
    assert exporter.names == ["of the child"]


def test_an_exporter_that_raises_after_a_fork_leaves_the_others_their_own_start():
    """Or the next lane would keep its parent's spans, and perhaps a lock that nobody will ever let go."""

    class Raising(Scripted):
        def after_fork(self):
            raise OSError("closed already")

    processor = MqTraceSpanProcessor(Raising(), Scripted(), background=False)
    processor.on_end(span("of the parent"))
    processor.after_fork()
    assert {lane: books["pending"] for lane, books in processor.stats().items()} == {"Raising": 0, "Scripted": 0}


@pytest.mark.parametrize("ending", ["force_flush", "shutdown"])
def test_a_child_that_nobody_told_of_and_that_ends_at_once_exports_nothing_of_its_parents(ending, monkeypatch):
    """It never saw a span of its own."""
    exporter = Scripted()
    processor = MqTraceSpanProcessor(exporter, background=False)
    processor.on_end(span("of the parent"))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    getattr(processor, ending)()
    assert exporter.names == []
