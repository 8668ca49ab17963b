"""The files that a finished run leaves for people and programs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from spark_jobs.report.files import write_texts
from spark_jobs.report.junit import render_junit
from spark_jobs.report.markdown import render_summary
from spark_jobs.report.page import render_page
from spark_jobs.report.paths import shorten_paths
from spark_jobs.report.prometheus import render_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
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
"""File name → renderer; ``result.json`` comes last: when it exists, the others are complete."""

_FOR_READERS = ("report.html", "summary.md", "junit.xml")


def write_reports(
    result: Result, out: Path, page: PageOptions | None = None, *, sources: Iterable[str] = ()
) -> dict[str, Path]:
    """Write every report of ``result`` into ``out``, created if absent, and return where each one is.

    All are rendered before the first is written; each is written beside its place and renamed into it.

    Args:
        result: what the run found.
        out: the directory.
        page: the options of ``report.html``.
        sources: the user's arguments; what people read shows paths relative to them, ``result.json`` the paths read.

    Raises:
        UsageError: when ``out`` cannot be written.
    """
    renderers: dict[str, Callable[[Result], str]] = {**REPORTS, "report.html": partial(render_page, options=page)}
    readable = shorten_paths(result, sources)
    texts = {name: renderers[name](readable if name in _FOR_READERS else result) for name in REPORTS}
    return write_texts(texts, out)
