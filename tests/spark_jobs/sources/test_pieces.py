"""What a task reads: every line of every file once, wherever files are cut, and none that was cut off."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.otlp.detect import Layout, Side
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.sources import pieces
from spark_jobs.sources.files import SourceFile
from spark_jobs.sources.pieces import lines_of, pieces_of, tasks_of, torn_bytes

MESSAGE = json.dumps({"resourceSpans": []}).encode()


def file_of(path, content, layout=Layout.JSON_LINES):
    path.write_bytes(content)
    return SourceFile(path, layout, Side.OTLP)


def texts_of(file, **options):
    return [line.text for piece in pieces_of(file, **options) for line in lines_of(piece)]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=6).map(lambda text: text.replace(b"\n", b"")), max_size=9), st.integers(1, 20))
def test_every_line_is_read_once_wherever_a_file_is_cut(tmp_path_factory, texts, size):
    """A range owns the lines that begin in it, to their end; blank ones are nothing."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces, "WHOLE_BYTES", 0)
        patched.setattr(pieces, "_LEAST_TASK_BYTES", size)
        file = file_of(tmp_path_factory.mktemp("cut") / "x", b"\n".join([b"first", *texts]))
        assert texts_of(file) == [text for text in (b"first", *texts) if text.strip()]


def test_lines_have_numbers_in_a_file_that_one_task_reads(tmp_path, monkeypatch):
    """Blank lines count; in ranges nobody knows how many lines came before."""
    file = file_of(tmp_path / "x", b"\xef\xbb\xbfa\r\n\n \nb\xff\n\x00")
    (piece,) = pieces_of(file)
    assert [(line.number, line.text) for line in lines_of(piece)] == [(1, b"a\r"), (4, b"b\xff"), (5, b"\x00")]
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 3)
    assert {line.number for piece in pieces_of(file) for line in lines_of(piece)} == {None}


@pytest.mark.parametrize(
    ("tail", "is_torn"),
    [(b"", False), (b"  ", False), (MESSAGE, False), (MESSAGE[:-1], True), (b"\xff{", True)],
)
def test_a_line_that_the_file_ends_inside_of_is_read_by_nobody(tmp_path, tail, is_torn):
    """A last line without an end is none only when it is no whole message."""
    file = file_of(tmp_path / "x", MESSAGE + b"\n" + tail)
    torn = torn_bytes([file])
    assert torn == ({file.path: len(tail)} if is_torn else {})
    expected = [MESSAGE, tail] if tail == MESSAGE else [MESSAGE]
    assert texts_of(file, torn=torn.get(file.path, 0)) == expected


def test_small_files_share_a_task_and_no_other_layout_is_cut(tmp_path, monkeypatch):
    """Many thousands of files are not as many tasks; order is kept."""
    monkeypatch.setattr(pieces, "_LEAST_TASK_BYTES", 100)
    monkeypatch.setattr(pieces, "_MOST_TASK_BYTES", 100)
    monkeypatch.setattr(pieces, "WHOLE_BYTES", 150)
    small = [file_of(tmp_path / str(number), b"x" * 30) for number in range(10)]
    large = file_of(tmp_path / "large", b"x" * 250)
    packed = file_of(tmp_path / "packed", b"x" * 250, Layout.PROTO_FRAMED)
    known = [piece for file in (*small, large, packed) for piece in pieces_of(file)]
    assert [(piece.begin, piece.end) for piece in known[10:]] == [(0, 100), (100, 200), (200, 250), (0, 250)]
    tasks = tasks_of(known, parallelism=1)
    assert [len(task) for task in tasks] == [4, 3, 3, 1, 1, 2]
    assert [piece for task in tasks for piece in task] == known


def test_a_line_longer_than_memory_should_hold_is_refused_in_the_executor(tmp_path, monkeypatch):
    """Behind the first one, which is looked at before Spark starts."""
    monkeypatch.setattr(pieces, "LONGEST_LINE_BYTES", 1000)
    (piece,) = pieces_of(file_of(tmp_path / "x.jsonl", b"{}\n" + b"x" * 1001 + b"\n"))
    with pytest.raises(UnreadableInputError, match=r"x\.jsonl has a line of more than"):
        list(lines_of(piece))
