"""This module knows which files a finished run leaves for people and programs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spark_jobs.report.files import write_texts
from spark_jobs.report.junit import render_junit
from spark_jobs.report.markdown import render_summary
from spark_jobs.report.page import render_page
from spark_jobs.report.prometheus import render_metrics

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from spark_jobs.report.page import PageOptions
    from spark_jobs.report.result import Result

__all__ = ["REPORTS", "write_reports"]

REPORTS: dict[str, Callable[[Result], str]] = {
    "report.html": render_page,
    "summary.md": render_summary,
    "junit.xml": render_junit,
    "metrics.prom": render_metrics,
    "result.json": lambda result: result.dumps(),
}
"""File name → renderer; ``result.json`` comes last, so that whoever waits for it finds the others complete."""


def write_reports(result: Result, out: Path, page: PageOptions | None = None) -> dict[str, Path]:
    """Write every report of ``result`` into ``out``, created if absent, and return where each one is.

    ``page`` are the options of ``report.html``.

    All are rendered before the first is written; each is written beside its place and renamed into it.

    Raises:
        UsageError: when ``out`` cannot be written.
    """
    renderers: dict[str, Callable[[Result], str]] = {**REPORTS, "report.html": partial(render_page, options=page)}
    return write_texts({name: renderers[name](result) for name in REPORTS}, out)
