"""The processor in forks, pools, greenlets and servers."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.request
from collections import Counter
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from otel_mqtrace._workers import restart_in_child
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import Scripted, span, stuck_processor
from tests.support.programs import run_in_child, run_python

WRITING = """
import json, os, sys, threading
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from tests.support.lanes import Scripted

parent = os.getpid()

class Writing(Scripted):
    after_forks = 0
    def after_fork(self):
        self.after_forks += 1
    def export(self, spans):
        for span in spans:
            os.write(1, (json.dumps([os.getpid() == parent, span.name]) + "\\n").encode())
        return super().export(spans)

processor = MqTraceSpanProcessor(Writing(), schedule_delay_millis=60_000)
provider = TracerProvider()
provider.add_span_processor(processor)
tracer = provider.get_tracer("x")
"""


@pytest.fixture
def run(run_code):
    """Run a program that has a processor and a tracer; return who wrote which span: whether the parent, and its name."""

    def run(code, *arguments, prefix=""):
        written = run_code(prefix + WRITING + textwrap.dedent(code), *arguments)
        return sorted(map(json.loads, written.splitlines()))

    return run


@pytest.mark.usefixtures("interruptible")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_child_that_is_interrupted_as_it_starts_over_does_so_with_all_the_rest():
    items = Mock(), Mock(**{"after_fork.side_effect": partial(signal.raise_signal, signal.SIGINT)}), Mock()
    for item in items:
        restart_in_child(item)
    assert run_in_child(lambda: sum(item.after_fork.called for item in items)) == 3


FORKING = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, since Python 3.12
tracer.start_span("of the parent").end()

def child():
    tracer.start_span("of the child").end()
    assert processor.stats()["Writing"]["offered"] == 1
    assert processor.lanes[0].exporter.after_forks == 1
    assert child.on_exit is None

child.on_exit = None  # named as what a worker of billiard's pool calls
if sys.argv[1] == "fork":
    pid = os.fork()
    if not pid:
        child()
        sys.exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
elif sys.argv[1] == "billiard.pool":
    from billiard.pool import Pool
    pool = Pool(1)
    pool.apply(child)
    pool.close()
    pool.join()
else:
    import importlib
    process = importlib.import_module(sys.argv[1]).get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
assert processor.lanes[0].exporter.after_forks == 0
"""


@pytest.mark.parametrize("way", ["fork", "multiprocessing", "billiard", "billiard.pool"])
def test_forked_child_exports_its_own_spans_only(run, way):
    """billiard is Celery's: its children end by ``os._exit``, without atexit."""
    assert run(FORKING, way) == [[False, "of the child"], [True, "of the parent"]]


def test_child_forked_during_an_export_counts_and_exports_its_own_spans_only():
    processor, exporter = stuck_processor()

    def export_one():
        offered, exporter.let_go = processor.stats()["Stuck"]["offered"], Mock()  # the parent's export hangs on
        processor.on_end(span("of the child"))
        return processor.force_flush() and (offered, exporter.names) == (0, ["of the child"])

    assert run_in_child(export_one) == 1
    exporter.let_go.set()
    processor.shutdown()


MADE_IN_THE_CHILD = """
import importlib

def child(directory):
    def end_span(exporter, name):
        processor = MqTraceSpanProcessor(exporter, schedule_delay_millis=60_000, ledger_dir=directory)
        provider = TracerProvider()
        provider.add_span_processor(processor)
        provider.get_tracer("x").start_span(name).end()
        return processor, provider

    end_span(Writing(), "of the child")
    processor, provider = end_span(Writing(*["failed"] * 2), "lost")
    processor.force_flush()
    provider.get_tracer("x").start_span("lost, too").end()

process = importlib.import_module(sys.argv[1]).get_context("fork").Process(target=child, args=(sys.argv[2],))
process.start()
process.join()
assert process.exitcode == 0
"""


@pytest.mark.parametrize("way", ["multiprocessing", "billiard"])
def test_processor_made_in_a_forked_child_exports_and_accounts_at_its_end(run, way, tmp_path):
    """As in a ``worker_process_init`` of Celery; the second loss comes sooner than the ledger's next line is due."""
    written = run(MADE_IN_THE_CHILD, way, tmp_path, prefix="import logging; logging.disable()\n")
    assert [name for _, name in written] == ["lost", "lost, too", "of the child"]
    rows = [row for ledger in tmp_path.glob("ledger-*.json") for row in json.loads(ledger.read_text())["rows"]]
    assert {row["cause"]: row["count"] for row in rows} == {"export_failed": 2}


