"""One line of ``runs.jsonl`` for each run, and the points of the report's trend that are made of them."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.report.headline import matched
from spark_jobs.taxonomy import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.report.result import Result, SideInputs

__all__ = ["TREND_RUNS", "summarise_run", "trend_points"]

TREND_RUNS: Final = 30
"""How many runs a trend shows, this one included."""

_NS_PER_MS: Final = 1_000_000
_SHOWN: Final = ("run", "time", "verdict", "exit_code", "match_rate", "unexplained", "lifecycle")


def summarise_run(result: Result, *, run: int, wall_ns: int) -> dict[str, Any]:
    """Return what ``runs.jsonl`` keeps of a run.

    Args:
        result: what the run came to.
        run: its number, from 1.
        wall_ns: when it ended, nanoseconds since 1970; the only clock in a history.
    """
    instant = datetime.fromtimestamp(wall_ns // _NS_PER_MS / 1000, timezone.utc)
    return {
        "run": run,
        "time": instant.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "version": result.versions.get("otel-mqtrace"),
        "policy": result.policy_hash,
        "profile": result.writers.profile,
        "native_writer": result.writers.native_writer,
        "window": asdict(result.window),
        "horizon": result.horizon_ms,
        "inputs": {"native": _books(result.inputs.native), "otlp": _books(result.inputs.otlp)},
        "verdict": result.verdict,
        "exit_code": result.exit_code,
        "conservation": result.conservation.holds,
        "match_rate": matched(result).rate,
        "status": dict(result.status),
        "reason": dict(result.reason),
        "gates": {gate.name: {"value": gate.value, "outcome": gate.outcome} for gate in result.gates},
        "unexplained": {side: loss.unexplained for side, loss in result.loss.items()},
        "lifecycle": dict(result.lifecycle),
        "open_break_age": dict(result.open_break_age),
    }


def trend_points(lines: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return what a trend shows of the last ``TREND_RUNS`` lines of ``runs.jsonl``."""
    return tuple(map(_trend_point, lines[-TREND_RUNS:]))


def _trend_point(line: dict[str, Any]) -> dict[str, Any]:
    shown = {name: line.get(name) for name in _SHOWN}
    shown["pending"] = line.get("status", {}).get(Status.PENDING.value, 0)
    shown["records_read"] = {side: books.get("records_read") for side, books in line.get("inputs", {}).items()}
    return shown


def _books(side: SideInputs) -> dict[str, Any]:
    plain = asdict(side)
    return {"files": len(plain.pop("sources")), **{name: value for name, value in plain.items() if name != "layouts"}}
