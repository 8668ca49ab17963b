"""This module knows how a run tells that it is alive: bars on a terminal, one short line per stage anywhere else."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

__all__ = ["LineStages", "Stages", "TerminalStages", "stages_on_stderr"]


class Stages(Protocol):
    """Somebody who is told about stages as they happen."""

    def stage(self, title: str, total: int | None = None) -> AbstractContextManager[Callable[[int], None]]:
        """Begin a stage of ``total`` steps (``None``: nobody knows) and yield a function that advances it."""
        ...


class LineStages:
    """One line on standard error when a stage begins."""

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Write the line; steps are not shown."""
        count = "" if total is None else f" ({total})"
        sys.stderr.write(f"mqtrace demo: {title}{count}\n")
        sys.stderr.flush()
        yield lambda _steps: None


class TerminalStages:
    """A bar, or a spinner where the end is unknown, and the time it took."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Show the bar until the block ends."""
        measured = () if total is None else (BarColumn(), MofNCompleteColumn())
        columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), *measured, TimeElapsedColumn())
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(title, total=total)
            yield lambda steps: progress.advance(task, steps)
            progress.update(task, total=total or 1, completed=total or 1)


def stages_on_stderr() -> Stages:
    """Return bars when standard error is a terminal, lines otherwise."""
    return TerminalStages() if sys.stderr.isatty() else LineStages()
