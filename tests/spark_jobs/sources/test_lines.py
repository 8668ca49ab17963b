"""Where a line stands in a file, looked up for the few that a report shows."""

from __future__ import annotations

import pytest

from spark_jobs.sources.lines import line_numbers


@pytest.fixture
def path(tmp_path):
    """Six lines: one begins like another, one holds U+2028 and a carriage return, one is no UTF-8."""
    written = tmp_path / "traces.jsonl"
    written.write_bytes("first\nsecond one\nsecond two\n\u2028 odd\rline\n".encode() + b"\xff\xfe bytes\nlast")
    return written


def test_a_line_is_found_by_how_it_begins(path):
    """Numbers count U+000A only, as the reader does; beginnings may be of any length."""
    found = line_numbers(path, {"first", "\u2028 odd", "last", "nowhere"})
    assert found == {"first": [1], "\u2028 odd": [4], "last": [6], "nowhere": []}


def test_lines_that_begin_alike_are_all_named(path):
    """Who asks can tell that the text does not decide."""
    assert line_numbers(path, {"second", "second two"}) == {"second": [2, 3], "second two": [3]}


def test_bytes_that_are_no_text_do_not_hide_the_lines_behind_them(path):
    """They read as replacement characters, as in the report."""
    assert line_numbers(path, {"\ufffd\ufffd bytes"}) == {"\ufffd\ufffd bytes": [5]}


def test_what_is_no_local_file_has_no_lines(tmp_path):
    """A path on a cluster's file system is left without a number."""
    assert line_numbers(tmp_path / "elsewhere", {"x"}) == {"x": []}
