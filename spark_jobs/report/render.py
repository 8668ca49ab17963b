"""This module knows which files a finished run leaves for people and programs, and that none is seen half written."""

from __future__ import annotations

import os
from contextlib import suppress
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from otel_mqtrace._errors import UsageError
from spark_jobs.report.junit import render_junit
from spark_jobs.report.markdown import render_summary
from spark_jobs.report.page import render_page
from spark_jobs.report.prometheus import render_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from spark_jobs.report.result import Result

__all__ = ["REPORTS", "write_reports", "write_texts"]

REPORTS: dict[str, Callable[[Result], str]] = {
    "report.html": render_page,
    "summary.md": render_summary,
    "junit.xml": render_junit,
    "metrics.prom": render_metrics,
    "result.json": lambda result: result.dumps(),
}
"""File name → renderer; ``result.json`` comes last, so that whoever waits for it finds the others complete."""


def write_reports(result: Result, out: Path) -> dict[str, Path]:
    """Write every report of ``result`` into ``out``, created if absent, and return where each one is.

    All are rendered before the first is written; each is written beside its place and renamed into it.

    Raises:
        UsageError: when ``out`` cannot be written.
    """
    return write_texts({name: render(result) for name, render in REPORTS.items()}, out)


def write_texts(texts: Mapping[str, str], out: Path) -> dict[str, Path]:
    """Write ``{file name: text}`` into ``out``, created if absent, in this order, and return where each one is.

    Raises:
        UsageError: when ``out`` cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        return {name: _replace(out / name, text) for name, text in texts.items()}
    except OSError as refused:
        raise UsageError(f"cannot write the report into {out}: {refused.strerror}; choose another --out") from refused


def _replace(path: Path, text: str) -> Path:
    """Write ``text`` as UTF-8; half a surrogate pair, which no encoding can say, is spelled out as its escape."""
    with NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as beside:
        try:
            beside.write(text.encode("utf-8", "backslashreplace"))
            beside.flush()
            os.fchmod(beside.fileno(), 0o644)
            os.replace(beside.name, path)  # noqa: PTH105 - a name, not a Path
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside.name)  # noqa: PTH108 - a name, not a Path
            raise
    return path
