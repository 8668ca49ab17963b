"""What killed writers leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from otel_mqtrace.landing.layout import LandedMessage
from otel_mqtrace.landing.writer import LandingWriter, adopt_orphans
from tests.support.landings import landed_lines

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no advisory locks")

CRASHING = """
import os, signal, sys
from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from tests.support.native_spans import bean, sub, traced

processor, trace = traced(NativeFileSpanExporter(directory=sys.argv[1]), max_export_batch_size=1)
processor.lanes[0]._side.batches_at_once = 1  # the start alone
trace(sub(bean(1)))
processor.run_once()
os.kill(os.getpid(), signal.SIGKILL)
"""


def _message(number):
    return LandedMessage(source="T", arrival_ms=1_700_000_000_000 + number, offset=number, body=b"abc")


def _offsets(root):
    return [line["offset"] for line in landed_lines(root)]


def test_the_next_writer_finishes_what_a_killed_one_began(tmp_path):
    done = subprocess.run([sys.executable, "-c", CRASHING, str(tmp_path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert landed_lines(tmp_path) == []
    writer = LandingWriter(tmp_path)
    writer.write([_message(2)])
    [crashed] = landed_lines(tmp_path)
    assert crashed["source"] == "RMQ_SYS_TRACE_TOPIC"
    writer.finish()
    assert len(landed_lines(tmp_path)) == 2


def test_a_living_writers_part_is_left_alone(tmp_path):
    writer = LandingWriter(tmp_path)
    writer.write([_message(1)])
    assert adopt_orphans(tmp_path) == ()
    writer.write([_message(2)])
    writer.finish()
    assert _offsets(tmp_path) == [1, 2]


def test_a_part_whose_parent_forked_is_still_the_parents(tmp_path):
    writer = LandingWriter(tmp_path)
    writer.write([_message(1)])
    pid = os.fork()
    if not pid:
        writer.after_fork()
        os._exit(len(adopt_orphans(tmp_path)))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert adopt_orphans(tmp_path) == ()
    writer.finish()


def test_an_orphan_is_counted_without_its_torn_last_line(tmp_path):
    writer = LandingWriter(tmp_path)
    writer.write([_message(1), _message(2)])
    [path] = (tmp_path / "native").glob("date=*/.part-*")
    with path.open("ab") as file:
        file.write(b'{"source":"T","arr')
    writer.after_fork()  # lets go without finishing, as a death does
    [orphan] = adopt_orphans(tmp_path)
    assert (orphan.messages, orphan.body_bytes) == (2, 6)
    assert (orphan.first_arrival_ms, orphan.last_arrival_ms) == (1_700_000_000_001, 1_700_000_000_002)
    assert (tmp_path / "native" / orphan.file).read_bytes().endswith(b'"arr')


def test_an_empty_part_in_progress_is_left_for_its_writer(tmp_path):
    """It may have been created a moment ago, and not be locked yet."""
    directory = tmp_path / "native" / "date=2026-11-21"
    directory.mkdir(parents=True)
    (directory / ".part-1-a-0.jsonl.inprogress").touch()
    assert adopt_orphans(tmp_path) == ()


FINISHING = """
import sys
from pathlib import Path
from otel_mqtrace.landing.layout import LandedMessage
from otel_mqtrace.landing.writer import adopt_orphans
from otel_mqtrace.landing.writer import LandingWriter

landing, adopted, armed = Path(sys.argv[1]), [], [True]

def at_the_worst_moment(event, arguments):
    if event == "os.rename" and armed:
        armed.clear()
        adopted.extend(adopt_orphans(landing))

sys.addaudithook(at_the_worst_moment)
writer = LandingWriter(landing)
writer.write([LandedMessage(source="T", arrival_ms=1, body=b"abc")])
assert len(writer.finish()) == 1
assert not armed
assert adopted == []
"""


def test_a_part_is_never_adopted_while_its_writer_gives_it_its_name(tmp_path):
    done = subprocess.run([sys.executable, "-c", FINISHING, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(landed_lines(tmp_path)) == 1
