"""This module knows what a terminal shows while Spark works: the stage of the run, and how many of its tasks are done.

Drawn on standard error, and only where that is a terminal. Spark is asked by a thread that ends with the block; over
Spark Connect, where nobody counts tasks, only the stage of the run is shown.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import TaskID

__all__ = ["Tasks", "active_tasks", "shown_progress"]

_EVERY_S: Final = 0.25


class Tasks(NamedTuple):
    """How many tasks the stages that run now have, and how many of them are done."""

    done: int
    known: int


@contextmanager
def shown_progress(
    *, console: Console | None = None, tasks: Callable[[], Tasks | None] | None = None
) -> Iterator[Callable[[str], None]]:
    """Show the run until the block ends; what is yielded is called with the name of each stage as it begins.

    Args:
        console: where to draw; standard error when absent.
        tasks: what Spark does now, ``None`` for nothing that can be counted; asks Spark itself when absent.
    """
    screen = console or Console(stderr=True)
    if not screen.is_terminal:
        yield _silent
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=screen, transient=True) as drawn:
        line = drawn.add_task("starting", total=None, told="")
        over = threading.Event()
        asking = threading.Thread(
            target=_follow, args=(drawn, line, over, tasks or active_tasks), name="mqtrace-progress", daemon=True
        )
        asking.start()
        try:
            yield lambda stage: drawn.update(line, description=stage)
        finally:
            over.set()
            asking.join()


def _silent(_stage: str) -> None:
    """Show nothing."""


def _follow(drawn: Progress, line: TaskID, over: threading.Event, tasks: Callable[[], Tasks | None]) -> None:
    while True:
        found = tasks()
        if found is None or not found.known:
            drawn.update(line, total=None, told="")
        else:
            drawn.update(line, total=found.known, completed=found.done, told=f"{found.done:,} of {found.known:,} tasks")
        if over.wait(_EVERY_S):
            return


def active_tasks() -> Tasks | None:
    """Return what the process's Spark does now; ``None`` where there is none, or none that counts."""
    pyspark = sys.modules.get("pyspark")  # importing it here would be the slowest thing about a progress bar
    context = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return None
    with suppress(Exception):  # the JVM may be starting, ending or gone: a progress bar is no place to say so
        tracker = context.statusTracker()
        running = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
        return Tasks(sum(info.numCompletedTasks for info in running), sum(info.numTasks for info in running))
    return None
