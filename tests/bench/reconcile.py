"""This module knows how fast ``mqtrace reconcile`` is from raw files, beside others who are given the same events parsed.

Every contender is a process of its own, with its start, on the same day with the same heap; what each found is held
against what the day was made to hold.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench.rivals import MASTER, MEMORY
from tests.bench.rows import Effort, Row, Target, beside, interleaved

__all__ = ["day_of", "measured", "said"]

ROOT = Path(__file__).resolve().parents[2]
_MESSAGES = 200_000
_RUN = "import sys; from otel_mqtrace.cli import main; sys.exit(main())"
_FROM = "ours from raw files, with verdicts and report; theirs from parsed parquet"
_JOBS = Target("≤", 12, "jobs")


def measured(effort: Effort) -> list[Row]:
    """Make a day, parse it for the others, and let the three take turns."""
    messages = effort.messages or _MESSAGES
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        truth = day_of(root / "day", messages)
        said("tests.bench.rivals", "prepare", root / "day", root / "tables")
        events, jobs = sum(truth.values()), dict[str, int]()
        contenders = {
            "ours": partial(_ours, root, truth, jobs),
            "datacompy": partial(_theirs, "datacompy", root, truth, jobs),
            "duckdb": partial(_theirs, "duckdb", root, truth, jobs),
        }
        took = interleaved(contenders, effort.rounds)
    speed = {name: [events / seconds for seconds in all_of] for name, all_of in took.items()}
    measure = f"reconcile, {events:,} events"
    wall = ", ".join(f"{name} {median(seconds):.1f} s" for name, seconds in took.items())
    spark, duck = "datacompy on Spark", "duckdb, full outer join"
    return [
        beside(
            measure, spark, speed["ours"], speed["datacompy"], "events/s", Target("≥", 3.0), f"{_FROM}; wall: {wall}"
        ),
        beside(measure, duck, speed["ours"], speed["duckdb"], "events/s", None, _FROM),
        Row("Spark jobs of a reconcile", spark, jobs["ours"], jobs["datacompy"], "jobs", _JOBS, "ours reads raw files"),
    ]


def day_of(folder: Path, messages: int) -> dict[str, int]:
    """Write a day of ``messages`` with known faults; return how many events of each status it holds."""
    said("tests.bench.trace_day", "--messages", messages, "--out", folder)
    truth: dict[str, int] = json.loads((folder / "truth.json").read_text())["status"]
    return truth


def said(module: str, *arguments: object) -> dict[str, Any]:
    """Run a module of ours and return the JSON object of its last line, if it printed one."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module} ended with {done.returncode}: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return found


def _ours(root: Path, truth: dict[str, int], jobs: dict[str, int]) -> float:
    """Return the seconds of the command, as a user types it."""
    out = root / "report"
    shutil.rmtree(out, ignore_errors=True)  # with its history: each round is a first run
    sides = ["--native", root / "day" / "native", "--otlp", root / "day" / "otlp", "--out", out]
    engine = ["--grace", "0", "--master", MASTER, "--driver-memory", MEMORY]
    command = [sys.executable, "-c", _RUN, "reconcile", *map(str, [*sides, *engine])]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    assert done.returncode in {0, 1}, f"reconcile ended with {done.returncode}: {done.stderr[-2000:]}"
    result = json.loads((out / "result.json").read_text())
    found = {name: count for name, count in result["status"].items() if count}
    assert found == truth, f"found {found}, the day holds {truth}"
    assert (out / "report.html").stat().st_size
    assert any((out / "verdicts").rglob("*.parquet"))
    jobs["ours"] = result["spark"]["jobs"]
    return seconds


def _theirs(name: str, root: Path, truth: dict[str, int], jobs: dict[str, int]) -> float:
    out = root / f"{name}.out"
    out.unlink(missing_ok=True)
    began = time.perf_counter()
    found = said("tests.bench.rivals", name, root / "tables", out)
    seconds = time.perf_counter() - began
    jobs[name] = found.pop("jobs", 0)
    copies = truth.get("DUPLICATED_OTLP", 0)  # to a join the second copy of a span is a span without a record
    held = {"native": truth["NATIVE_ONLY"], "otlp": truth["OTLP_ONLY"] + copies, "different": truth["MISMATCHED"]}
    assert found == held, f"{name} found {found}, the day holds {held}"
    return seconds
