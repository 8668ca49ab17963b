"""The speed of a reconciliation, compared with datacompy and DuckDB on parsed tables.

Every contender is a process of its own; what it finds must equal what the day was generated to contain.
"""

import compileall
import json
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.proofs.bench.rivals import MASTER, MEMORY
from tests.proofs.bench.rows import Effort, Row, Target, compare, run_in_turns
from tests.support.source_tree import ROOT

_RUN = "import sys; from otel_mqtrace._program import start; sys.exit(start())"  # what the program mqtrace runs
_SPARK, _DUCK = "datacompy on Spark", "duckdb, full outer join"
_FAST = {
    "from raw files, Spark": Target("≥", 1.5),
    "from raw files, one process": Target("≥", 8.0),
    "from normalised parquet, Spark": None,
    "from normalised parquet, one process": None,
}
_NEAR = {"from normalised parquet, one process": Target("≥", 1 / 3)}
_SECONDS = {"from raw files, Spark": Target("≤", 20, "s"), "from raw files, one process": Target("≤", 4, "s")}
"""For 100,000 events, the section's own size."""
_FEW = Target("≤", 6, "jobs")


def measure(effort: Effort) -> list[Row]:
    """Generate a day, parse it for the contenders that start from tables, and run all in turns."""
    messages = effort.messages
    for package in ("otel_mqtrace", "bridge", "spark_jobs", "tests"):
        compileall.compile_dir(ROOT / package, quiet=1)  # as an installation does
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        truth = write_day(root / "day", messages)
        run_module("tests.proofs.bench.rivals", "prepare", root / "day", root / "tables")
        run_module("tests.proofs.bench.from_parquet", "prepare", root / "day", root / "events")
        events, jobs = sum(truth.values()), dict[str, int]()
        raw_spark, raw_local, parsed_spark, parsed_local = _FAST
        contenders = {
            raw_spark: partial(_from_raw, "spark", root, truth, jobs),
            raw_local: partial(_from_raw, "local", root, truth, jobs),
            parsed_spark: partial(_from_parquet, "spark", root, truth, jobs),
            parsed_local: partial(_from_parquet, "local", root, truth, jobs),
            "datacompy": partial(_theirs, "datacompy", root, truth, jobs),
            "duckdb": partial(_theirs, "duckdb", root, truth, jobs),
        }
        took = run_in_turns(contenders, effort.rounds)
    speed = {name: [events / seconds for seconds in all_of] for name, all_of in took.items()}
    rows = []
    for start, fast in _FAST.items():
        measure = f"reconcile {start}, {events:,} events"
        rows += [
            compare(measure, _SPARK, speed[start], speed["datacompy"], "events/s", fast),
            compare(measure, _DUCK, speed[start], speed["duckdb"], "events/s", _NEAR.get(start)),
        ]
    limits = _SECONDS if events == 100_000 else {}
    rows += [
        compare(f"wall time {name}, {events:,} events", "none", seconds, None, "s", limits.get(name))
        for name, seconds in took.items()
    ]
    rows.append(Row("Spark jobs of a reconcile from raw files", _SPARK, jobs["spark"], jobs["datacompy"], "jobs", _FEW))
    return rows


def write_day(folder: Path, messages: int, *options: str) -> dict[str, int]:
    """Write a day of ``messages`` with known faults; return how many events of each status it holds."""
    run_module("tests.proofs.bench.trace_day", "--messages", messages, "--out", folder, *options)
    truth: dict[str, int] = json.loads((folder / "truth.json").read_text())["status"]
    return truth


def run_module(module: str, *arguments: object) -> dict[str, Any]:
    """Run a module of ours and return the JSON object of its last line, if it printed one."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module} ended with {done.returncode}: {done.stderr[-2000:]}"
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return result


def _from_raw(engine: str, root: Path, truth: dict[str, int], jobs: dict[str, int]) -> float:
    out = _emptied(root / "report")
    sides = ["--native", root / "day" / "native", "--otlp", root / "day" / "otlp", "--out", out]
    where = ["--master", MASTER, "--driver-memory", MEMORY] if engine == "spark" else []
    command = [sys.executable, "-c", _RUN, "reconcile", *map(str, [*sides, "--grace", "0", "--engine", engine, *where])]
    began = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    assert done.returncode in {0, 1}, f"reconcile ended with {done.returncode}: {done.stderr[-2000:]}"
    result = json.loads((out / "result.json").read_text())
    _check(out, result["status"], truth)
    jobs[engine] = result["spark"]["jobs"] if result["spark"] else 0
    return seconds


def _from_parquet(engine: str, root: Path, truth: dict[str, int], jobs: dict[str, int]) -> float:
    del jobs  # those of a run from raw files are the ones with a target
    out = _emptied(root / "parsed")
    out.mkdir()
    began = time.perf_counter()
    result = run_module("tests.proofs.bench.from_parquet", engine, root / "events", out)
    seconds = time.perf_counter() - began
    assert result["holds"], "the counts do not balance"
    _check(out, result["status"], truth)
    return seconds


def _emptied(out: Path) -> Path:
    shutil.rmtree(out, ignore_errors=True)  # with its history: each round is a first run
    return out


def _check(out: Path, status: dict[str, int], truth: dict[str, int]) -> None:
    counts = {name: count for name, count in status.items() if count}
    assert counts == truth, f"found {counts}, the day holds {truth}"
    assert (out / "report.html").stat().st_size
    assert any((out / "verdicts").rglob("*.parquet"))


def _theirs(name: str, root: Path, truth: dict[str, int], jobs: dict[str, int]) -> float:
    out = root / f"{name}.out"
    out.unlink(missing_ok=True)
    began = time.perf_counter()
    result = run_module("tests.proofs.bench.rivals", name, root / "tables", out)
    seconds = time.perf_counter() - began
    jobs[name] = result.pop("jobs", 0)
    copies = truth.get("DUPLICATED_OTLP", 0)  # to a join the second copy of a span is a span without a record
    held = {"native": truth["NATIVE_ONLY"], "otlp": truth["OTLP_ONLY"] + copies, "different": truth["MISMATCHED"]}
    assert result == held, f"{name} found {result}, the day holds {held}"
    return seconds
