"""The history on disk: one run at a time, and nothing of a run that did not end."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from otel_mqtrace._clock import WallNs
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.history import history
from spark_jobs.history.history import RUNS
from spark_jobs.history.lifecycle import CLOSED, read_closed
from spark_jobs.schemas import EVENT, CountedDrop
from tests.support.events import START_MS, publish
from tests.support.results import result


def test_history_without_a_run_leaves_nothing_behind(tmp_path):
    with history.open_history(tmp_path / "history") as past:
        assert (past.run, past.runs) == (1, ())
        past.make_events_directory()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        *("[1]", "{}", '{"run": "x"}', '{"run": 1e999}', '{"run": 1, "open_files": "3"}', "text", '{"run": 2, "ver'),
        *('{"run": 1, "status": 3}', '{"run": 1, "unexplained": {"otlp": null}}', '{"run": 1, "inputs": {"otlp": 3}}'),
        *('{"run": true}', '{"run": 1%s}' % ("0" * 400), "[" * 100_000),
    ],
)
def test_file_that_is_not_a_history_is_refused(tmp_path, line):
    text = f'{{"run": 1}}\n{line}\n'
    (tmp_path / history.RUNS).write_text(text)
    why = ":2 is not a history of runs: .*(mqtrace writes|not a number|column)"  # in no words of Python's
    with pytest.raises(UnreadableInputError, match=why), history.open_history(tmp_path):
        pass
    assert (tmp_path / history.RUNS).read_text() == text


@pytest.fixture
def kept(tmp_path):
    closed = pa.Table.from_pylist([{"side": "native", "path": "a", "raw_hash": 7, "first_seen_run": 1}], schema=CLOSED)
    with history.open_history(tmp_path / "history") as past:
        event = pa.Table.from_pylist([publish("native", "A", keys=["k"])], schema=EVENT)
        history.write_rows(event, f"{past.make_events_directory()}/part-00003.parquet")
        past.keep_closed(closed)
        past.keep_used_drops([CountedDrop(side="otlp", component="queue", cause="full", count=5)])
        past.commit({"run": 1})
    return tmp_path / "history"


def test_state_of_a_run_is_removed_by_the_next_commit(kept):
    with history.open_history(kept) as past:
        past.keep_closed(history.read_rows(past.closed_files()[0], CLOSED))
        past.commit({"run": 2})
    assert [path.name for path in (kept / "open").iterdir()] == ["run=2"]
    with history.open_history(kept) as past:
        assert (len(past.closed_files()), past.carried_files(), past.used_drops()) == (1, [], ())
        past.keep_closed(CLOSED.empty_table())
        past.commit({"run": 3})
    assert not (kept / "open").exists()
    assert [json.loads(line)["run"] for line in (kept / history.RUNS).read_text().splitlines()] == [1, 2, 3]


def test_files_of_a_run_are_flushed_to_the_disk_before_its_line_which_is_the_last_of_2000(kept, monkeypatch):
    flushed = []
    (kept / RUNS).write_text((kept / RUNS).read_text() * 2_000)
    monkeypatch.setattr(os, "fsync", lambda fd: flushed.append(os.fstat(fd).st_ino))
    with history.open_history(kept) as past:
        past.keep_used_drops([])
        past.commit({"run": 2})
    *state, line = (kept / name for name in ("open/run=2/paid.json", "open/run=2", "open", RUNS))
    assert {path.stat().st_ino for path in state} <= set(flushed[:-2])
    assert flushed[-2:] == [line.stat().st_ino, kept.stat().st_ino]
    assert [json.loads(each)["run"] for each in line.read_text().splitlines()] == [*[1] * 1_999, 2]


def test_state_of_a_run_that_failed_is_dropped(kept):
    with history.open_history(kept) as past:
        past.make_events_directory()
    with history.open_history(kept) as past:
        assert len(past.carried_files()) == 1
        assert [path.name for path in (kept / "open").iterdir()] == ["run=1"]


@pytest.mark.parametrize(
    ("lost", "left"), [("open/run=2/closed/part-00000.parquet", 0), ("open/run=2/paid.json", 0), (RUNS, 1), (RUNS, 0)]
)
def test_history_that_lost_a_file_or_lines_is_refused(kept, lost, left):
    with history.open_history(kept) as past:
        past.keep_closed(history.read_rows(past.closed_files()[0], CLOSED))
        past.keep_used_drops([])
        past.commit({"run": 2})
    (kept / lost).rename(kept / "whole")
    if left:
        (kept / lost).write_bytes((kept / "whole").read_bytes().splitlines()[0])
    for _ in range(2):  # a refusal removes nothing
        with pytest.raises(UnreadableInputError, match=r" has .*: restore"), history.open_history(kept):
            pass
    assert (kept / "open" / "run=2").exists()


def test_damaged_state_is_refused(kept):
    """Used drops that were taken for none would be spent twice."""
    with history.open_history(kept) as past:
        for path in (*past.carried_files(), *past.closed_files()):
            Path(path).write_bytes(b"PAR1 no more")
        with pytest.raises(UnreadableInputError, match="name another --history"):
            history.read_rows(past.carried_files()[0], EVENT)
        with pytest.raises(UnreadableInputError, match="name another --history"):
            read_closed(past.closed_files())
        for text in ("[", "[" * 100_000, '[{"count": 1}]', "3"):
            (kept / "open" / "run=1" / "paid.json").write_text(text)
            with pytest.raises(UnreadableInputError, match=r"read: (Expecting|its content is not).* another --history"):
                past.used_drops()


NOON_NS = WallNs(START_MS * 1_000_000)


def test_line_of_a_run_has_its_number_time_counts_and_gates():
    given = result()
    line = history.summarise_run(given, run=3, wall_ns=NOON_NS)
    assert (line["run"], line["time"]) == (3, "2026-11-21T12:00:00.000Z")
    assert line["status"] == dict(given.status)
    assert line["gates"] == {gate.name: {"value": gate.value, "outcome": gate.outcome} for gate in given.gates}
    assert line["unexplained"] == {side: loss.unexplained for side, loss in given.loss.items()}
    assert line["inputs"]["native"]["files"] == len(given.inputs.native.sources)
    assert 0 < line["match_rate"] < 1
    assert json.loads(json.dumps(line)).keys() == line.keys()


def test_trend_shows_the_last_runs():
    runs = range(1, history.TREND_RUNS + 3)
    lines = [history.summarise_run(result(), run=number, wall_ns=NOON_NS) for number in runs]
    points = history.trend_points(lines)
    assert [point["run"] for point in points] == list(range(3, history.TREND_RUNS + 3))
    assert points[0]["pending"] == lines[0]["status"]["PENDING"]
    assert points[0]["records_read"] == {side: lines[0]["inputs"][side]["records_read"] for side in ("native", "otlp")}
