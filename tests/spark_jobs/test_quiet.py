"""A whole run in a process of its own, as a CI job starts it: what is said where nobody looks at a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DUAL = Path(__file__).parents[1] / "vectors" / "dual" / "app-4.9.8-dup"
AGENT = ["--profile", "java-agent", "--native-writer", "rocketmq-4.9.8", "--grace", "0"]


@pytest.mark.spark
def test_a_normal_run_says_nothing_on_standard_error(tmp_path):
    sides = ["--native", DUAL / "native.jsonl", "--otlp", DUAL / "otlp.jsonl"]
    command = [sys.executable, "-m", "spark_jobs", "reconcile", *sides, "--out", tmp_path / "out", *AGENT]
    plain = {
        name: value for name, value in os.environ.items() if name not in {"COLUMNS", "FORCE_COLOR", "MQTRACE_DEBUG"}
    }
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=plain)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert done.stderr == ""
    assert done.returncode == result["exit_code"]
    assert done.stdout.startswith(f"{result['verdict']}: native trace against OTLP spans")
    assert "\x1b" not in done.stdout
    assert not set(done.stdout) & set("│┃━─┏╭")
    assert len(done.stdout.splitlines()) > 20
