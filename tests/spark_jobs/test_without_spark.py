"""Runs in a process of their own, without pyspark, py4j and pandas."""

import json
import os
from pathlib import Path

import pytest

from otel_mqtrace.cli import main
from tests.support.programs import run_python

DUAL = Path(__file__).parents[1] / "vectors" / "dual" / "app-4.9.8-dup"
WITHOUT = """
import runpy, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j", "pandas"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
runpy.run_module("spark_jobs", run_name="__main__")
"""
SIDES = ("--native", str(DUAL / "native.jsonl"), "--otlp", str(DUAL / "otlp.jsonl"))
JUDGED = ("--profile", "java-agent", "--native-writer", "rocketmq-4.9.8", "--grace", "0")


def run(*arguments):
    """Call ``python -m spark_jobs`` as a CI job does: without a terminal."""
    plain = {
        name: value for name, value in os.environ.items() if name not in {"COLUMNS", "FORCE_COLOR", "MQTRACE_DEBUG"}
    }
    return run_python(WITHOUT, *arguments, env=plain)


def test_recorded_application_is_reconciled_and_reported(tmp_path):
    done = run("reconcile", *SIDES, *JUDGED, "--out", tmp_path)
    chosen = "mqtrace: judged in this process (--engine local): pyspark is not installed"
    assert (done.returncode, done.stderr.splitlines()) == (0, [chosen]), done.stderr
    assert done.stdout.startswith("PASS: native trace against OTLP spans")
    assert len(done.stdout.splitlines()) > 20
    assert f"report.html: {tmp_path / 'report.html'}" in done.stdout
    assert not set(done.stdout) & set("\x1b│┃━─┏╭")
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["engine"], result["spark"], result["verdict"]) == ("local", None, "PASS")
    assert result["reason"] == {"BY_DESIGN": 16, "TRACE_TRAFFIC": 15}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"history", "verdicts", *("result.json", "report.html", "summary.md", "junit.xml", "metrics.prom")}


def test_graph_and_inspect_need_no_spark(tmp_path):
    assert run("graph", *SIDES, "--out", tmp_path).returncode == 0
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8"))["edges"]
    done = run("inspect", SIDES[1], SIDES[3], "--json")
    assert (done.returncode, json.loads(done.stdout)["items"]) == (0, 850), done.stderr


@pytest.mark.parametrize("option", [("--stream",), ("--master", "local[1]"), ("--conf", "spark.a=b")])
def test_local_engine_refuses_what_only_spark_has(tmp_path, option, capsys):
    assert main(["reconcile", *SIDES, "--out", str(tmp_path), "--engine", "local", *option]) == 2
    message = f"mqtrace: error: --engine local does not take {option[0]}: leave it out, or use --engine spark\n"
    assert capsys.readouterr().err == message
