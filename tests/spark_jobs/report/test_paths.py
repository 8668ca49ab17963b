"""Paths in what people read: relative to the arguments of the run."""

import json
from dataclasses import replace

import pytest

from spark_jobs.report.paths import shorten_paths
from spark_jobs.report.render import write_reports
from spark_jobs.report.result import MalformedSample
from tests.support.results import result, sample, side_fields

BAD = MalformedSample(side="native", path="", line=7, record_index=0, field=None, reason="cut off", text="x")


def shortened(path, sources):
    (bad,) = shorten_paths(result(malformed=(replace(BAD, path=str(path)),)), sources).malformed
    return bad.path


@pytest.mark.parametrize(
    ("argument", "file", "shown"),
    [
        ("landing", "landing/date=1/part.parquet", "landing/date=1/part.parquet"),
        ("./landing/", "landing/date=1/part.parquet", "landing/date=1/part.parquet"),
        ("landing/part.jsonl", "landing/part.jsonl", "landing/part.jsonl"),
        ("otlp/*/t-[0-9].jsonl", "otlp/a/t-1.jsonl", "otlp/a/t-1.jsonl"),
        (".", "otlp/t.jsonl", "otlp/t.jsonl"),
        ("../run/otlp", "otlp/t.jsonl", "../run/otlp/t.jsonl"),
    ],
)
def test_a_path_begins_with_the_relative_argument_as_it_was_given(tmp_path, monkeypatch, argument, file, shown):
    here = tmp_path / "run"
    here.mkdir()
    monkeypatch.chdir(here)
    assert shortened(here / file, [argument]) == shown


def test_of_an_absolute_argument_the_last_part_remains(tmp_path):
    assert shortened(tmp_path / "landing" / "date=1" / "p", [str(tmp_path / "landing")]) == "landing/date=1/p"
    assert shortened(tmp_path / "landing" / "p", [f"file://{tmp_path}/landing/*"]) == "landing/p"
    assert shortened(tmp_path / "spans.jsonl", [str(tmp_path / "spans.jsonl")]) == "spans.jsonl"


def test_the_longest_argument_wins_and_a_path_of_none_keeps_two_parts(tmp_path):
    assert shortened(tmp_path / "a" / "b" / "p", [str(tmp_path / "a"), str(tmp_path / "a" / "b")]) == "b/p"
    assert shortened(tmp_path / "earlier" / "run" / "p", [str(tmp_path / "a")]) == "…/run/p"
    assert shortened(tmp_path / "ab" / "p", [str(tmp_path / "a")]) == "…/ab/p"


def test_addresses_stay_as_they_are():
    for address in ("kafka://localhost:9092/trace", "s3a://bucket/landing/p.parquet"):
        assert shortened(address, [address]) == address


def test_no_page_for_readers_shows_a_folder_of_the_machine(tmp_path):
    """``result.json`` keeps the paths that were read."""
    home = tmp_path / "home" / "alice"
    path = str(home / "landing" / "part.jsonl")
    made = result(malformed=(replace(BAD, path=path),), samples=(sample(1, native=side_fields(path=path)),))
    native = replace(made.inputs.native, sources=(path,))
    made = replace(made, inputs=replace(made.inputs, native=native))
    written = write_reports(made, tmp_path / "out", sources=[str(home / "landing")])
    for name in ("report.html", "summary.md", "junit.xml"):
        assert "alice" not in written[name].read_text()
    assert "landing/part.jsonl" in written["report.html"].read_text()
    assert json.loads(written["result.json"].read_text())["malformed"][0]["path"] == path
