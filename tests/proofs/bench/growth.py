"""Reconcile ten or fifty times as many events with the same heap: time, memory, Spark jobs."""

import tempfile
from pathlib import Path
from typing import Any

from tests.proofs.bench.reconcile import run_module, write_day
from tests.proofs.bench.rivals import MASTER, MEMORY
from tests.proofs.bench.rows import Effort, Row, Target


def measure_tenfold(effort: Effort) -> list[Row]:
    """Run ``effort.messages`` and ten times as many."""
    return _grown(effort, 10)


def measure_fiftyfold(effort: Effort) -> list[Row]:
    """Run ``effort.messages`` and fifty times as many: 20 GB of disk for 500,000."""
    return _grown(effort, 50)


def _grown(effort: Effort, times: int) -> list[Row]:
    messages = effort.messages
    small = _run(messages)
    large = _run(messages * times)
    events = f"{2 * messages:,} → {2 * messages * times:,} events"
    stages, of_small = (
        ", ".join(f"{stage} {seconds:g} s" for stage, seconds in cost["stages_seconds"].items())
        for cost in (large, small)
    )
    linear = f"{times} x the smaller run"
    driver, worker, java = (_most_mib(small, large, part) for part in ("driver", "worker", "JVM"))
    each, bound = (_us_an_event(cost) for cost in (large, small)), Target("≤", 1.1)
    return [
        Row(f"time, {events}", linear, large["wall_seconds"], times * small["wall_seconds"], "s", bound, stages),
        Row(
            "time per event after Spark has started",
            "the smaller run",
            *each,
            "µs an event",
            None,
            f"stages of the smaller run: {of_small}",
        ),
        Row("memory of Python's driver", "the smaller run", *driver, "MiB", bound),
        Row("most memory of a Python worker", "the smaller run", *worker, "MiB", bound),
        Row("memory of the JVM, executors and all", "the smaller run", *java, "MiB"),
        Row("Spark jobs", "the smaller run", large["jobs"], small["jobs"], "jobs", Target("≤", 1.0)),
    ]


def _run(messages: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        day, out = Path(folder) / "day", Path(folder) / "report"
        write_day(day, messages, "--zstd")
        cost = run_module("tests.proofs.bench.scale", day, "--out", out, "--master", MASTER, "--driver-memory", MEMORY)
    assert cost["messages"] == messages
    return cost


def _us_an_event(cost: dict[str, Any]) -> float:
    _start, *others = cost["stages_seconds"].values()
    return sum(others) * 1e6 / (2 * int(cost["messages"]))


def _most_mib(small: dict[str, Any], large: dict[str, Any], part: str) -> tuple[float, float]:
    of_large, of_small = (max(used["most_resident_mib"] for used in _of(cost, part)) for cost in (large, small))
    return of_large, of_small


def _of(cost: dict[str, Any], part: str) -> list[dict[str, Any]]:
    used_by_part = [used for name, used in cost["processes"].items() if name.startswith(part)]
    assert used_by_part, f"no {part} was seen"
    return used_by_part
