"""`mqtrace graph` refuses what is wrong before it reads anything, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from otel_mqtrace.cli import main

SPANS = str(Path(__file__).parents[1] / "vectors" / "dual" / "app-4.9.8-dup" / "otlp.jsonl")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--out", "o"], "give --native SRC, --otlp SRC, or both"),
        (["--otlp", SPANS], "--out"),
        (["--otlp", SPANS, "--out", "o", "--format", "png"], "--format 'png' is unknown"),
        (["--otlp", SPANS, "--out", "o", "--begin", "5", "--end", "4"], "--begin is later than --end"),
        (["--otlp", SPANS, "--out", "o", "--grace", "soon"], "--grace: invalid duration 'soon'"),
        (["--otlp", "gone", "--out", "o"], "no such file, directory or match: gone"),
        (["--native", SPANS, "--out", "o"], "not native"),
        (["--otlp", SPANS, "--out", "taken"], "cannot create --out taken"),
        (["--otlp", SPANS, "--out", ""], "--out is empty"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(capsys, monkeypatch, tmp_path, arguments, said):
    monkeypatch.chdir(tmp_path)
    Path("taken").write_text("a file")
    assert main(["graph", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("mqtrace: error: ")
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert captured.out == ""
    assert not Path("o").exists()
