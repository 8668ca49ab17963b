"""Parts of a landing: written, finished, and adopted when their writer died."""

import base64
import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from otel_mqtrace._errors import MissingExtraError, UsageError
from otel_mqtrace.landing import LandedMessage, LandedPart, LandingWriter, adopt_orphans, claim, manifest_path
from otel_mqtrace.testing import ManualClock
from tests.support.programs import no_file_beyond, run_in_child

DAY_MS = 24 * 3600 * 1000
NOW_MS = 1_700_000_000_000  # 2023-11-14


def _message(number, **fields):
    where = {"source": "T", "partition": 1, "offset": number, "arrival_ms": NOW_MS}
    return LandedMessage(**{**where, "keys": "键 k", "body": b"\x01\xff\x02", **fields})


def _visible(root):
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file() and p.name[0] not in "._")


def _manifest(root):
    return [LandedPart(**json.loads(line)) for line in manifest_path(root).read_text().splitlines()]


@pytest.fixture
def writer(tmp_path):
    return LandingWriter(tmp_path)


def test_json_lines_have_the_fields_of_the_contract(tmp_path):
    with LandingWriter(tmp_path) as writer:
        writer.write([_message(7, partition=None, keys=None), _message(8)])
    [path] = _visible(tmp_path)
    first, second = map(json.loads, (tmp_path / path).read_text(encoding="utf-8").splitlines())
    place = {"source": "T", "partition": None, "offset": 7, "arrival_ms": NOW_MS}
    assert first == {**place, "keys": None, "body_base64": base64.b64encode(b"\x01\xff\x02").decode()}
    assert second["keys"] == "键 k"


def test_tilde_that_no_shell_expanded_is_the_name_of_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with LandingWriter(Path("~/landing"), format="parquet") as writer:
        writer.write([_message(1)])
    [path] = _visible(tmp_path)
    assert pq.ParquetFile(tmp_path / path).metadata.num_rows == 1


def test_parquet_has_the_schema_of_the_contract(tmp_path):
    with LandingWriter(tmp_path, format="parquet") as writer:
        writer.write([_message(1)])
        writer.write([_message(2)])
    [path] = _visible(tmp_path)
    table = pq.ParquetFile(tmp_path / path).read()
    place = {"source": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "arrival_ms": pa.int64()}
    assert table.schema.remove_metadata() == pa.schema({**place, "keys": pa.string(), "body": pa.binary()})
    assert table.column("offset").to_pylist() == [1, 2]
    assert table.column("body").to_pylist() == [b"\x01\xff\x02"] * 2


@pytest.mark.parametrize(
    ("arrival_ms", "date"),
    [
        (NOW_MS + DAY_MS, "2023-11-15"),
        *((late, "9999-12-31") for late in (NOW_MS * 1_000, 2**63 - 1)),
        (-(2**63), "1970-01-01"),
    ],
)
def test_every_day_has_its_own_directory_and_times_outside_the_calendar_the_nearest(tmp_path, arrival_ms, date):
    with LandingWriter(tmp_path) as writer:
        writer.write([_message(1, arrival_ms=arrival_ms), _message(2)])
    days = {part.first_arrival_ms: part.file.split("/")[0] for part in _manifest(tmp_path)}
    assert days == {arrival_ms: f"date={date}", NOW_MS: "date=2023-11-14"}


