"""The commands ``mqtrace reconcile`` and ``mqtrace inspect``: their options and their output.

Nothing heavy is imported before a command runs: ``mqtrace --help`` reads this module.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bridge.storage import as_path
from otel_mqtrace._errors import UsageError
from spark_jobs import options as opt  # noqa: TC001  (typer reads the annotations)
from spark_jobs.exchange.workers import start_early
from spark_jobs.options import parse_settings, repeat_options

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bridge.storage import AnyPath
    from spark_jobs.jobs.options import ReconcileOptions
    from spark_jobs.report.result import Result, Writers


def reconcile(  # noqa: PLR0913  (an option each; the contract's list)
    *,
    native: opt.Native = None,
    otlp: opt.Otlp = None,
    out: opt.Out = None,
    ledger: opt.Ledger = None,
    policy: opt.PolicyFile = None,
    profile: opt.ProfileName = "auto",
    native_writer: opt.NativeWriter = "auto",
    grace_ms: opt.Grace = None,
    complete: opt.Complete = False,
    begin_ms: opt.Begin = None,
    end_ms: opt.End = None,
    strict: opt.Strict = False,
    engine: opt.EngineName = None,
    master: opt.Master = None,
    driver_memory: opt.DriverMemory = "1g",
    conf: opt.Conf = None,
    msg_type_map: opt.MsgTypeMap = "a",
    otlp_format: opt.OtlpFormat = None,
    charset: opt.Charset = "utf-8",
    client_config: opt.ClientConfig = None,
    history: opt.History = None,
    stream: opt.Stream = False,
    every_ms: opt.Every = None,
    samples: opt.Samples = 400,
    link_template: opt.LinkTemplate = None,
    as_json: opt.AsJson = False,
    print_policy: opt.PrintPolicy = False,
) -> int:
    """Compare the native trace with the spans, and report what was lost, duplicated, late or different.

    Exit codes: 0 pass, 1 a gate failed, 2 wrong usage or unreadable input, 3 the books do not balance,
    4 inconclusive, 130 interrupted.

    Example:
        mqtrace reconcile --native landing/native --otlp spans.jsonl --out report
        mqtrace reconcile --native a.jsonl b.jsonl --otlp 'otlp/*.jsonl' --out report --grace 5m
        mqtrace reconcile --native landing/native --otlp spans.jsonl --out report --complete
        mqtrace reconcile --native landing/native --otlp spans.jsonl --out report --engine local
        mqtrace reconcile --native landing/native --otlp 'otlp/done-*.jsonl' --out report --stream --every 5m
        mqtrace reconcile --print-policy --profile java-agent --native-writer rocketmq-5.3.3 > policy.toml
    """
    if print_policy:
        return _print_policy(policy, profile, native_writer, grace_ms, complete=complete)
    native, otlp, into = _required(native, otlp, out)
    _check_rhythm(stream=stream, every_ms=every_ms, engine=engine, complete=complete)
    sources: Any = {"native": tuple(native), "otlp": tuple(otlp), "ledger": tuple(ledger or ())}
    reading: Any = {"msg_type_map": msg_type_map, "otlp_format": otlp_format, "charset": charset}
    rules: Any = {"policy": policy and as_path(policy), "profile": profile, "native_writer": native_writer}
    window: Any = {"grace_ms": grace_ms, "is_complete": complete, "begin_ms": begin_ms, "end_ms": end_ms}
    where: Any = {"engine": engine, "master": master, "driver_memory": driver_memory, "client_config": client_config}
    left: Any = {"out": into, "history": as_path(history) if history else into / "history", "samples": samples}
    given = sources | reading | rules | window | where | left
    settings = parse_settings(conf or ())
    options = _load_options(engine, (*native, *otlp))(**given, conf=settings, strict=strict)
    _warn_of_newer(native_writer)
    with _local(options, stream=stream) as local:
        return _run(local, stream=stream, every_ms=every_ms, link_template=link_template, as_json=as_json)


reconcile.rewrite_arguments = repeat_options  # type: ignore[attr-defined]   # the command line calls it first


def _load_options(engine: str | None, sources: Iterable[str]) -> type[ReconcileOptions]:
    from spark_jobs.java import has_pyspark  # noqa: PLC0415  (a list of commands does without)

    if engine == "local" or (engine is None and not has_pyspark()):
        start_early(sources, "spark_jobs.jobs.reconcile")  # what they import takes as long as it does here
    if engine == "local":
        from spark_jobs.exchange.engine import leave_pandas_out  # noqa: PLC0415  (pyarrow, of the optional extra)

        leave_pandas_out()
    from spark_jobs.jobs.options import ReconcileOptions  # noqa: PLC0415  (pyarrow, of the optional extra)

    return ReconcileOptions


@contextmanager
def _local(options: ReconcileOptions, *, stream: bool) -> Iterator[ReconcileOptions]:
    from bridge.addresses import Kind, parse_address  # noqa: PLC0415  (a list of commands does without)
    from spark_jobs.sources.jaeger import local_sources  # noqa: PLC0415  (a list of commands does without)

    if stream and any(parse_address(source).kind is Kind.JAEGER for source in options.otlp):
        raise UsageError("--stream does not take jaeger://, which is read once: leave out --stream")
    with local_sources(options.otlp) as files:
        yield replace(options, otlp=files)


def _required(
    native: list[str] | None, otlp: list[str] | None, out: Path | None
) -> tuple[list[str], list[str], AnyPath]:
    if out is None or not native or not otlp:
        missing = next(name for name, given in (("native", native), ("otlp", otlp), ("out", out)) if not given)
        raise UsageError(f"missing option --{missing}; a run needs --native, --otlp and --out")
    return native, otlp, as_path(out)


def _check_rhythm(*, stream: bool, every_ms: int | None, engine: str | None, complete: bool) -> None:
    if every_ms is not None and not stream:
        raise UsageError("--every needs --stream: without it a run reads everything once")
    if every_ms is not None and complete:
        raise UsageError("--every waits for more data, --complete rules it out: leave out one of them")
    if stream and engine == "local":
        raise UsageError("--engine local does not take --stream: leave it out, or use --engine spark")


def _run(
    options: ReconcileOptions, *, stream: bool, every_ms: int | None, link_template: str | None, as_json: bool
) -> int:
    """Reconcile, write the reports and print the result."""
    from bridge.page.markup import check_template  # noqa: PLC0415  (as below)
    from spark_jobs.report import files, html, samples  # noqa: PLC0415  (Jinja, of the optional extra)
    from spark_jobs.terminal import print_summary, shown_progress  # noqa: PLC0415  (rich)

    template = link_template and check_template(link_template, samples.LINK_FIELDS)
    page = html.PageOptions(samples=options.samples, link_template=template)
    written: dict[str, AnyPath] = {}
    printed: set[Writers] = set()

    def report(result: Result) -> None:
        progress("writing the reports")
        sources = (*options.native, *options.otlp, *options.ledger)
        written.update(files.write_reports(result, options.out, page, sources=sources))
        if every_ms is not None:
            if result.writers not in printed:
                _print_writers(result.writers)
            printed.add(result.writers)
            if not as_json:
                typer.echo(f"run {result.run}: {result.verdict}, {_open_keys(result)}")

    with shown_progress() as progress:
        if stream:
            from spark_jobs.jobs import stream as streaming  # noqa: PLC0415  (Spark, of the optional extra)

            result = streaming.run(options, every_ms=every_ms, progress=progress, report=report)
        else:
            from spark_jobs.jobs import batch  # noqa: PLC0415  (pyarrow, of the optional extra)

            result = batch.run(options, progress=progress, report=report)
    if every_ms is None:
        _print_writers(result.writers)
    if as_json:
        sys.stdout.write(result.dumps())
    else:
        print_summary(result, written)
    _warn_of_size(written, html.HEAVY_PAGE_BYTES)
    return int(result.exit_code)


def _print_policy(path: str | None, profile: str, native_writer: str, grace_ms: int | None, *, complete: bool) -> int:
    from spark_jobs.policy.policy import print_policy, read_open_policy, with_grace  # noqa: PLC0415  (optional extra)

    policy, open_writers = read_open_policy(
        as_path(path) if path else None, profile=profile, native_writer=native_writer
    )
    policy = with_grace(policy, grace_ms, is_complete=complete)
    sys.stdout.write(print_policy(policy, open_writers=open_writers))
    return 0


def _warn_of_newer(native_writer: str) -> None:
    from spark_jobs.policy import profiles  # noqa: PLC0415  (of the optional extra)

    if profiles.is_newer_than_known(native_writer):
        judged = f"judged by the rules of {profiles.NEWEST_RELEASE}, the newest known release"
        typer.echo(f"mqtrace: warning: --native-writer {native_writer} is {judged}", err=True)


def _open_keys(result: Result) -> str:
    counts = [f"{count:,} {name.replace('_', ' ')}" for name, count in sorted(result.lifecycle.items()) if count]
    return ", ".join(counts) or "nothing open"


def _warn_of_size(written: dict[str, AnyPath], heavy_bytes: int) -> None:
    for name, path in written.items():
        size = path.stat().st_size
        if path.suffix == ".html" and size > heavy_bytes:
            size_text = f"{name} has {size / 1e6:.1f} MB and opens slowly in a browser"
            typer.echo(f"mqtrace: warning: {size_text}: use fewer --samples", err=True)


def _print_writers(writers: Writers) -> None:
    if writers.evidence:
        typer.echo(f"mqtrace: {'; '.join(writers.evidence)}", err=True)


def inspect(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC…",
            help="Files, directories, globs, kafka://BOOTSTRAP/TOPIC or jaeger://HOST:PORT?service=NAME.",
        ),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    spans: Annotated[bool, typer.Option("--spans", help="Stream the spans as JSON lines.")] = False,
    records: Annotated[bool, typer.Option("--records", help="Stream the native records as JSON lines.")] = False,
    client_config: Annotated[
        Path | None, typer.Option(help="Properties of the Kafka client (TLS, SASL) for kafka:// sources.")
    ] = None,
) -> int:
    """Show what an input contains: side, layout, number of records or spans, bad ones with position and reason.

    Exit codes: 0, 1 if something in it is bad or it is empty, 2 wrong usage or unreadable input.

    Example:
        mqtrace inspect landing/native spans.jsonl
        mqtrace inspect spans.jsonl --json
        mqtrace inspect 'jaeger://127.0.0.1:16686?service=shop'
    """
    from otel_mqtrace.client_properties import read_properties  # noqa: PLC0415
    from spark_jobs import inspect as inspection  # noqa: PLC0415  (reads protobuf and zstd, of the optional extra)
    from spark_jobs.sources.jaeger import local_sources  # noqa: PLC0415  (a list of commands does without)

    given = {} if client_config is None else read_properties(client_config)
    with local_sources(sources) as files:
        return int(inspection.run(files, as_json=as_json, spans=spans, records=records, client_config=given))
