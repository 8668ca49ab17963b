"""The commands ``mqtrace reconcile``, ``inspect`` and ``graph``: their options, and what they print.

Nothing heavy is imported before a command runs: ``mqtrace --help`` reads this module. A command names the aliases of
options in its signature, where typer reads them; the defaults stand there.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from bridge.addresses import (
    Kind,
    check_client_config,
    parse_address,
    parse_directory,
    parse_duration_ms,
    parse_instant_ms,
)
from bridge.commands import option, parse_charset, warn_of_orphans
from bridge.page.wording import join_words, plural, visible
from bridge.storage.paths import as_path
from otel_mqtrace._errors import UsageError
from otel_mqtrace.client_properties import read_properties
from spark_jobs.exchange.workers import started_early

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from bridge.storage.paths import AnyPath
    from spark_jobs.jobs.options import ReconcileOptions
    from spark_jobs.jobs.reading import ReadOptions
    from spark_jobs.report.graph import Graph
    from spark_jobs.report.result import Result, Writers

_OWN_OPTIONS: Final = {"spark.master": "--master", "spark.remote": "--master", "spark.driver.memory": "--driver-memory"}
_LONGEST_PATH: Final = 4096  # of Linux
_SOURCES: Final = frozenset({"--native", "--otlp", "--ledger"})


def repeat_options(arguments: Iterable[str]) -> list[str]:
    """Repeat an option before each of its values: ``--native a b`` becomes ``--native a --native b``.

    A shell expands ``--native landing/*.jsonl`` into many words; an option parser gives the option one of them.

    Raises:
        UsageError: a value is empty, as that of a variable that is not set.
    """
    repeated: list[str] = []
    current, fresh = None, False
    for word in arguments:
        if word.startswith("-") and word != "-":
            name, assigned, _ = word.partition("=")
            current, fresh = (name if name in _SOURCES else None), not assigned
        else:
            if current is not None and not fresh:
                repeated.append(current)
            fresh = False
        if current is not None:
            _refuse_empty(current, word.removeprefix(f"{current}="))
        repeated.append(word)
    return repeated


def _refuse_empty(option: str, text: str) -> None:
    if not text.strip():
        raise UsageError(f"{option} is empty: name a file or a directory, or leave it out")


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """Parse Spark settings like ``spark-submit --conf``; the last one of a name counts.

    Raises:
        UsageError: a text is not ``KEY=VALUE``, or an option sets it.
    """
    settings: dict[str, str] = {}
    for text in texts:
        name, assigned, value = text.partition("=")
        if not assigned or not name.startswith("spark."):
            raise UsageError(f"--conf '{text}' is not a setting of Spark: write spark.NAME=VALUE")
        if name in _OWN_OPTIONS:
            raise UsageError(f"--conf '{text}': use {_OWN_OPTIONS[name]} instead")
        settings[name] = value
    return settings


def build_reading(
    msg_type_map: str, otlp_format: str | None, charset: str, client_config: Path | None, sources: Iterable[str]
) -> ReadOptions:
    """Return how to read ``sources``, of both sides; raise ``UsageError`` for a wrong option."""
    from spark_jobs.jobs.reading import ReadOptions  # noqa: PLC0415  (pyarrow, of the optional extra)

    properties = _read_client_config(client_config, sources)
    return ReadOptions(msg_type_map=msg_type_map, otlp_format=otlp_format, charset=charset, client_config=properties)


def _read_client_config(path: Path | None, sources: Iterable[str]) -> dict[str, str]:
    check_client_config(path, sources)
    return read_properties(path) if path else {}


# -- the options -------------------------------------------------------------------------------------------------------
Native = Annotated[
    list[str] | None,
    option(
        "Input",
        "Native trace: file, directory, glob or kafka://BOOTSTRAP/TOPIC; several may follow.",
        show_default=False,
        metavar="SRC…",
    ),
]
Otlp = Annotated[
    list[str] | None,
    option(
        "Input",
        "OTLP spans: file, directory, glob, kafka://BOOTSTRAP/TOPIC or jaeger://HOST:PORT?service=NAME; "
        "several may follow.",
        show_default=False,
        metavar="SRC…",
    ),
]
_OUT: Final = option(
    "Output",
    "Directory for what the run writes.",
    parser=partial(parse_directory, option="--out"),
    show_default=False,
    metavar="DIR",
)
Out = Annotated[Path | None, _OUT]
Ledger = Annotated[
    list[str] | None,
    option(
        "Input",
        "Counted losses: MQTRACE_LEDGER_DIR, Prometheus text, OTLP metrics; several may follow.",
        metavar="FILE…",
    ),
]
PolicyFile = Annotated[
    str | None, option("Judgement", "TOML file with tolerances and gates.", "--policy", metavar="FILE")
]
ProfileName = Annotated[
    str, option("Judgement", "Who wrote the spans.", "--profile", metavar="auto|mqtrace|java-agent")
]
NativeWriter = Annotated[
    str, option("Judgement", "Who wrote the native trace.", metavar="auto|mqtrace|rocketmq[-VERSION]")
]
Grace = Annotated[
    int | None,
    option(
        "Judgement",
        "How late a record may arrive, as in 60s or 5m; a bare number is seconds.",
        "--grace",
        parser=partial(parse_duration_ms, name="--grace"),
        metavar="DURATION",
    ),
]
Complete = Annotated[
    bool, option("Judgement", "Nothing more will arrive: judge everything, in place of --grace.", "--complete")
]
Begin = Annotated[
    int | None,
    option(
        "Input",
        "Start of the window: ISO 8601 or epoch milliseconds.",
        "--begin",
        parser=partial(parse_instant_ms, name="--begin"),
        metavar="TIME",
    ),
]
End = Annotated[
    int | None,
    option("Input", "End of the window.", "--end", parser=partial(parse_instant_ms, name="--end"), metavar="TIME"),
]
Strict = Annotated[bool, option("Judgement", "Let warnings fail the run.", "--strict")]
EngineName = Annotated[
    str | None,
    option(
        "Spark",
        "Where to judge: on Spark, or in this process without Java (local).",
        "--engine",
        show_default="spark where pyspark and a Java are found, else local",
        metavar="spark|local",
    ),
]
Master = Annotated[
    str | None,
    option(
        "Spark",
        "Spark's master URL, sc://HOST:PORT included.",
        show_default="spark-submit's, else local[*]",
        metavar="URL",
    ),
]
DriverMemory = Annotated[str, option("Spark", "Memory of Spark's driver.", metavar="SIZE")]
Conf = Annotated[
    list[str] | None, option("Spark", "A further setting of Spark's; may be repeated.", metavar="KEY=VALUE")
]
MsgTypeMap = Annotated[str, option("Input", "Ordinals of message types.", metavar="a|b")]
OtlpFormat = Annotated[str | None, option("Input", "Layout of the spans in place of detection.", metavar="NAME")]
Charset = Annotated[
    str,
    option(
        "Input", "Charset of native bodies; RocketMQ 4.x writes that of its JVM.", parser=parse_charset, metavar="NAME"
    ),
]
ClientConfig = Annotated[
    Path | None, option("Input", "Properties of the Kafka client (TLS, SASL) for kafka:// sources.", metavar="FILE")
]
History = Annotated[
    str | None,
    option(
        "Judgement",
        "Directory that carries open events from run to run.",
        show_default="history under --out",
        metavar="DIR",
    ),
]
Stream = Annotated[
    bool,
    option("Spark", "On Spark only: read only what is new since the last such run, and judge everything.", "--stream"),
]
Every = Annotated[
    int | None,
    option(
        "Spark",
        "With --stream, on Spark: again and again, as in 30s, until SIGINT or SIGTERM.",
        "--every",
        parser=partial(parse_duration_ms, name="--every"),
        metavar="DURATION",
    ),
]
LinkTemplate = Annotated[
    str | None,
    option("Output", "Address behind a sample, as in https://jaeger.example/trace/{trace_id}.", metavar="URL"),
]
AsJson = Annotated[bool, option("Output", "Print result.json instead of a table.", "--json")]
PrintPolicy = Annotated[
    bool, option("Judgement", "Print the whole policy as TOML, with comments, and stop.", "--print-policy")
]


def reconcile(  # noqa: PLR0913  (an option each; the contract's list)
    *,
    native: Native = None,
    otlp: Otlp = None,
    out: Out = None,
    ledger: Ledger = None,
    policy: PolicyFile = None,
    profile: ProfileName = "auto",
    native_writer: NativeWriter = "auto",
    grace_ms: Grace = None,
    complete: Complete = False,
    begin_ms: Begin = None,
    end_ms: End = None,
    strict: Strict = False,
    engine: EngineName = None,
    master: Master = None,
    driver_memory: DriverMemory = "1g",
    conf: Conf = None,
    msg_type_map: MsgTypeMap = "a",
    otlp_format: OtlpFormat = None,
    charset: Charset = "utf-8",
    client_config: ClientConfig = None,
    history: History = None,
    stream: Stream = False,
    every_ms: Every = None,
    link_template: LinkTemplate = None,
    as_json: AsJson = False,
    print_policy: PrintPolicy = False,
) -> int:
    """Compare the native trace with the spans, and report what was lost, duplicated, late or different.

    A run needs --native, --otlp and --out. Exit codes: 0 pass, 1 a gate failed, 2 wrong usage or unreadable input,
    3 the counts do not balance, 4 inconclusive, 130 interrupted.

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
    _check_stream(otlp, stream=stream, every_ms=every_ms, complete=complete)
    sources: Any = {"native": tuple(native), "otlp": tuple(otlp), "ledger": tuple(ledger or ())}
    rules: Any = {"policy": _path_of(policy, "--policy"), "profile": profile, "native_writer": native_writer}
    window: Any = {"grace_ms": grace_ms, "is_complete": complete, "begin_ms": begin_ms, "end_ms": end_ms}
    settings = parse_settings(conf or ())
    placement: Any = {"engine": engine, "master": master, "driver_memory": driver_memory, "conf": settings}
    output: Any = {"out": into, "history": _path_of(history, "--history") or into / "history"}
    with _early_workers((*native, *otlp), placement, stream=stream):
        from spark_jobs.jobs.options import ReconcileOptions  # noqa: PLC0415  (pyarrow, of the optional extra)

        reading = build_reading(msg_type_map, otlp_format, charset, client_config, (*native, *otlp))
        options = ReconcileOptions(**sources, **rules, **window, **placement, **output, strict=strict, reading=reading)
        _warn_of_newer(native_writer)
        return _run(options, stream=stream, every_ms=every_ms, link_template=link_template, as_json=as_json)


reconcile.rewrite_arguments = repeat_options  # type: ignore[attr-defined]   # the command line calls it first


def _path_of(text: str | None, option: str) -> AnyPath | None:
    """Return the path that an option names, ``None`` without the option."""
    if text is None:
        return None
    _refuse_empty(option, text)
    return parse_directory(text, option=option)


@contextmanager
def _early_workers(sources: Iterable[str], placement: dict[str, Any], *, stream: bool) -> Iterator[None]:
    """Choose the engine; the processes of the local one import their modules while this one does."""
    from spark_jobs.session import choose_engine  # noqa: PLC0415  (a list of commands does without)

    name, reason = choose_engine(**placement, stream=stream)
    early = sources if name == "local" and find_spec("pyarrow") and find_spec("jinja2") else ()
    with started_early(early, "spark_jobs.jobs.batch"):
        if name == "local":
            from spark_jobs.exchange.engine import leave_pandas_out  # noqa: PLC0415  (pyarrow, of the optional extra)

            leave_pandas_out()
        yield
    if reason is not None:
        place = "in this process" if name == "local" else "on Spark"
        typer.echo(f"mqtrace: judged {place} (--engine {name}): {reason}", err=True)


def _required(
    native: list[str] | None, otlp: list[str] | None, out: Path | None
) -> tuple[list[str], list[str], AnyPath]:
    if out is None or not native or not otlp:
        missing = next(name for name, given in (("native", native), ("otlp", otlp), ("out", out)) if not given)
        raise UsageError(f"missing option --{missing}; a run needs --native, --otlp and --out")
    return native, otlp, as_path(out)


def _check_stream(otlp: Iterable[str], *, stream: bool, every_ms: int | None, complete: bool) -> None:
    if every_ms is not None and not stream:
        raise UsageError("--every needs --stream: without it a run reads everything once")
    if every_ms is not None and complete:
        raise UsageError("--every waits for more data, --complete rules it out: leave out one of them")
    if stream and any(parse_address(source).kind is Kind.JAEGER for source in otlp):
        raise UsageError("--stream does not take jaeger://, which is read once: leave out --stream")


def _run(
    options: ReconcileOptions, *, stream: bool, every_ms: int | None, link_template: str | None, as_json: bool
) -> int:
    """Reconcile, write the reports and print the result."""
    from bridge.page.markup import check_template  # noqa: PLC0415  (as below)
    from spark_jobs.report import files, samples  # noqa: PLC0415  (Jinja, of the optional extra)
    from spark_jobs.sources.jaeger import local_sources  # noqa: PLC0415  (a list of commands does without)
    from spark_jobs.terminal import print_summary, show_progress  # noqa: PLC0415  (rich)

    warn_of_orphans(options.native)
    template = link_template and check_template(link_template, samples.LINK_FIELDS)
    written: dict[str, AnyPath] = {}
    printed: set[Writers] = set()

    @contextmanager
    def report(result: Result) -> Iterator[Mapping[str, str]]:
        progress("writing the reports")
        sources = (*options.native, *options.otlp, *options.ledger)
        texts = files.render_reports(result, link_template=template, sources=sources)
        yield texts
        written.update((name, options.out / name) for name in texts)
        if every_ms is not None:
            if result.writers not in printed:
                _print_writers(result.writers)
            printed.add(result.writers)
            if not as_json:
                kept = [f"{keys:,} {name.replace('_', ' ')}" for name, keys in sorted(result.lifecycle.items()) if keys]
                typer.echo(f"run {result.run}: {result.verdict}, {', '.join(kept) or 'nothing open'}")

    with local_sources(options.otlp) as spans, show_progress() as progress:
        options = replace(options, otlp=spans)
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
    _warn_of_unknown(result.unknown_files, options)
    return int(result.exit_code)


def _print_policy(path: str | None, profile: str, native_writer: str, grace_ms: int | None, *, complete: bool) -> int:
    from spark_jobs.policy import policy as rules  # noqa: PLC0415  (optional extra)

    file, writers = _path_of(path, "--policy"), {"profile": profile, "native_writer": native_writer}
    policy = rules.with_limits(rules.read_policy(file, **writers), grace_ms=grace_ms, is_complete=complete)
    sys.stdout.write(rules.print_policy(policy, open_writers=rules.find_open_writers(file, **writers)))
    return 0


def _warn_of_newer(native_writer: str) -> None:
    from spark_jobs.policy import profiles  # noqa: PLC0415  (of the optional extra)

    if profiles.is_newer_than_known(native_writer):
        judged = f"judged by the rules of {profiles.NEWEST_RELEASE}, the newest known release"
        typer.echo(f"mqtrace: warning: --native-writer {native_writer} is {judged}", err=True)


def _warn_of_unknown(files: Iterable[str], options: ReconcileOptions) -> None:
    """Name what was passed over, but for what runs write."""
    written = [place.resolve() for place in (options.out, options.history) if place is not None]
    unknown = [file for file in files if not any(map(as_path(file).is_relative_to, written))]
    if unknown:
        first = visible(min(unknown), limit=_LONGEST_PATH)
        more = f" and {len(unknown) - 1} more; mqtrace inspect names all" if len(unknown) > 1 else ""
        typer.echo(f"mqtrace: warning: passed over, neither a native landing nor spans: {first}{more}", err=True)


def _warn_of_undrawn(drawn: Graph) -> None:
    counts = {"malformed record": drawn.malformed, "cut-off tail": drawn.truncated_tails}
    lost = [plural(number, noun) for noun, number in counts.items() if number]
    if lost:
        first = f"; first: {visible(drawn.first_malformed, limit=_LONGEST_PATH)}" if drawn.first_malformed else ""
        typer.echo(f"mqtrace: warning: not drawn: {join_words(lost)}{first}; mqtrace inspect names them", err=True)


def _print_writers(writers: Writers) -> None:
    if writers.evidence:
        typer.echo(f"mqtrace: {'; '.join(writers.evidence)}", err=True)


def inspect(  # noqa: PLR0913 - one parameter for each option
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SRC", help="Files, directories, globs, kafka://BOOTSTRAP/TOPIC or jaeger://HOST:PORT?service=NAME."
        ),
    ],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    spans: Annotated[bool, typer.Option("--spans", help="Stream the spans as JSON lines.")] = False,
    records: Annotated[bool, typer.Option("--records", help="Stream the native records as JSON lines.")] = False,
    charset: Charset = "utf-8",
    client_config: Annotated[
        Path | None,
        typer.Option(help="Properties of the Kafka client (TLS, SASL) for kafka:// sources.", metavar="FILE"),
    ] = None,
) -> int:
    """Show what an input contains: side, layout, number of records or spans, bad ones with position and reason.

    Exit codes: 0, 1 if something in it is bad, 2 wrong usage or unreadable input, 130 interrupted.

    Example:
        mqtrace inspect landing/native spans.jsonl
        mqtrace inspect spans.jsonl --json
        mqtrace inspect 'jaeger://127.0.0.1:16686?service=shop'
    """
    from spark_jobs import inspect as inspection  # noqa: PLC0415  (reads protobuf and zstd, of the optional extra)

    given = _read_client_config(client_config, sources)
    how = {"as_json": as_json, "spans": spans, "records": records}
    return int(inspection.run(sources, **how, charset=charset, client_config=given))


# -- graph -------------------------------------------------------------------------------------------------------------
GraphAsJson = Annotated[bool, option("Output", "Print graph.json instead of where the files are.", "--json")]


def graph(  # noqa: PLR0913  (an option each; the contract's list)
    *,
    native: Native = None,
    otlp: Otlp = None,
    out: Annotated[Path, _OUT],
    begin_ms: Begin = None,
    end_ms: End = None,
    grace_ms: Grace = None,
    master: Master = None,
    driver_memory: DriverMemory = "1g",
    conf: Conf = None,
    msg_type_map: MsgTypeMap = "a",
    otlp_format: OtlpFormat = None,
    charset: Charset = "utf-8",
    client_config: ClientConfig = None,
    as_json: GraphAsJson = False,
) -> int:
    """Draw who sends what to whom: producer, topic, consumer group, with counts, errors, retries and queue times.

    Exit codes: 0, 2 wrong usage or unreadable input, 130 interrupted.

    Example:
        mqtrace graph --otlp spans.jsonl --out graph
        mqtrace graph --native landing/native --otlp 'otlp/*.jsonl' --out graph
    """
    into = as_path(out)
    from spark_jobs.jobs import graph as job  # noqa: PLC0415  (of the optional extra)
    from spark_jobs.jobs.options import ReconcileOptions  # noqa: PLC0415
    from spark_jobs.sources.jaeger import local_sources  # noqa: PLC0415
    from spark_jobs.terminal import show_progress  # noqa: PLC0415

    options = ReconcileOptions(
        native=tuple(native or ()),
        otlp=tuple(otlp or ()),
        out=into,
        begin_ms=begin_ms,
        end_ms=end_ms,
        grace_ms=grace_ms,
        master=master,
        driver_memory=driver_memory,
        reading=build_reading(msg_type_map, otlp_format, charset, client_config, [*(native or ()), *(otlp or ())]),
        conf=parse_settings(conf or ()),
    )
    warn_of_orphans(options.native)
    with local_sources(options.otlp) as spans, show_progress() as progress:
        drawn = job.run(replace(options, otlp=spans), progress=progress)
    _warn_of_unknown(drawn.unknown_files, options)
    _warn_of_undrawn(drawn)
    if as_json:
        sys.stdout.write(drawn.dumps())
        return 0
    page = visible(str(into / "graph.html"), limit=None)
    sys.stdout.write(f"graph: {page}, with graph.dot and graph.json beside it\n")
    if not drawn.nodes:
        typer.echo("mqtrace: the graph is empty: its sources have no readable event in the window", err=True)
    return 0


graph.rewrite_arguments = repeat_options  # type: ignore[attr-defined]   # as of reconcile
