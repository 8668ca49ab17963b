"""What a run writes: a work directory that goes with it, and an outcome that is replaced whole."""

import errno
import os
import signal
import stat
import tempfile
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem

from bridge.storage.paths import as_path, list_files
from bridge.storage.stores import Store
from otel_mqtrace._errors import UsageError
from spark_jobs.jobs.workspace import replace_outcome, work_directory
from tests.support.programs import no_file_beyond, run_in_child, run_program, signalled_at

DUAL = Path(__file__).parents[2] / "vectors" / "dual" / "app-4.9.8-dup"


def left_in(out):
    return sorted(path.name for path in out.iterdir())


def test_directory_of_a_killed_run_is_removed_by_the_next(tmp_path):
    def die_within():
        with work_directory(tmp_path) as work:
            (work / "rows.parquet").write_bytes(b"half of it")
            os.kill(os.getpid(), signal.SIGKILL)

    assert run_in_child(die_within) == -signal.SIGKILL
    assert len(left_in(tmp_path)) == 1
    with work_directory(tmp_path) as work:
        assert left_in(tmp_path) == [work.name]


def test_directory_is_removed_after_the_block_and_one_without_a_lock_is_not(tmp_path):
    (tmp_path / ".work-of-somebody").mkdir()
    with work_directory(tmp_path) as work:
        (work / "rows.parquet").write_bytes(b"some")
    assert left_in(tmp_path) == [".work-of-somebody"]


def test_file_system_error_within_the_block_is_raised(tmp_path):
    with pytest.raises(OSError, match="no space left"), work_directory(tmp_path):
        raise OSError("no space left")


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space left on device; free space, or set TMPDIR to another disk"),
        (errno.EDQUOT, "disk quota exceeded; free space, or set TMPDIR to another disk"),
        (errno.EFBIG, "file too large; raise ulimit -f"),
    ],
)
def test_full_disk_within_the_block_is_a_line_with_the_places_and_the_fix(tmp_path, number, message):
    places = f"cannot write below --out {tmp_path} or in {tempfile.gettempdir()}: "
    with pytest.raises(UsageError, match=f"^{places}{message}$"), work_directory(tmp_path):
        raise OSError(number, "as pyarrow has it")
    assert left_in(tmp_path) == []


@pytest.fixture
def outcome(tmp_path):
    """Return the work directory and ``--out``, each with verdicts, and the reports of an earlier run in ``--out``."""
    work, out = tmp_path / ".work", tmp_path / "out"
    for directory, text in ((work, "new"), (out, "old")):
        (directory / "verdicts").mkdir(parents=True)
        (directory / "verdicts" / f"{text}.parquet").write_text(text)
    for name in (*NEW, "foreign.txt"):
        (out / name).write_text("old")
    return work, out


NEW = {"report.html": "new", "result.json": "new \udcff"}
_OLD = {"verdicts": ["old.parquet"]} | dict.fromkeys([*NEW, "foreign.txt"], "old")


def state(out):
    return {path.name: left_in(path) if path.is_dir() else path.read_text() for path in out.iterdir()}


@pytest.mark.parametrize(
    ("texts", "has_verdicts", "after"),
    [
        (NEW, True, _OLD | {"verdicts": ["new.parquet"], "report.html": "new", "result.json": "new \\udcff"}),
        ({}, True, {"verdicts": ["new.parquet"], "report.html": "old", "foreign.txt": "old"}),
        ({"graph.html": "g"}, False, {**_OLD, "graph.html": "g"}),
    ],
    ids=["a run", "verdicts without a report: no result of an earlier run", "a command that judges nothing"],
)
def test_outcome_replaces_verdicts_and_reports(outcome, texts, has_verdicts, after):
    work, out = outcome
    replace_outcome(texts, work, out, has_verdicts=has_verdicts)
    assert state(out) == after
    assert {stat.S_IMODE((out / name).stat().st_mode) for name in texts} <= {0o644}


def test_run_without_an_event_leaves_no_verdicts_of_an_earlier_one_in_a_store(tmp_path, monkeypatch):
    store = Store(LocalFileSystem(), str(tmp_path), renames=False)
    monkeypatch.setattr("bridge.storage.paths.open_store", lambda *_: store)
    work, out = (as_path(f"s3a://bucket/{name}") for name in (".work", "out"))
    (tmp_path / "out" / "verdicts").mkdir(parents=True)
    (tmp_path / "out" / "verdicts" / "old.parquet").touch()
    replace_outcome(NEW, work, out, has_verdicts=True)
    assert list_files(out / "verdicts") == []
    assert (out / "result.json").read_text() == "new \\udcff"


@pytest.mark.parametrize("failing", range(1, 7))
def test_outcome_is_replaced_whole_or_not_at_all(outcome, monkeypatch, failing):
    """Whichever renaming fails; until the last one there is no ``result.json`` beside other verdicts."""
    work, out = outcome
    calls = iter(range(1, 99))
    rename = Path.rename

    def fail_once(path, target):
        if (number := next(calls)) == failing:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        assert not (out / "result.json").exists() or number == 1
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail_once)
    with pytest.raises(UsageError, match=f"cannot write the report into {out}: Operation not permitted; choose"):
        replace_outcome(NEW, work, out, has_verdicts=True)
    assert state(out) == _OLD


@pytest.mark.parametrize("large", NEW)
def test_disk_without_room_for_a_report_leaves_the_old_outcome(outcome, large):
    with no_file_beyond(100), pytest.raises(UsageError, match="File too large"):
        replace_outcome(NEW | {large: "new" * 100}, *outcome, has_verdicts=True)
    assert state(outcome[1]) == _OLD


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("sent", "stage", "delay_s", "how"),
    [
        (signal.SIGTERM, "adding up", 0, ["--engine", "local"]),
        (signal.SIGTERM, "starting Spark", 0, ["--stream", "--every", "1m"]),
        (signal.SIGTERM, "starting Spark", 1, ["--engine", "spark"]),
        pytest.param(signal.SIGINT, "starting Spark", 0.6, ["--master", "local[1]"], marks=pytest.mark.spark),
        pytest.param(signal.SIGINT, "reading the native trace", 0.5, ["--master", "local[1]"], marks=pytest.mark.spark),
    ],
    ids=["local", "stream", "Spark that starts", "interrupted start", "interrupted job"],
)
def test_stopped_run_is_one_line_and_leaves_no_directory_and_no_process(tmp_path, sent, stage, delay_s, how):
    """A termination comes in the background of a shell script, where SIGINT is ignored."""
    sides = ["--native", DUAL / "native.jsonl", "--otlp", DUAL / "otlp.jsonl", "--out", tmp_path]
    in_background = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh"] if sent is signal.SIGTERM else []
    done = run_program(*in_background, *signalled_at(stage, sent, "reconcile", *sides, *how, delay_s=delay_s))
    assert (done.returncode, done.stdout, done.stderr) == (128 + sent, "", "mqtrace: interrupted\n")
    assert left_in(tmp_path) == (["stream"] if "--stream" in how else [])
