"""The options of a run, and every check of them before an engine starts: sources, policy and writers among them."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bridge.otlp.detect import Side
from otel_mqtrace._errors import UsageError
from otel_mqtrace.landing import MANIFEST_DIRECTORY, MANIFEST_NAME, PARTS, native_directory
from spark_jobs.jobs.reading import ReadOptions
from spark_jobs.jobs.writers import find_writers
from spark_jobs.policy.policy import Policy, read_policy, with_limits
from spark_jobs.policy.profiles import AUTO
from spark_jobs.report.result import RESULT_FILE, VERDICTS
from spark_jobs.session import DEFAULT_DRIVER_MEMORY, check_start, choose_engine, configure_stores
from spark_jobs.sources.files import find_inputs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from bridge.storage.paths import AnyPath
    from spark_jobs.report.result import Result
    from spark_jobs.sources.files import SourceSet

    Report = Callable[[Result], AbstractContextManager[Mapping[str, str]]]


OWN_TEXT: Final = {
    "report.html": b"message trace reconciliation",
    "summary.md": b"message trace reconciliation",
    "junit.xml": b'name="mqtrace reconcile"',
    "metrics.prom": b"mqtrace_reconcile_",
    RESULT_FILE: b'"native_writer"',
    "graph.html": b"Message graph",
    "graph.dot": b"digraph messages {",
    "graph.json": b'"opening_ms"',
}
"""Text near the beginning of each file that a run writes, by which a later run knows that it may replace the file."""
_REPLACED: Final = (VERDICTS, *(name for name in OWN_TEXT if not name.startswith("graph.")))
_HEAD_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """The options of a run, or of a graph.

    Attributes:
        native, otlp, ledger: sources as on the command line.
        reading: how to read both sides; :func:`choose` adds the native writer.
        grace_ms: ``None`` takes that of the policy.
        is_complete: nothing more will arrive.
        begin_ms, end_ms: the window in epoch milliseconds, both included; a key belongs to it if its start does.
        engine: ``spark`` or ``local``; ``None`` takes Spark where it can run.
        master: ``None`` takes that of ``spark-submit`` or ``SPARK_REMOTE``, else this machine.
        conf: further settings of Spark.
        history: the directory that carries open keys from run to run; ``None`` keeps none.
    """

    native: tuple[str, ...] = ()
    otlp: tuple[str, ...] = ()
    reading: ReadOptions = field(default_factory=ReadOptions)
    out: AnyPath
    policy: AnyPath | None = None
    profile: str = AUTO
    native_writer: str = AUTO
    grace_ms: int | None = None
    is_complete: bool = False
    begin_ms: int | None = None
    end_ms: int | None = None
    strict: bool = False
    engine: str | None = None
    master: str | None = None
    driver_memory: str = DEFAULT_DRIVER_MEMORY
    conf: Mapping[str, str] = field(default_factory=dict)
    history: AnyPath | None = None
    ledger: tuple[str, ...] = ()


def no_progress(_stage: str) -> None:
    """Report no progress."""


def no_report(_result: Result) -> AbstractContextManager[Mapping[str, str]]:
    """Write no report."""
    return nullcontext({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The options of a run with both writers, its policy, and the reason for each detected writer.

    Attributes:
        native, otlp: the inputs behind the sources.
        is_settled: false while a writer is a default that further input may prove wrong.
        engine: ``spark`` or ``local``.
    """

    options: ReconcileOptions
    native: SourceSet
    otlp: SourceSet
    policy: Policy
    reasons: Mapping[str, str]
    is_settled: bool
    engine: str = "spark"


def check_options(
    options: ReconcileOptions, known: Callable[[], Mapping[str, tuple[str, str]]] = dict, *, stream: bool = False
) -> Chosen:
    """Check the options and sources before an engine starts; choose the engine and the writers.

    ``known`` returns the argument of :func:`choose`, and is called once stores can be opened; ``stream`` is that of
    :func:`spark_jobs.session.choose_engine`.
    """
    if options.history is not None and options.history.resolve() == options.out.resolve():
        raise UsageError(f"--out and --history both name {options.out}: give the history its own directory")
    engine, _ = choose_engine(
        options.engine, master=options.master, conf=options.conf, driver_memory=options.driver_memory, stream=stream
    )
    if engine == "spark":
        check_start(master=options.master, driver_memory=options.driver_memory)
    sources = {"--native": options.native, "--otlp": options.otlp, "--ledger": options.ledger}
    places: dict[str, list[Any]] = {"--policy": [options.policy], "--out": [options.out]}
    configure_stores(options.conf, {**sources, **places, "--history": [options.history]})
    chosen = choose(options, known())
    check_places(options, _REPLACED)
    return replace(chosen, engine=engine)


