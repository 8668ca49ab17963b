"""The command ``mqtrace graph``: its options and the table it prints.

Nothing heavy is imported before the command runs: ``mqtrace --help`` reads this module.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from bridge.addresses import parse_directory, parse_duration_ms
from bridge.storage import as_path
from otel_mqtrace._errors import UsageError
from spark_jobs import commands as opt  # noqa: TC001  (typer reads the annotations)
from spark_jobs.commands import build_reading, parse_settings, repeat_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.storage import AnyPath
    from spark_jobs.report.graph import Edge, Graph

_FILES: Final = {name: f"graph.{name}" for name in ("html", "svg", "dot", "json")}
_SHOWN: Final = 20


_Native = Annotated[
    list[str] | None,
    typer.Option(
        help="Native trace: file, directory, glob or kafka://BOOTSTRAP/TOPIC; several may follow.", metavar="SRC"
    ),
]
_Otlp = Annotated[
    list[str] | None,
    typer.Option(
        help="OTLP spans: file, directory, glob, kafka://BOOTSTRAP/TOPIC or jaeger://HOST:PORT?service=NAME; "
        "several may follow.",
        metavar="SRC",
    ),
]
_Out = Annotated[
    Path,
    typer.Option(
        parser=partial(parse_directory, option="--out"), help="Directory for the graph's files.", metavar="DIR"
    ),
]
_Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format", help=f"Write only this: {', '.join(_FILES)}; may be given again. All when absent.", metavar="NAME"
    ),
]
_Grace = Annotated[
    int | None,
    typer.Option(
        "--grace",
        parser=partial(parse_duration_ms, name="--grace"),
        help="How long a delivery may take before it is missing, as in 60s or 5m; else 60s.",
        metavar="DURATION",
    ),
]
_NativeWriter = Annotated[
    str, typer.Option(help="Who wrote the native trace: mqtrace, rocketmq or rocketmq-VERSION.", metavar="WRITER")
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print graph.json instead of a table.")]


def graph(  # noqa: PLR0913  (an option each; the contract's list)
    *,
    native: _Native = None,
    otlp: _Otlp = None,
    out: _Out,
    formats: _Formats = None,
    begin_ms: opt.Begin = None,
    end_ms: opt.End = None,
    grace_ms: _Grace = None,
    native_writer: _NativeWriter = "mqtrace",
    master: opt.Master = None,
    driver_memory: opt.DriverMemory = "1g",
    conf: opt.Conf = None,
    msg_type_map: opt.MsgTypeMap = "a",
    otlp_format: opt.OtlpFormat = None,
    charset: opt.Charset = "utf-8",
    client_config: opt.ClientConfig = None,
    as_json: _AsJson = False,
) -> int:
    """Draw who sends what to whom: producer, topic, consumer group, with counts, errors, retries and queue times.

    Exit codes: 0, 2 wrong usage or unreadable input, 130 interrupted.

    Example:
        mqtrace graph --otlp spans.jsonl --out graph
        mqtrace graph --native landing/native --otlp 'otlp/*.jsonl' --out graph --format html --format dot
    """
    wanted, into = _wanted(formats), as_path(out)
    from spark_jobs.jobs import graph as job  # noqa: PLC0415  (of the optional extra)
    from spark_jobs.jobs.options import ReconcileOptions  # noqa: PLC0415
    from spark_jobs.report.files import write_texts  # noqa: PLC0415
    from spark_jobs.report.graph_files import GRAPH_FILES  # noqa: PLC0415
    from spark_jobs.sources.jaeger import local_sources  # noqa: PLC0415
    from spark_jobs.terminal import shown_progress  # noqa: PLC0415

    options = ReconcileOptions(
        native=tuple(native or ()),
        otlp=tuple(otlp or ()),
        out=into,
        begin_ms=begin_ms,
        end_ms=end_ms,
        grace_ms=grace_ms,
        native_writer=native_writer,
        master=master,
        driver_memory=driver_memory,
        reading=build_reading(msg_type_map, otlp_format, charset, client_config),
        conf=parse_settings(conf or ()),
    )
    with local_sources(options.otlp) as spans, shown_progress() as progress:
        drawn = job.run(replace(options, otlp=spans), progress=progress)
        progress("writing the files")
        written = write_texts({name: GRAPH_FILES[name](drawn) for name in GRAPH_FILES if name in wanted}, into)
    if as_json:
        sys.stdout.write(drawn.dumps())
    else:
        _print(drawn, written)
    return 0


graph.rewrite_arguments = repeat_options  # type: ignore[attr-defined]  # the command line calls it first


def _wanted(formats: Iterable[str] | None) -> frozenset[str]:
    chosen = list(formats or _FILES)
    for name in chosen:
        if name not in _FILES:
            raise UsageError(f"--format {name!r} is unknown: use {', '.join(_FILES)}")
    return frozenset(_FILES[name] for name in chosen)


def _print(drawn: Graph, written: dict[str, AnyPath]) -> None:
    from rich.table import Table  # noqa: PLC0415  (a list of commands does without)

    from otel_mqtrace._terminal import open_console, print_table  # noqa: PLC0415
    from spark_jobs.report.graph import node_name  # noqa: PLC0415  (of the optional extra)
    from spark_jobs.report.wording import count, duration, percent  # noqa: PLC0415

    names = {node.id: node_name(node, limit=80) for node in drawn.nodes}
    table = Table()
    for heading in ("from", "to"):
        table.add_column(heading, overflow="fold")
    for heading in ("count", "failed", "again", "missing", "queue p95"):
        table.add_column(heading, justify="right", no_wrap=True)
    busiest = sorted(drawn.edges, key=lambda edge: -edge.count)[:_SHOWN]
    for edge in busiest:
        shares = (percent(part, edge.count) if part else "-" for part in (edge.failures, edge.again))
        queued = duration(edge.queued.p95) if edge.queued.count else "-"
        table.add_row(names[edge.source], names[edge.target], count(edge.count), *shares, _missing(edge), queued)
    console = open_console()
    print_table(table, console)
    if len(drawn.edges) > _SHOWN:
        console.print(f"and {count(len(drawn.edges) - _SHOWN)} more edges in graph.json", soft_wrap=True)
    for name, path in written.items():
        typer.echo(f"{name}: {path}")
    if not drawn.nodes:
        typer.echo("mqtrace: the graph is empty: its sources have no event in the window", err=True)


def _missing(edge: Edge) -> str:
    """Return the number of messages never consumed or never published."""
    missing = edge.never_consumed + edge.never_published
    return f"{missing:,}" if missing else "-"
