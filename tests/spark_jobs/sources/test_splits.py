"""Files are cut into splits at any byte, and every line is read once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.otlp.detect import Layout, Side
from otel_mqtrace._errors import UnreadableInputError
from spark_jobs.sources import splits
from spark_jobs.sources.files import SourceFile
from spark_jobs.sources.splits import group_splits, line_numbers, plan_files, read_lines, split_file

MESSAGE = json.dumps({"resourceSpans": []}).encode()


def file_of(path, content, layout=Layout.JSON_LINES):
    path.write_bytes(content)
    return SourceFile(path, layout, Side.OTLP)


def texts_of(file, **options):
    return [line.text for split in split_file(file, **options) for line in read_lines(split)]


TEXTS = st.lists(st.binary(max_size=6).map(lambda text: text.replace(b"\n", b"")), max_size=9)


@given(TEXTS, st.integers(1, 20), st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_line_is_read_once_wherever_a_file_is_cut(tmp_path_factory, texts, size, mark):
    """A byte order mark before the first is none of it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(splits, "UNCUT_BYTES", 0)
        patched.setattr(splits, "_LEAST_TASK_BYTES", size)
        file = file_of(tmp_path_factory.mktemp("cut") / "x", mark + b"\n".join([b"first", *texts]))
        assert texts_of(file) == [text for text in (b"first", *texts) if text.strip()]


def test_lines_have_numbers_in_a_file_that_one_task_reads(tmp_path, monkeypatch):
    file = file_of(tmp_path / "x", b"\xef\xbb\xbfa\r\n\n \nb\xff\n\x00")
    (split,) = split_file(file)
    assert [(line.number, line.text) for line in read_lines(split)] == [(1, b"a\r"), (4, b"b\xff"), (5, b"\x00")]
    monkeypatch.setattr(splits, "UNCUT_BYTES", 3)
    assert {line.number for split in split_file(file) for line in read_lines(split)} == {None}


@pytest.mark.parametrize(
    ("tail", "is_torn"),
    [(b"", False), (b"  ", False), (MESSAGE, False), (MESSAGE[:-1], True), (b"\xff{", True)],
)
def test_last_line_without_end_is_read_if_whole(tmp_path, tail, is_torn):
    file = file_of(tmp_path / "x", MESSAGE + b"\n" + tail)
    splits = plan_files([file], lambda line: line == MESSAGE, parallelism=1)
    assert splits.truncated_tails == is_torn
    expected = [MESSAGE, tail] if tail == MESSAGE else [MESSAGE]
    assert [line.text for task in splits.tasks for split in task for line in read_lines(split)] == expected


def test_small_files_share_a_task_and_no_other_layout_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(splits, "_LEAST_TASK_BYTES", 100)
    monkeypatch.setattr(splits, "_MOST_TASK_BYTES", 100)
    monkeypatch.setattr(splits, "UNCUT_BYTES", 150)
    small = [file_of(tmp_path / str(number), b"x" * 30) for number in range(10)]
    large = file_of(tmp_path / "large", b"x" * 250)
    packed = file_of(tmp_path / "packed", b"x" * 250, Layout.PROTO_FRAMED)
    known = [split for file in (*small, large, packed) for split in split_file(file)]
    assert [(split.begin, split.end) for split in known[10:]] == [(0, 100), (100, 200), (200, 250), (0, 250)]
    tasks = group_splits(known, parallelism=1)
    assert [len(task) for task in tasks] == [4, 3, 3, 1, 1, 2]
    assert [split for task in tasks for split in task] == known


def test_too_long_line_is_refused_in_the_executor(tmp_path, monkeypatch):
    """Behind the first one, which is looked at before Spark starts."""
    monkeypatch.setattr(splits, "LONGEST_LINE_BYTES", 1000)
    (split,) = split_file(file_of(tmp_path / "x.jsonl", b"{}\n" + b"x" * 1001 + b"\n"))
    with pytest.raises(UnreadableInputError, match=r"x\.jsonl has a line of more than"):
        list(read_lines(split))


@pytest.fixture
def path(tmp_path):
    """Six lines: one begins like another, one holds U+2028 and a carriage return, one is no UTF-8."""
    written = tmp_path / "traces.jsonl"
    written.write_bytes("first\nsecond one\nsecond two\n\u2028 odd\rline\n".encode() + b"\xff\xfe bytes\nlast")
    return written


@pytest.mark.parametrize(
    ("begin", "numbers"),
    [
        ("first", [1]),
        ("second", [2, 3]),
        ("second two", [3]),
        ("\u2028 odd", [4]),
        ("\ufffd\ufffd bytes", [5]),
        ("last", [6]),
        ("nowhere", []),
    ],
)
def test_line_is_found_by_its_beginning(path, begin, numbers):
    """Numbers count U+000A only, as the reader does."""
    assert line_numbers(path, {begin}) == {begin: numbers}
    assert line_numbers(path, {begin, "last"})[begin] == numbers
    assert line_numbers(path.with_name("elsewhere"), {begin}) == {begin: []}
