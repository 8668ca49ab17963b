"""What both engines promise: answers in order, blobs in their buckets, what a task raised, nothing left behind."""

import operator
import os
import signal
from functools import partial

import pytest

from bridge.storage import stores
from otel_mqtrace._errors import PeerError
from otel_mqtrace.testing import ManualClock
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.exchange.spark import SparkEngine
from spark_jobs.exchange.workers import Worker
from tests.support.clocks import TickingClock  # on which a map is long at once, and asks for further processes
from tests.support.programs import run_python
from tests.support.source_tree import ROOT


def spread(buckets, numbers):
    for number in numbers:
        yield number % buckets, str(number).encode()


def add_up(bucket, blobs):
    return bucket, sum(map(int, blobs))


def process_of(here, directory, _task):
    """Return the process that runs a task; ``here`` waits until another one has run one."""
    while os.getpid() == here and not any(directory.iterdir()):
        os.sched_yield()
    (directory / str(os.getpid())).write_text(stores.current_settings().get("fs.s3a.endpoint", ""))
    return os.getpid()


@pytest.fixture(params=["one process", "several processes", "spark"])
def engine(request):
    if request.param == "spark":
        yield SparkEngine(request.getfixturevalue("spark"), 2)
        return
    clock = TickingClock() if request.param == "several processes" else ManualClock()
    with LocalEngine(3, clock=clock) as local:
        yield local


def test_map_answers_in_the_order_of_its_tasks(engine):
    assert engine.map(partial(operator.mul, 3), list(range(40))) == [3 * number for number in range(40)]
    assert engine.map(partial(operator.mul, 3), []) == []


def test_exchange_gives_each_bucket_its_blobs_once(engine):
    tasks = [list(range(first, first + 10)) for first in range(0, 100, 10)]
    expected = {(bucket, sum(range(bucket, 100, 7))) for bucket in range(7)}
    assert set(engine.exchange(partial(spread, 7), tasks, add_up, 7)) == expected
    assert engine.exchange(partial(spread, 7), [], add_up, 7) == []
    assert engine.exchange(partial(spread, 9), [[4]], add_up, 9) == [(4, 4)]


def test_merged_answers_are_few_and_stand_for_all(engine):
    answers = engine.map(partial(operator.mul, 3), list(range(100)), merge=sum)
    assert (len(answers) < 100, sum(answers)) == (True, 3 * sum(range(100)))
    assert engine.map(operator.neg, [], merge=sum) == []
    tasks = [list(range(first, first + 10)) for first in range(0, 200, 10)]
    buckets = 9 if engine.name == "spark" else 120  # each is a task of Spark's
    sums = engine.exchange(partial(spread, buckets), tasks, add_up_blobs, buckets, merge=sum)
    assert (len(sums) < buckets, sum(sums)) == (True, sum(range(200)))


def add_up_blobs(_bucket, blobs):
    return sum(map(int, blobs))


def test_long_map_uses_other_processes_and_ends_them(tmp_path, monkeypatch):
    monkeypatch.setitem(stores._given, "fs.s3a.endpoint", "http://a:1")
    with LocalEngine(3, clock=TickingClock()) as engine:
        processes = set(engine.map(partial(process_of, os.getpid(), tmp_path), list(range(200))))
    assert os.getpid() in processes
    assert 1 < len(processes) <= 3
    assert {each.read_text() for each in tmp_path.iterdir()} == {"http://a:1"}  # they open stores as this process does
    for process in processes - {os.getpid()}:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_other_process_imports_no_package_of_our_name_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "spark_jobs.py").write_text("raise ImportError('of others')")
    monkeypatch.chdir(tmp_path)
    other = Worker()
    assert other.run(operator.neg, 1) == -1
    other.stop()


@pytest.mark.parametrize("clock", [ManualClock, TickingClock])
def test_error_of_a_task_is_raised_as_it_is(clock):
    with LocalEngine(3, clock=clock()) as engine, pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        engine.map(operator.index, [*range(50), "x", *range(50)])


def test_process_that_dies_is_one_sentence(tmp_path):
    died = pytest.raises(PeerError, match="a process of the local engine ended")
    with LocalEngine(2, clock=TickingClock()) as engine, died:
        engine.map(partial(die_elsewhere, os.getpid(), tmp_path), list(range(100)))


def test_interrupt_while_others_work_stops_them(tmp_path):
    os.mkfifo(tmp_path / "never")
    with LocalEngine(2, clock=TickingClock()) as engine:
        with pytest.raises(KeyboardInterrupt):
            engine.map(partial(send_and_wait, signal.SIGINT, os.getpid(), tmp_path), [1, 2])
        (other,) = (int(path.name) for path in tmp_path.iterdir() if path.name != "never")
        with pytest.raises(ProcessLookupError):
            os.kill(other, 0)


_KILLED = """
import os, pathlib, signal, sys
from functools import partial
from spark_jobs.exchange.local import LocalEngine
from tests.spark_jobs.exchange.test_engines import send_and_wait
from tests.support.clocks import TickingClock

task = partial(send_and_wait, signal.SIGKILL, os.getpid(), pathlib.Path(sys.argv[1]))
LocalEngine(2, clock=TickingClock()).map(task, [1, 2])
"""


def test_killed_parent_ends_other_processes_while_they_work(tmp_path):
    os.mkfifo(tmp_path / "never")
    done = run_python(_KILLED, tmp_path, cwd=ROOT, timeout_s=300)  # until the other process has closed its stderr, too
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert len(list(tmp_path.iterdir())) == 2


def send_and_wait(number, here, directory, _task):
    while os.getpid() == here:
        os.sched_yield()  # a call that blocks would miss a signal that comes just before it
    (directory / str(os.getpid())).touch()
    os.kill(here, number)
    (directory / "never").read_bytes()  # waits for a writer


def die_elsewhere(here, directory, task):
    if process_of(here, directory, task) != here:
        os._exit(7)
