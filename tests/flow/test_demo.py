"""The whole flow in one run: instrumented orders, two exporters, forwarder, Spark, and every seeded fault found."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

from otel_mqtrace.cli import main
from tests.support.programs import run_program
from tests.support.source_tree import ROOT

MESSAGES = 500
QUICKSTART = ("--messages", str(MESSAGES), "--seed", "7", "--out", "mqtrace-demo")


# What a shell may hold for some application: none of it is meant for the demo.
ENVIRONMENT = {**os.environ, "MQTRACE_ENABLED": "false", "MQTRACE_TOPIC_EXCLUDE": "*", "OTEL_SDK_DISABLED": "true"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo")
    if sys.version_info >= (3, 11):  # before, Python puts the working directory first on the path of Spark's workers
        (directory / "spark_jobs.py").write_text("raise ImportError('of others')")
    done = run_program(Path(sys.executable).with_name("mqtrace"), "demo", *QUICKSTART, cwd=directory, env=ENVIRONMENT)
    return done, directory / "mqtrace-demo"


def test_command_is_the_one_of_the_quickstart():
    """Which its reader starts; the documents' own test reads its options only."""
    lines = (ROOT / "docs" / "quickstart.md").read_text("utf-8").splitlines()
    assert " ".join(("mqtrace demo", *QUICKSTART)) in lines


@pytest.mark.spark
def test_every_seeded_fault_is_found_and_nothing_else(run):
    done, out = run
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stderr.splitlines() if not line.startswith("mqtrace demo: ")] == []
    assert "every seeded fault was found, and nothing else" in done.stdout
    assert str(out.relative_to(out.parent) / "report" / "report.html") in done.stdout
    assert "✗" not in done.stdout
    rows = re.findall(r"(\d+)  +(\d+) ✓", done.stdout)
    *faults, (clean, _), surprises = rows
    assert all(seeded == found for seeded, found in rows)
    assert (sum(int(seeded) for seeded, _ in faults), surprises) == (27, ("0", "0"))
    assert int(clean) > 2 * MESSAGES


@pytest.mark.spark
def test_report_is_written_to_the_named_directory(run):
    _, out = run
    names = {path.name for path in (out / "report").iterdir()}
    assert {"result.json", "report.html", "summary.md", "junit.xml", "metrics.prom", "verdicts"} <= names
    assert list((out / "landing").rglob("part-*.parquet"))
    assert (out / "otlp" / "traces.jsonl").stat().st_size > 0
    assert "The demo seeded faults in this run" in (out / "report" / "report.html").read_text(encoding="utf-8")
    result = json.loads((out / "report" / "result.json").read_text(encoding="utf-8"))
    assert (result["verdict"], result["conservation"]["holds"]) == ("FAIL", True)


@pytest.mark.parametrize(("messages", "message"), [("100", "--out"), ("99", "or equal to 100")])
def test_foreign_directory_or_too_few_messages_is_one_line_and_exit_2(tmp_path, capsys, messages, message):
    (tmp_path / "thesis.txt").write_text("mine")
    assert main(["demo", "--out", str(tmp_path), "--messages", messages]) == 2
    err = capsys.readouterr().err
    assert err.startswith("mqtrace: error: ")
    assert (message in err, err.count("\n")) == (True, 1)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]
