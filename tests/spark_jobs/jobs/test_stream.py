"""The stream: whatever comes when, and however it was killed, it ends where one batch over everything ends."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from otel_mqtrace._errors import UsageError
from spark_jobs.history.history import lock_directory
from spark_jobs.jobs import batch, stream
from spark_jobs.jobs.batch import ReconcileOptions
from tests.support.verdict_rows import read_verdicts

pytestmark = pytest.mark.spark

DUAL = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"
ODD_NAME = "part [1] %41+ü.jsonl"  # Hadoop would take it for a pattern, a URL for an escape

# The stream as it is, but for one thing: it kills itself at the given moment of the given batch.
KILLED = """
import os, signal, sys
from pathlib import Path
from spark_jobs.jobs import stream
from spark_jobs.jobs.batch import ReconcileOptions
from spark_jobs.jobs.intake import Intake

moment, number, native, otlp, out = sys.argv[1:]
take_in, taken = Intake.take_in, []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def dying(self, name, sides, **others):
    taken.append(name)
    last = len(taken) == int(number)
    if last and moment == "written":
        die()
    take_in(self, name, sides, **others)
    if last and moment == "taken in":
        die()

Intake.take_in = dying
options = ReconcileOptions(native=(native,), otlp=(otlp,), out=Path(out), profile="java-agent",
    native_writer="rocketmq-4.9.8", grace_ms=0, master="local[1]")