def check_places(options: ReconcileOptions, names: Iterable[str]) -> None:
    """Refuse a place that a run would damage; ``names`` are the files and directories that it replaces in ``out``.

    Readers of a landing would take a run's files for trace messages. Files of an earlier run are known by ``OWN_TEXT``,
    verdicts by their suffix; an empty file may be replaced, too.

    Raises:
        UsageError: ``out`` or the history is a landing, or lies among its parts; a file of ``names`` is not of an
            earlier run; or the history is among the verdicts.
    """
    out, history = options.out, options.history
    for option, place in {"--out": out, "--history": history}.items():
        if place is not None and _is_landing(place.resolve()):
            raise UsageError(
                f"{option} {place} is a landing, whose readers would take a run's files for trace messages: "
                "name another directory"
            )
    if history is not None and history.resolve().is_relative_to((out / VERDICTS).resolve()):
        raise UsageError(f"--history {history} is in {out / VERDICTS}, which a run replaces: name another directory")
    with suppress(OSError):  # opening the place reports the error
        for foreign in chain.from_iterable(_find_foreign(out / name) for name in names):
            why = f"{foreign} would be replaced and is not of an earlier run"
            raise UsageError(f"--out {out}: {why}: move it away, or choose another --out")


def _find_foreign(path: AnyPath) -> Iterator[AnyPath]:
    """Yield what is not of an earlier run: ``path`` or, of a directory of verdicts, files below it."""
    if path.name == VERDICTS and path.is_dir():
        below = path.rglob("*") if isinstance(path, Path) else ()
        others = (each for each in below if each.suffix != ".parquet" and not each.name.startswith((".", "_")))
        yield from (each for each in others if each.is_file())
    elif path.exists() and not (path.name in OWN_TEXT and path.is_file() and _is_own(path)):
        yield path


def _is_own(path: AnyPath) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except PermissionError:
        return False
    return not head or OWN_TEXT[path.name] in head


def _is_landing(place: AnyPath) -> bool:
    around = (native_directory(place), place, *place.parents)
    with suppress(OSError):  # opening the place reports the error
        if not isinstance(place, Path):
            return any((above / MANIFEST_DIRECTORY).exists() for above in around)
        return any((above / MANIFEST_NAME).exists() or any(above.glob(PARTS)) for above in around)
    return False


def choose(options: ReconcileOptions, known: Mapping[str, tuple[str, str]]) -> Chosen:
    """Check the sources, and detect the writers that the options leave open.

    ``known`` are writers chosen before, each with its reason, by ``profile`` and ``native_writer``.

    Raises:
        UsageError: a source or an option is wrong, or the input does not show a writer.
        UnreadableInputError, PeerError: as :func:`spark_jobs.sources.files.find_inputs`.
    """
    given = {"profile": options.profile, "native_writer": options.native_writer}
    left = [name for name, value in given.items() if value == AUTO]
    kept = {name: known[name] for name in left if name in known}
    named = {**given, **{name: value for name, (value, _) in kept.items()}}
    build_policy(options)  # its errors come before those of the sources
    how = options.reading
    native = find_inputs(Side.NATIVE, options.native, how.client_config)
    otlp = find_inputs(Side.OTLP, options.otlp, how.client_config, layout=how.otlp_format)
    found = find_writers(native, otlp, how, **named)
    reasons = {**{name: why for name, (_, why) in kept.items()}, **found.reasons}
    settled = replace(
        options,
        profile=found.profile,
        native_writer=found.native_writer,
        reading=replace(how, native_writer=found.native_writer),
    )
    policy = replace(build_policy(settled), writer_evidence=tuple(reasons[name] for name in left if name in reasons))
    return Chosen(
        options=settled,
        native=native,
        otlp=otlp,
        policy=policy,
        reasons=reasons,
        is_settled=reasons.keys() >= set(left),
    )


def build_policy(options: ReconcileOptions) -> Policy:
    """Return the policy of the options, whose writers count as ``mqtrace`` where they are ``auto``.

    Raises:
        UsageError, UnreadableInputError: an option or the file is wrong.
    """
    policy = read_policy(options.policy, profile=options.profile, native_writer=options.native_writer)
    return with_limits(
        policy,
        grace_ms=options.grace_ms,
        is_complete=options.is_complete,
        begin_ms=options.begin_ms,
        end_ms=options.end_ms,
        strict=options.strict,
    )
