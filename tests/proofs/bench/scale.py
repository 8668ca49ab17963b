"""What a reconciliation of a whole day costs: wall time by stage, memory of the driver, the JVM and Python's workers, jobs.

``python -m tests.proofs.bench.scale DAY --out DIR`` runs the batch job on a day that ``tests.proofs.bench.trace_day`` wrote, holds what
it found against the truth written beside it (a fast run that finds something else must not look good), and prints one
JSON object. Numbers are of this machine at this moment.
"""

import argparse
import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from otel_mqtrace._clock import SystemClock
from spark_jobs.jobs.batch import ReconcileOptions, run

_PARTS = ("driver", "JVM", "daemon", "worker")
"""The processes of a run, each the child of the one before; Spark's daemon only starts workers."""
_LOOK_S = 2.0
_MEGABYTE = 1 << 20
_WORK = {
    "Executor task": "tasks",
    "C1 Compiler": "compilers",
    "C2 Compiler": "compilers",
    "GC Thread": "collector",
}
"""What a thread of the JVM works at, by the beginning of its name (Java 17's)."""


def measure(day: Path, out: Path, *, master: str, driver_memory: str) -> dict[str, object]:
    """Reconcile ``day`` and return what it cost; fail when the statuses are not those of its truth."""
    truth = json.loads((day / "truth.json").read_text())
    clock, seen = SystemClock(), list[tuple[str, int]]()
    options = ReconcileOptions(
        native=(str(day / "native"),),
        otlp=(str(day / "otlp"),),
        out=out,
        grace_ms=0,
        master=master,
        driver_memory=driver_memory,
    )
    with _watched() as used:
        result = run(options, progress=lambda stage: seen.append((stage, clock.monotonic_ns())))
    seen.append(("end", clock.monotonic_ns()))
    found = {name: count for name, count in result.status.items() if count}
    assert found == truth["status"], f"found {found}, the day holds {truth['status']}"
    assert result.conservation.holds, result.conservation
    stages = {stage: round((after - at) / 1e9, 1) for (stage, at), (_, after) in pairwise(seen)}
    return {
        "messages": truth["messages"],
        "hot": truth["hot"],
        "input_mib": sum(file.stat().st_size for file in day.rglob("*") if file.is_file()) // _MEGABYTE,
        "wall_seconds": result.spark.wall_seconds,
        "stages_seconds": stages,
        "jobs": result.spark.jobs,
        "stages": result.spark.stages,
        "processes": used,
        "load": os.getloadavg()[0],
    }


@contextmanager
def _watched() -> Iterator[dict[str, dict[str, Any]]]:
    """Keep what each process was last seen to have used: a worker that has nothing to do is gone a minute later."""
    used, over = _processes(), threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_S):
            used.update(_processes())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield used
    finally:
        over.set()
        watcher.join()
        used.update(_processes())


def _processes() -> dict[str, dict[str, Any]]:
    known = {int(path.name): _status(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    generation, found = {os.getpid()}, dict[str, dict[str, Any]]()
    for part in _PARTS:
        found |= {f"{part} {pid}": _used(pid, known[pid]) for pid in generation if "VmHWM" in known.get(pid, {})}
        generation = {pid for pid, status in known.items() if int(status.get("PPid", "0")) in generation}
    return found


def _used(pid: int, status: dict[str, str]) -> dict[str, Any]:
    process = Path(f"/proc/{pid}")
    work = dict.fromkeys(_WORK.values(), 0.0)
    for thread in process.glob("task/*"):
        name, seconds = _on_a_processor(thread)
        kind = next((kind for begin, kind in _WORK.items() if name.startswith(begin)), None)
        if kind is not None:
            work[kind] += seconds
    return {
        "most_resident_mib": int(status["VmHWM"].split()[0]) // 1024,
        "processor_seconds": round(_on_a_processor(process)[1], 1),
        "work_seconds": {kind: round(seconds, 1) for kind, seconds in work.items()},
    }


def _on_a_processor(entry: Path) -> tuple[str, float]:
    try:
        text = (entry / "stat").read_text()
    except OSError:  # gone meanwhile
        return "", 0.0
    name, _, counters = text.partition("(")[2].rpartition(")")
    return name, sum(map(int, counters.split()[11:13])) / os.sysconf("SC_CLK_TCK")


def _status(process: Path) -> dict[str, str]:
    try:
        lines = (process / "status").read_text().splitlines()
    except OSError:  # gone meanwhile
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def main() -> None:
    """Read the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("day", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--driver-memory", default="2g")
    chosen = parser.parse_args()
    cost = measure(
        chosen.day.absolute(), chosen.out.absolute(), master=chosen.master, driver_memory=chosen.driver_memory
    )
    sys.stdout.write(json.dumps(cost) + "\n")


if __name__ == "__main__":
    main()
