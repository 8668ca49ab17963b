"""This module knows how a run ends: what it cost and the trend it ends are told, then the history remembers it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_jobs.jobs.run_line import TREND_RUNS, run_line, trend_point

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_jobs.jobs.workplace import Workplace
    from spark_jobs.report.result import Result

__all__ = ["concluded"]


def concluded(place: Workplace, result: Result, report: Callable[[Result], object]) -> Result:
    """Add what the run cost and the trend it ends, have it reported, and let the history remember it."""
    result = replace(result, spark=place.cost(), run=place.past.run)
    line = run_line(result, run=place.past.run or 1, wall_ns=place.clock.wall_ns())
    if place.past.run is not None:
        result = replace(result, trend=tuple(map(trend_point, (*place.past.runs, line)[-TREND_RUNS:])))
    report(result)
    place.past.commit(line)
    return result
