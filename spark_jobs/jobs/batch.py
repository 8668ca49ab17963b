"""This module knows the batch run: read both sides, judge every key once, add up, report, remember."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from bridge.client_properties import read_properties
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError
from spark_jobs.jobs.judge import judge
from spark_jobs.jobs.normalise import NormaliseOptions, check_inputs, normalise_native, normalise_otlp
from spark_jobs.jobs.run_line import TREND_RUNS, run_line, trend_point
from spark_jobs.jobs.workplace import Workplace, workplace
from spark_jobs.reconcile import evidence
from spark_jobs.reconcile.policy import Policy, read_policy
from spark_jobs.session import DEFAULT_DRIVER_MEMORY, build_session, check_start
from spark_jobs.sources.files import input_bytes
from spark_jobs.sources.kafka.address import apart
from spark_jobs.sources.ledger import read_ledgers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from otel_mqtrace._clock import Clock
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.report.result import Result
    from spark_jobs.sources.ledger import LedgerRead

__all__ = [
    "ReconcileOptions",
    "checked",
    "concluded",
    "counted_losses",
    "reading",
    "run",
    "silent",
    "starter",
    "unreported",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """What to reconcile, and how. ``native`` and ``otlp`` are sources as the command line takes them.

    ``grace_ms`` of ``None`` leaves it to the policy. ``begin_ms`` and ``end_ms`` are epoch milliseconds, both included:
    a key belongs to the window when its start does, by whichever side knows it. ``history`` is the directory in which
    runs leave to the next one what is still open; ``None`` keeps none. ``segments`` asks for checksums of so many
    segments first, and for verdicts of those only that differ; ``None`` judges every key by itself.
    """

    native: tuple[str, ...]
    otlp: tuple[str, ...]
    out: Path
    policy: Path | None = None
    profile: str = "mqtrace"
    native_writer: str = "mqtrace"
    grace_ms: int | None = None
    begin_ms: int | None = None
    end_ms: int | None = None
    strict: bool = False
    master: str | None = None  # None: where spark-submit or SPARK_REMOTE says, else this machine
    driver_memory: str = DEFAULT_DRIVER_MEMORY
    conf: Mapping[str, str] = field(default_factory=dict)  # further settings of Spark's
    msg_type_map: str = "a"
    otlp_format: str | None = None
    charset: str = "utf-8"
    client_config: Path | None = None
    samples: int = evidence.TOTAL  # events laid open in the report, at most
    history: Path | None = None
    ledger: tuple[str, ...] = ()  # counted losses: files, directories, globs
    segments: int | None = None


def silent(_stage: str) -> None:
    """Report no progress."""


def unreported(_result: Result) -> None:
    """Write no report."""


def run(
    options: ReconcileOptions,
    *,
    spark: SparkSession | None = None,
    progress: Callable[[str], None] = silent,
    report: Callable[[Result], object] = unreported,
    clock: Clock | None = None,
) -> Result:
    """Reconcile and return the result; the verdicts are then in ``options.out / "verdicts"``.

    Args:
        options: what to reconcile, and how.
        spark: a session to use; built from the options when absent.
        progress: told the name of each stage as it begins.
        report: given the result before the history remembers the run.
        clock: tells how long the run took, and when it ended.

    Raises:
        UsageError: an option, a policy or a source is wrong.
        UnreadableInputError: a source exists but is not what it should be.
        MissingExtraError, PeerError: there is no Spark or no Java to run it, or Spark gave up.
    """
    ledger = counted_losses(options)
    policy = checked(options)
    start = starter(options, spark, progress)
    with workplace(options.out, options.history, start, clock or SystemClock()) as place:
        sides = _read(place, options, progress)
        result = judge(
            place,
            sides,
            policy,
            out=options.out,
            most_samples=options.samples,
            progress=progress,
            ledger=ledger,
            segments=options.segments,
        )
        return concluded(place, result, report)


def starter(
    options: ReconcileOptions, spark: SparkSession | None, progress: Callable[[str], None]
) -> Callable[[], SparkSession]:
    """Return how a run gets its session: the one given, else one built from the options."""

    def start() -> SparkSession:
        progress("starting Spark")
        return spark or _session(options)

    return start


def checked(options: ReconcileOptions) -> Policy:
    """Look at everything that can be wrong before Spark starts, make ``out``, and return the policy."""
    policy = _policy(options)
    check_start(master=options.master, driver_memory=options.driver_memory)
    check_inputs(options.native, options.otlp, reading(options))
    _make(options.out)
    return policy


def counted_losses(options: ReconcileOptions) -> LedgerRead | None:
    """Read the ledgers the options name; ``None`` when they name none."""
    return read_ledgers(options.ledger) if options.ledger else None


def _session(options: ReconcileOptions) -> SparkSession:
    files, _ = apart((*options.native, *options.otlp))
    return build_session(
        master=options.master,
        driver_memory=options.driver_memory,
        input_bytes=input_bytes(files),
        extra=options.conf,
    )


def concluded(place: Workplace, result: Result, report: Callable[[Result], object]) -> Result:
    """Add what the run cost and the trend it ends, have it reported, and let the history remember it."""
    result = replace(result, spark=place.cost(), run=place.past.run)
    line = run_line(result, run=place.past.run or 1, wall_ns=place.clock.wall_ns())
    if place.past.run is not None:
        result = replace(result, trend=tuple(map(trend_point, (*place.past.runs, line)[-TREND_RUNS:])))
    report(result)
    place.past.commit(line)
    return result


def _policy(options: ReconcileOptions) -> Policy:
    policy = read_policy(options.policy, profile=options.profile, native_writer=options.native_writer)
    if None not in (options.begin_ms, options.end_ms) and options.begin_ms > options.end_ms:  # type: ignore[operator]
        raise UsageError("--begin is later than --end; exchange them")
    grace_ms = policy.grace_ms if options.grace_ms is None else options.grace_ms
    return replace(policy, grace_ms=grace_ms, begin_ms=options.begin_ms, end_ms=options.end_ms, strict=options.strict)


def reading(options: ReconcileOptions) -> NormaliseOptions:
    """Return how both sides are read, as the options say."""
    return NormaliseOptions(
        native_writer=options.native_writer,
        msg_type_map=options.msg_type_map,
        charset=options.charset,
        otlp_format=options.otlp_format,
        client_config={} if options.client_config is None else read_properties(options.client_config),
    )


def _make(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be made: {error.strerror}; name a directory that can") from error


def _read(
    place: Workplace, options: ReconcileOptions, progress: Callable[[str], None]
) -> tuple[NormalisedSide, NormalisedSide]:
    progress("reading the native trace")
    how = reading(options)
    native = normalise_native(place.spark, options.native, place.work, options=how)
    progress("reading the spans")
    how = replace(how, trace_topics=native.trace_topics)
    return native, normalise_otlp(place.spark, options.otlp, place.work, options=how)
