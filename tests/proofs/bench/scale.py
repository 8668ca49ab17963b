"""What a reconciliation of a whole day costs: wall time by stage, memory of the driver, the JVM and Python's workers, jobs.

``python -m tests.proofs.bench.scale DAY --out DIR`` runs the batch job on a day that ``tests.proofs.bench.trace_day`` wrote, compares
it with the truth beside it, and prints one JSON object.
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
from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions

_PARTS = ("driver", "JVM", "daemon", "worker")
"""The processes of a run, each the child of the one before; Spark's daemon only starts workers."""
_LOOK_S = 2.0
_MEGABYTE = 1 << 20


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
    counts = {name: count for name, count in result.status.items() if count}
    assert counts == truth["status"], f"found {counts}, the day holds {truth['status']}"
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
    generation, usage = {os.getpid()}, dict[str, dict[str, Any]]()
    for part in _PARTS:
        usage |= {f"{part} {pid}": _used(pid, known[pid]) for pid in generation if "VmHWM" in known.get(pid, {})}
        generation = {pid for pid, status in known.items() if int(status.get("PPid", "0")) in generation}
    return usage


def _used(pid: int, status: dict[str, str]) -> dict[str, Any]:
    try:
        counters = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:  # gone meanwhile
        counters = []
    return {
        "most_resident_mib": int(status["VmHWM"].split()[0]) // 1024,
        "processor_seconds": round(sum(map(int, counters)) / os.sysconf("SC_CLK_TCK"), 1),
    }


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