def test_exporter_that_raises_after_a_fork_leaves_the_other_lanes_and_the_ledger_empty():
    raising = Scripted()
    raising.after_fork = Mock(side_effect=OSError("closed already"))
    processor = MqTraceSpanProcessor(raising, Scripted(), max_queue_size=1, background=False)
    for _ in range(2):
        processor.on_end(span("of the parent"))
    assert [row["cause"] for row in processor.ledger()["rows"]] == ["queue_full"] * 2
    processor.after_fork()
    assert {lane: books["pending"] for lane, books in processor.stats().items()} == {"Scripted": 0, "Scripted#2": 0}
    assert processor.ledger()["rows"] == []


UWSGI = """
import ctypes, random
from otel_mqtrace import SendHook

sys.modules["uwsgi"] = sys  # it forks without Python's hooks, and seeds the generator of random numbers
trace.set_tracer_provider(provider)
begin = SendHook(system="a broker").before
tracer.start_span("of the parent").end()
begin("orders", body=b"")
child = not ctypes.PyDLL(None).fork()
if child:
    random.seed()
    if sys.argv[1] == "end_span":
        other = threading.Thread(target=tracer.start_span("of another thread").end)
        processor.lanes[0].exporter.after_fork = lambda: [other.start(), other.join(0.2)]  # it waits until all is done
        tracer.start_span("of the child").end()
        other.join()
    getattr(processor, sys.argv[2])()
else:
    os.wait()
    processor.force_flush()
os.write(1, (json.dumps([not child, dict(begin("orders", body=b"").headers)["traceparent"].decode()]) + "\\n").encode())
os._exit(0)
"""


@pytest.mark.parametrize("ending", ["force_flush", "shutdown"])
@pytest.mark.parametrize("own", [[], ["of another thread", "of the child"]])
def test_worker_of_uwsgi_exports_all_of_its_own_spans_only(run, ending, own):
    (_, its), *by_child, (_, the_parents), last = run(UWSGI, "end_span" if own else "", ending)
    assert ([name for _, name in by_child], last) == (own, [True, "of the parent"])
    assert its != the_parents


def test_greenlets_share_a_processor_and_the_end_of_a_span_runs_no_other(run):
    """It may come in a callback inside a call of a client, which another greenlet must not make meanwhile."""
    written = run(
        """
        import gevent
        sys.setswitchinterval(1e-6)

        def end_spans(name):
            running.append(name)
            for _ in range(9):
                tracer.start_span(name).end()

        for phase in range(2):  # the worker is started, and is woken up
            running = []
            others = [gevent.spawn(end_spans, f"greenlet {number}") for number in range(9)]
            end_spans("in a callback")
            assert running == ["in a callback"]
            gevent.joinall(others, raise_error=True)
            assert processor.force_flush(timeout_millis=20_000)
            gevent.idle()  # the worker waits again
        provider.shutdown()
        books = processor.stats()["Writing"]
        assert books["offered"] == books["exported"] == 180, books
        """,
        prefix="from gevent import monkey; monkey.patch_all()\n",
    )
    names = ("in a callback", *(f"greenlet {number}" for number in range(9)))
    assert Counter(name for _, name in written) == dict.fromkeys(names, 18)


def test_sigterm_with_the_documented_recipe_loses_no_span():
    code = """
    import signal
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    tracer.start_span("queued").end()
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()
    """
    done = run_python(WRITING + textwrap.dedent(code))
    assert (done.returncode, json.loads(done.stdout)) == (143, [True, "queued"])


APPLICATION = """
tracer.start_span("import").end()

def app(environ, start_response):
    tracer.start_span(f"request {environ['PATH_INFO']}").end()
    start_response("200 OK", [])
    return [str(os.getpid()).encode()]
"""


def test_preloading_server_and_its_workers_export_their_own_spans(tmp_path):
    (tmp_path / "application.py").write_text(WRITING + APPLICATION)
    options = ["--preload", "-w", "2", "-b", "127.0.0.1:0", "--no-control-socket", "application:app"]
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-m", "gunicorn", *options]
    server = subprocess.Popen(command, cwd=tmp_path, env=environment, **streams)
    try:
        address = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+", line) for line in server.stderr)))[0]
        for number in range(20):
            urllib.request.urlopen(f"{address}/{number}", timeout=30).read()
    finally:
        server.terminate()
        written, _ = server.communicate(timeout=60)
    counts = Counter(tuple(json.loads(line)) for line in written.splitlines())
    assert counts == Counter({(True, "import"): 1, **{(False, f"request /{number}"): 1 for number in range(20)}})
