"""The command mqtrace demo: its options, its output and its exit code."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from bridge.addresses import parse_directory
from bridge.page.wording import visible
from otel_mqtrace._errors import MissingExtraError, UsageError

_NEEDED: Final = ("confluent_kafka", "opentelemetry.exporter.otlp.json.file", "pyspark", "pyarrow", "rich")
MIN_MESSAGES: Final = 100
"""One full block of the order book: fewer have no room for one fault of each kind."""
_SETTINGS: Final = ("MQTRACE_", "OTEL_")


def demo(
    *,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Where to write; an earlier run's output is replaced.")
    ] = "mqtrace-demo",
    messages: Annotated[int, typer.Option(min=MIN_MESSAGES, help="How many orders to send.", metavar="N")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the orders and the faults.", metavar="N")] = 7,
) -> int:
    """Run an order system on an embedded broker, break its traces on purpose, and find every break.

    Both formats are exported, faults are injected at the exporters, and Spark reconciles.

    Exit codes: 0 all seeded faults found and nothing else, 1 otherwise, 2 wrong usage or a run that failed,
    130 interrupted.

    Example:
        mqtrace demo --messages 500 --seed 42
    """
    for name in [name for name in os.environ if name.startswith(_SETTINGS)]:
        del os.environ[name]  # what is set for an application here is not meant for the demo
    if not all(map(_is_installed, _NEEDED)):
        raise MissingExtraError("mqtrace demo", "all")
    root = parse_directory(out, option="--out")
    if not isinstance(root, Path):
        raise UsageError(f"--out {out}: the demo writes on this machine only: name a directory")
    from bridge.demo.faults import describe_discrepancies, tabulate_findings  # noqa: PLC0415  optional extras
    from bridge.demo.run import demonstrate  # noqa: PLC0415  as above
    from otel_mqtrace._terminal import open_console, print_table  # noqa: PLC0415  as above

    plan = (
        f"mqtrace demo: {messages:,} orders with faults on purpose, both traces, one reconciliation on Spark; "
        "2,000 orders take about half a minute"
    )
    workspace, findings = demonstrate(root, messages=messages, seed=seed, on_start=lambda: typer.echo(plan, err=True))
    console = open_console()
    print_table(tabulate_findings(findings), console)
    for line in describe_discrepancies(findings):
        console.print(f"  {line}", soft_wrap=True)
    verdict = "every seeded fault was found, and nothing else" if findings.agree else "seeded and found do NOT agree"
    console.print(verdict)
    console.print(f"report: {visible(str(workspace.report / 'report.html'), limit=None)}", soft_wrap=True)
    return 0 if findings.agree else 1


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