stream.run(options, files_per_batch=1)
"""


def laid_down(root: Path) -> tuple[Path, Path]:
    """The recording in several files a side, among things that are none of it."""
    for side, name, sizes in (("native", "native.jsonl", (5, 4, 6)), ("otlp", "otlp.jsonl", (2, 3))):
        lines = (DUAL / name).read_bytes().splitlines(keepends=True)
        directory = root / side / "date=2026-11-21"
        directory.mkdir(parents=True)
        for number, size in enumerate(sizes):
            part = ODD_NAME if number == 1 else f"part-{number}.jsonl"
            (directory / part).write_bytes(b"".join(lines[:size]))
            del lines[:size]
        assert not lines
        (directory / "part-9.jsonl.tmp").write_bytes(b'{"half')
        (directory / ".hidden.jsonl").write_bytes(b"{}")
        (directory / "notes.md").write_text("not data")
    return root / "native", root / "otlp"


def options(native: Path, otlp: Path, out: Path, **others) -> ReconcileOptions:
    chosen = {"profile": "java-agent", "native_writer": "rocketmq-4.9.8", "grace_ms": 0, **others}
    return ReconcileOptions(native=(str(native),), otlp=(str(otlp),), out=out, **chosen)


def rows(out: Path) -> list[str]:
    """Return every verdict, without what only a history knows."""
    plain = read_verdicts(out)
    for row in plain:
        del row["lifecycle"], row["first_seen_run"]
        for side in filter(None, (row["native"], row["otlp"])):
            del side["first_seen_run"], side["left_as"]
    return sorted(map(repr, plain))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    return laid_down(tmp_path_factory.mktemp("recorded"))


@pytest.fixture(scope="module")
def whole(recorded, tmp_path_factory):
    """One batch over everything."""
    out = tmp_path_factory.mktemp("whole")
    return batch.run(options(*recorded, out, engine="local")), rows(out)


@pytest.fixture(scope="module")
def streamed(spark, recorded, tmp_path_factory):
    """A stream to which files come while it waits, until it is told to stop: its results, its end, its verdicts."""
    root, out = tmp_path_factory.mktemp("arriving"), tmp_path_factory.mktemp("streamed")
    native, otlp = (Path(shutil.copytree(side, root / side.name)) for side in recorded)
    kept_back = [path for side in (native, otlp) for path in sorted(side.rglob("part*.jsonl"))[1:]]
    for path in kept_back:
        path.rename(path.with_suffix(".jsonl.tmp"))
    waits, reported = [], []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 1:
            for path in kept_back:
                path.with_suffix(".jsonl.tmp").rename(path)
        if len(waits) == 3:
            signal.raise_signal(signal.SIGTERM)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    last = stream.run(
        options(native, otlp, out, history=out / "history"),
        every_ms=30_000,
        spark=spark,
        report=reported.append,
        wait=wait,
        files_per_batch=2,
    )
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    found = [row.replace(str(root), str(recorded[0].parent)) for row in rows(out)]
    return reported, last, waits, sorted(found)


def test_what_came_in_pieces_gets_the_verdicts_of_one_batch(whole, streamed):
    """Halves of one delivery, a send and its span, in different files and rounds: row by row the same."""
    batched, expected = whole
    _, last, _, found = streamed
    assert found == expected
    assert (last.status, last.reason, last.loss) == (batched.status, batched.reason, batched.loss)
    assert (last.inputs.native.records_read, last.inputs.otlp.records_read) == (
        batched.inputs.native.records_read,
        batched.inputs.otlp.records_read,
    )
    assert last.conservation.holds, last.conservation


def test_a_round_that_brings_nothing_is_not_reported(streamed):
    """Three rounds, two of which brought something; each is a run of the history; the signal ended the fourth wait."""
    reported, last, waits, _ = streamed
    assert waits == [30.0] * 3
    assert [result.run for result in reported] == [1, 2]
    assert last == reported[-1]
    assert reported[0].status != last.status


def test_what_a_round_left_open_the_next_one_resolves(streamed):
    """Nothing is judged twice: what is carried is what the intake still holds, and counts once."""
    reported, last, _, _ = streamed
    assert reported[0].lifecycle["new"] > 0
    assert last.lifecycle["resolved"] > 0
    native = last.inputs.native
    assert native.carried == native.read_again > 0


def test_a_stream_that_is_killed_goes_on_where_it_was(spark, recorded, whole, tmp_path):
    """Before a batch is taken in and after it, but before Spark knows: no row lost, none twice; then nothing is new."""
    out = tmp_path / "out"
    for moment, number in (("written", "2"), ("taken in", "1")):
        killed = subprocess.run(
            [sys.executable, "-c", KILLED, moment, number, *map(str, recorded), str(out)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list((out / "stream" / "events").glob("batch=*"))) == 2
    result = stream.run(options(*recorded, out), spark=spark, files_per_batch=1)
    batched, expected = whole
    assert rows(out) == expected
    assert result.status == batched.status
    assert not list((out / "stream" / "events").glob(".incoming-*"))


def test_a_file_that_grows_after_it_was_read_leaves_the_run_undecided(spark, recorded, tmp_path):
    """What is appended is not seen again, and the run says so instead of calling it lost."""
    native, otlp = (Path(shutil.copytree(side, tmp_path / side.name)) for side in recorded)
    grown = native / "date=2026-11-21" / "part-0.jsonl"

    def append(_result):
        with grown.open("ab") as file:
            file.write(b"{}\n")

    out = tmp_path / "out"
    first = stream.run(options(native, otlp, out), spark=spark, report=append)
    again = stream.run(options(native, otlp, out), spark=spark)
    assert (first.doubt, first.exit_code) == (None, 0)
    assert (again.verdict, again.exit_code) == ("INCONCLUSIVE", 4)
    assert str(grown) in again.doubt


def test_a_stream_is_read_one_way_only(recorded, tmp_path):
    """What was read in one charset is not added to in another."""
    (tmp_path / "stream").mkdir()
    how = '{"--native-writer": "rocketmq-4.9.8", "--msg-type-map": "a", "--charset": "gbk", "--otlp-format": null}'
    (tmp_path / "stream" / "how.json").write_text(how)
    with pytest.raises(UsageError, match="--charset gbk: give the same"):
        stream.run(options(*recorded, tmp_path))


def test_writers_are_chosen_at_the_first_data_and_kept(spark, recorded, whole, tmp_path):
    """The first round finds empty files; what a later run finds beside the recording changes nothing."""
    sides, out = (tmp_path / "native", tmp_path / "otlp"), tmp_path / "out"
    for side in sides:
        side.mkdir()
        (side / "empty.jsonl").touch()
    auto = ReconcileOptions(native=(str(sides[0]),), otlp=(str(sides[1]),), out=out, grace_ms=0)
    reported, waits = [], []

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        for side, source in zip(sides, recorded, strict=True):
            shutil.copytree(source, side, dirs_exist_ok=True)

    stream.run(auto, every_ms=30_000, spark=spark, report=reported.append, wait=wait)
    first, last = (result.writers for result in reported)
    assert (first.profile, first.native_writer, first.evidence) == ("mqtrace", "mqtrace", ())
    assert (last.profile, last.native_writer) == ("java-agent", "rocketmq-4.9.8")
    assert [row.replace(str(tmp_path), str(recorded[0].parent)) for row in rows(out)] == whole[1]

    span = {"traceId": "a" * 32, "spanId": "b" * 16, "kind": 4, "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    scope = {"scope": {"name": "otel_mqtrace"}, "spans": [span]}
    (sides[1] / "later.jsonl").write_text(json.dumps({"resourceSpans": [{"scopeSpans": [scope]}]}) + "\n")
    assert stream.run(auto, spark=spark).writers == last


def test_two_streams_cannot_share_a_directory(recorded, tmp_path):
    """The second is told in one line."""
    with lock_directory(tmp_path / "stream", name="--out"), pytest.raises(UsageError, match="in use by another run"):
        stream.run(options(*recorded, tmp_path))


def test_rounds_without_a_pause_are_refused(recorded, tmp_path):
    """A stream that never waits would do nothing but look."""
    with pytest.raises(UsageError, match="--every is less than a second"):
        stream.run(options(*recorded, tmp_path), every_ms=0)


def test_stream_needs_spark(recorded, tmp_path):
    with pytest.raises(UsageError, match="--engine local does not take --stream"):
        stream.run(options(*recorded, tmp_path, engine="local"))
