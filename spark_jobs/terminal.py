"""The terminal: progress while a run works, and its summary at the end."""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bridge.page.wording import plural
from bridge.page.wording import visible as spell_out
from otel_mqtrace._terminal import open_console, print_table, progress_bar
from spark_jobs.report.headline import describe_carried, describe_loss
from spark_jobs.report.wording import count, duration, percent, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from bridge.storage.paths import AnyPath
    from spark_jobs.report.result import Result

_STYLES: Final = {
    "PASS": "bold green",
    "WARN": "bold yellow",
    "FAIL": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "pass": "green",
    "warn": "yellow",
    "fail": "bold red",
    "inconclusive": "yellow",
}
_MOST_GROUPS: Final = 10
_NARROWEST: Final = 60
"""The columns that the widest table needs: in fewer its names vanish."""


def print_summary(result: Result, written: dict[str, AnyPath], *, console: Console | None = None) -> None:
    """Print verdict, losses, counts, gates and the place of the report; colours only on a terminal that has them."""
    screen = console or open_console()
    headline = Text.assemble((result.verdict, _STYLES.get(result.verdict, "")), ": native trace against OTLP spans")
    screen.print(headline, soft_wrap=True)
    for sentence in _sentences(result):
        screen.print(Text(sentence), soft_wrap=True)
    reasons = [_counts("reason", result.reason, title="reasons")] if result.reason else []
    groups = [_groups(result)] if result.groups else []
    for table in (_counts("status", result.status), *reasons, *groups, _gates(result)):
        print_table(table, screen, narrowest=_NARROWEST)
    if not result.conservation.holds:
        screen.print(Text(f"the counts do not balance: native {result.conservation.native}"), soft_wrap=True)
        screen.print(Text(f"                           otlp {result.conservation.otlp}"), soft_wrap=True)
    for name, path in written.items():
        if path.suffix == ".html":
            screen.print(Text(f"{name}: {spell_out(str(path), limit=None)}"), soft_wrap=True)


def _sentences(result: Result) -> Iterator[str]:
    """Yield what the counts are to be read with, then the losses of each side."""
    if result.doubt:
        yield f"inconclusive: {result.doubt}"
    for side, read in (("native", result.inputs.native), ("otlp", result.inputs.otlp)):
        if read.truncated_tails:
            inputs = plural(read.truncated_tails, f"{side} input")
            yield f"cut off at the end: {inputs}; what was still being written is not judged"
    if carried := describe_carried(result):
        yield carried
    for side, loss in sorted(result.loss.items()):
        yield describe_loss(side, loss)


def _table(title: str | None, names: Iterable[str], *, right: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in names:
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def _counts(word: str, counts: dict[str, int], *, title: str | None = None) -> Table:
    table = _table(title, (word, "events"), right=("events",))
    for name, keys in sorted(counts.items()):
        table.add_row(Text(name), count(keys))
    return table


def _groups(result: Result) -> Table:
    names = ("deliveries", "failed", "unmatched", "queue p95")
    table = _table("who consumed what", ("topic", "group", *names), right=names)
    busiest = sorted(result.groups, key=lambda group: (group.unmatched, group.deliveries), reverse=True)
    for group in busiest[:_MOST_GROUPS]:
        table.add_row(
            Text(visible(group.topic)),
            Text(visible(group.group)),
            count(group.deliveries),
            percent(group.failures, group.deliveries),
            count(group.unmatched),
            duration(group.queue.p95),
        )
    if len(busiest) > _MOST_GROUPS:
        table.add_row(Text(f"{count(len(busiest) - _MOST_GROUPS)} more in the report"), *[""] * 5)
    return table


def _gates(result: Result) -> Table:
    table = _table("gates", ("gate", "value", "must be", "outcome"), right=("value", "must be"))
    for gate in result.gates:
        value = "-" if gate.value is None else f"{gate.value:g}"
        outcome = Text(gate.outcome, _STYLES.get(gate.outcome, ""))
        table.add_row(Text(gate.name), value, f"{gate.op} {gate.threshold:g}", outcome)
    return table


# -- progress ----------------------------------------------------------------------------------------------------------
_EVERY_S: Final = 0.25


class Tasks(NamedTuple):
    """The tasks of the running stages: done ones, and all that are known."""

    done: int
    known: int


@contextmanager
def show_progress(
    *, console: Console | None = None, tasks: Callable[[], Tasks | None] | None = None
) -> Iterator[Callable[[str], None]]:
    """Show progress on a terminal until the block ends; the caller names each stage as it begins.

    ``tasks`` returns the tasks of Spark, or ``None`` if they cannot be counted.
    """
    screen = console or Console(stderr=True)
    if not screen.is_terminal:
        yield lambda _stage: None
        return
    with progress_bar("starting", console=screen) as show:
        over = threading.Event()
        follower = threading.Thread(
            target=_follow, args=(show, over, tasks or count_active_tasks), name="mqtrace-progress", daemon=True
        )
        follower.start()
        try:
            yield lambda stage: show(description=stage)
        finally:
            over.set()
            follower.join()


def _follow(show: Callable[..., None], over: threading.Event, tasks: Callable[[], Tasks | None]) -> None:
    while True:
        now = tasks()
        if now is None or not now.known:
            show(total=None, amount="")
        else:
            show(total=now.known, completed=now.done, amount=f"{now.done:,} of {now.known:,} tasks")
        if over.wait(_EVERY_S):
            return


def count_active_tasks() -> Tasks | None:
    """Return the running tasks of this process's Spark, or ``None`` without one that counts them."""
    pyspark = sys.modules.get("pyspark")  # importing it here would be the slowest thing about a progress bar
    context = getattr(getattr(pyspark, "SparkContext", None), "_active_spark_context", None)
    if context is None:
        return None
    with suppress(Exception):  # the JVM may be starting, ending or gone
        tracker = context.statusTracker()
        running = [info for stage in tracker.getActiveStageIds() if (info := tracker.getStageInfo(stage))]
        return Tasks(sum(info.numCompletedTasks for info in running), sum(info.numTasks for info in running))
    return None