def test_finished_part_alone_is_visible_and_in_the_manifest(writer, tmp_path):
    writer.write([_message(1), _message(2, arrival_ms=NOW_MS + 5)])
    assert _visible(tmp_path) == []
    finished = writer.finish()
    writer.write([_message(3)])
    finished += writer.finish()
    assert _visible(tmp_path) == sorted(f"native/{part.file}" for part in finished)
    assert list(tmp_path.rglob(".*")) == []
    assert tuple(_manifest(tmp_path)) == finished
    assert [(part.messages, part.body_bytes) for part in finished] == [(2, 6), (1, 3)]
    assert (finished[0].first_arrival_ms, finished[0].last_arrival_ms) == (NOW_MS, NOW_MS + 5)


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_name_of_a_finished_part_is_flushed_to_the_disk(tmp_path, monkeypatch, suffix):
    """After a crash of the system an unfinished parquet part is removed, and its messages were committed."""
    synced = {}

    def sync(fd):
        path = Path(f"/proc/self/fd/{fd}").resolve()
        synced[path] = [each.name for each in path.iterdir()] if path.is_dir() else []

    monkeypatch.setattr(os, "fsync", sync)
    writer = LandingWriter(tmp_path, format=suffix)
    writer.write([_message(1)])
    (part,) = writer.finish()
    final = tmp_path / "native" / part.file
    assert synced[final.parent] == [final.name]
    assert {tmp_path, tmp_path / "native"} <= synced.keys()


def test_part_is_finished_without_a_manifest_that_can_be_written(writer, tmp_path):
    writer.write([_message(1)])
    manifest_path(tmp_path).mkdir()
    [part] = writer.finish()
    assert (part.messages, _offsets(tmp_path)) == (1, [1])


def test_full_part_is_finished_and_the_next_begun(tmp_path):
    writer = LandingWriter(tmp_path, max_part_bytes=6)
    due = []
    for number in range(5):
        writer.write([_message(number)])
        due.append(writer.due)
        writer.finish_due()
    assert due == [False, True, False, True, False]
    assert len(_visible(tmp_path)) == 2
    writer.finish()
    assert [part.messages for part in _manifest(tmp_path)] == [2, 2, 1]


def test_writer_is_due_before_the_parts_of_many_days_use_up_its_files(tmp_path):
    writer = LandingWriter(tmp_path, clock=ManualClock())
    for number, is_due in ((64, False), (65, True)):
        writer.write([_message(day, arrival_ms=NOW_MS + day * DAY_MS) for day in range(number)])
        assert writer.due is is_due


def test_writers_in_one_directory_have_names_of_their_own(tmp_path):
    clock = ManualClock()
    writers = [LandingWriter(tmp_path, clock=clock) for _ in range(20)]
    for writer in writers:
        writer.write([_message(1)])
    for writer in writers:
        writer.finish()
    assert len(_visible(tmp_path)) == 20


def test_forked_child_leaves_the_part_of_its_parent(writer, tmp_path):
    writer.write([_message(1)])

    def write_another():
        writer.after_fork()
        adopted = adopt_orphans(tmp_path)
        writer.write([_message(2)])
        writer.finish()
        return len(adopted)

    assert run_in_child(write_another) == 0
    assert adopt_orphans(tmp_path) == ()
    writer.write([_message(3)])
    writer.finish()
    assert sorted(_offsets(tmp_path)) == [1, 2, 3]
    assert sorted(part.messages for part in _manifest(tmp_path)) == [1, 2]


def test_directory_that_cannot_be_made_is_a_usage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot write to the landing .*file.*; choose another directory$"):
        LandingWriter(tmp_path / "file").write([_message(1)])


_FULL = r"^cannot write to the landing \S+: file too large; raise ulimit -f$"


def _offsets(root):
    return [json.loads(line)["offset"] for path in _visible(root) for line in (root / path).read_text().splitlines()]


def test_failed_write_leaves_the_part_as_it_was(writer, tmp_path):
    writer.write([_message(1)])
    with no_file_beyond(300), pytest.raises(UsageError, match=_FULL):
        writer.write([_message(2, body=b"x" * 1000)])
    writer.write([_message(3)])
    [part] = writer.finish()
    assert _offsets(tmp_path) == [1, 3]
    assert (part.messages, part.body_bytes) == (2, 6)


def test_part_whose_first_write_failed_is_removed(writer, tmp_path):
    with no_file_beyond(10), pytest.raises(UsageError):
        writer.write([_message(1)])
    assert writer.finish() == ()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    writer.write([_message(2)])
    assert len(writer.finish()) == 1
    assert _offsets(tmp_path) == [2]


