"""This module knows how a finished run looks in a terminal: the verdict, what it rests on, and where the report is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from otel_mqtrace._terminal import open_console, print_table
from spark_jobs.report.headline import loss_sentence
from spark_jobs.report.wording import count, duration, percent, visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from bridge.storage import AnyPath
    from spark_jobs.report.result import Result

__all__ = ["print_summary"]

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


def print_summary(result: Result, written: dict[str, AnyPath], *, console: Console | None = None) -> None:
    """Print what a person at a terminal wants to know first; colours only where the terminal takes them."""
    screen = console or open_console()
    told = Text.assemble((result.verdict, _STYLES.get(result.verdict, "")), ": native trace against OTLP spans")
    screen.print(told, soft_wrap=True)
    if result.doubt:
        screen.print(Text(f"inconclusive: {result.doubt}"), soft_wrap=True)
    for side, loss in sorted(result.loss.items()):
        screen.print(Text(loss_sentence(side, loss)), soft_wrap=True)
    print_table(_counts("status", result.status), screen)
    if result.reason:
        print_table(_counts("reason", result.reason, title="reasons"), screen)
    if result.groups:
        print_table(_groups(result), screen)
    print_table(_gates(result), screen)
    if not result.conservation.holds:
        screen.print(Text(f"the books do not balance: native {result.conservation.native}"), soft_wrap=True)
        screen.print(Text(f"                          otlp {result.conservation.otlp}"), soft_wrap=True)
    for name, path in written.items():
        if path.suffix == ".html":
            screen.print(Text(f"{name}: {path}"), soft_wrap=True)


def _table(title: str | None, names: Iterable[str], *, right: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in names:
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold")
    return table


def _counts(word: str, counts: dict[str, int], *, title: str | None = None) -> Table:
    table = _table(title, (word, "keys"), right=("keys",))
    for name, keys in sorted(counts.items()):
        table.add_row(Text(name), count(keys))
    return table


def _groups(result: Result) -> Table:
    names = ("deliveries", "failed", "unmatched", "queue p95")
    table = _table("who consumed what", ("topic", "group", *names), right=names)
    busiest = sorted(result.groups, key=lambda group: (group.unmatched, group.deliveries), reverse=True)
    for group in busiest[:_MOST_GROUPS]:
        table.add_row(
            Text(visible(group.topic, limit=120)),
            Text(visible(group.group, limit=120)),
            count(group.deliveries),
            percent(group.failures, group.deliveries),
            count(group.unmatched),
            duration(group.queue.p95),
        )
    if len(busiest) > _MOST_GROUPS:
        table.add_row(Text(f"{count(len(busiest) - _MOST_GROUPS)} more in the report"), *[""] * 5)
    return table


def _gates(result: Result) -> Table:
    table = _table("gates", ("gate", "value", "bound", "outcome"), right=("value", "bound"))
    for gate in result.gates:
        value = "-" if gate.value is None else f"{gate.value:g}"
        outcome = Text(gate.outcome, _STYLES.get(gate.outcome, ""))
        table.add_row(Text(gate.name), value, f"{gate.op} {gate.threshold:g}", outcome)
    return table