def test_parquet_part_that_could_not_be_finished_is_retried(tmp_path):
    writer = LandingWriter(tmp_path, format="parquet")
    writer.write([_message(1)])
    with no_file_beyond(100), pytest.raises(UsageError, match=_FULL):
        writer.finish()
    assert _visible(tmp_path) == []
    writer.write([_message(2)])
    [part] = writer.finish()
    assert part.messages == 2
    assert pq.ParquetFile(tmp_path / "native" / part.file).read().column("offset").to_pylist() == [1, 2]


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"unlike --landing-format jsonl.*otel-mqtrace\[reconcile\]"):
        LandingWriter(tmp_path, format="parquet").write([_message(1)])


def test_orphan_is_counted_without_a_damaged_line_and_a_torn_last_one(writer, tmp_path):
    writer.write([_message(1, arrival_ms=NOW_MS + 1), _message(2, arrival_ms=NOW_MS + 2)])
    [path] = (tmp_path / "native").glob("date=*/.part-*")
    with path.open("ab") as file:
        file.write(b'\0\0\0\n{"source":"T","arr')
    writer.after_fork()  # lets go without finishing, as a death does
    LandingWriter(tmp_path).write([_message(3)])
    [orphan] = _manifest(tmp_path)
    assert (orphan.messages, orphan.body_bytes) == (2, 6)
    assert (orphan.first_arrival_ms, orphan.last_arrival_ms) == (NOW_MS + 1, NOW_MS + 2)
    assert (tmp_path / "native" / orphan.file).read_bytes().endswith(b'"arr')


@pytest.mark.parametrize(("suffix", "content"), [("jsonl", b""), ("parquet", b""), ("parquet", b"PAR1 half")])
def test_orphan_without_a_whole_message_is_removed_once_its_writer_is_dead(tmp_path, suffix, content):
    directory = tmp_path / "native" / "date=2026-11-21"
    directory.mkdir(parents=True)
    path = directory / f".part-1-a-0.{suffix}.inprogress"
    path.write_bytes(content)
    with path.open("rb") as living:
        assert claim(living)
        assert adopt_orphans(tmp_path) == ()
        assert path.exists()
    LandingWriter(tmp_path).write([_message(1)])
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("line", [b"5\n", b"{}\n", b"no JSON\n"])
def test_file_of_another_program_is_no_orphan(writer, tmp_path, line):
    path = tmp_path / "native" / "date=2026-11-21" / ".part-1-a-0.jsonl.inprogress"
    path.parent.mkdir(parents=True)
    path.write_bytes(line)
    writer.write([_message(1)])
    writer.finish()
    assert (path.read_bytes(), _offsets(tmp_path)) == (line, [1])


ADOPTING = """
import sys
from pathlib import Path
from otel_mqtrace.landing import LandedMessage, LandingWriter, adopt_orphans

landing, moment, format, armed, adopted = Path(sys.argv[1]), *sys.argv[2:], [True], []

def at_the_worst_moment(event, arguments):
    if event == moment and armed:
        armed.clear()
        adopted.extend(adopt_orphans(landing))
        assert moment == "os.rename" or not [*landing.glob("native/date=*/.part-*")]

sys.addaudithook(at_the_worst_moment)
with LandingWriter(landing, format=format) as writer:
    writer.write([LandedMessage(source="T", arrival_ms=1, body=b"abc")])
assert (armed, adopted) == ([], [])
assert len([*landing.glob("native/date=*/part-*")]) == 1
"""


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("moment", ["fcntl.flock", "os.rename"], ids=["removed before its lock", "being renamed"])
def test_part_is_finished_once_whenever_others_look_for_orphans(run_code, tmp_path, moment, suffix):
    run_code(ADOPTING, tmp_path, moment, suffix)
