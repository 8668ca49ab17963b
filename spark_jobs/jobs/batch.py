"""This module knows the batch run: read both sides, judge every key once, add up, say what the run is worth.

With ``jobs.normalise`` the only place of a reconciliation that reads, writes or calls an action. Everything is written
beside its final place first; an interrupted run leaves the last one's verdicts as they were.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bridge.client_properties import read_properties
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError
from spark_jobs.failure import told_by_cause
from spark_jobs.interrupt import job_group, unlogged
from spark_jobs.jobs.measure import measured
from spark_jobs.jobs.normalise import NormaliseOptions, check_inputs, normalise_native, normalise_otlp
from spark_jobs.reconcile import balance, evidence, facts, gates, tally
from spark_jobs.reconcile.policy import Policy, read_policy
from spark_jobs.reconcile.verdicts import verdicts
from spark_jobs.report.result import MalformedSample, Offsets, Result, Span, SparkCost, TimeBucket
from spark_jobs.session import DEFAULT_DRIVER_MEMORY, DEFAULT_MASTER, build_session, check_start
from spark_jobs.sources.files import spark_path, spark_target
from spark_jobs.sources.lines import line_numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.jobs.normalise import NormalisedSide

__all__ = ["VERDICTS", "ReconcileOptions", "run"]

VERDICTS: Final = "verdicts"
"""The directory of the verdicts' parquet files under ``out``."""

_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileOptions:
    """What to reconcile, and how. ``native`` and ``otlp`` are sources as the command line takes them.

    ``grace_ms`` of ``None`` leaves it to the policy. ``begin_ms`` and ``end_ms`` are epoch milliseconds, both included:
    a key belongs to the window when its start does, by whichever side knows it.
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
    master: str = DEFAULT_MASTER
    driver_memory: str = DEFAULT_DRIVER_MEMORY
    msg_type_map: str = "a"
    otlp_format: str | None = None
    charset: str = "utf-8"
    client_config: Path | None = None
    samples: int = evidence.TOTAL  # events laid open in the report, at most
    history: Path | None = None


def _silent(_stage: str) -> None:
    """Report no progress."""


def run(
    options: ReconcileOptions, *, spark: SparkSession | None = None, progress: Callable[[str], None] = _silent
) -> Result:
    """Reconcile and return the result; the verdicts are then in ``options.out / "verdicts"``.

    Args:
        options: what to reconcile, and how.
        spark: a session to use; built from the options when absent.
        progress: told the name of each stage as it begins.

    Raises:
        UsageError: an option, a policy or a source is wrong.
        UnreadableInputError: a source exists but is not what it should be.
        MissingExtraError, PeerError: there is no Spark or no Java to run it, or Spark gave up.
    """
    clock = SystemClock()
    started = clock.monotonic_ns()
    policy = _policy(options)
    check_start(master=options.master, driver_memory=options.driver_memory)
    check_inputs(options.native, options.otlp, _reading(options))
    _make(options.out)
    progress("starting Spark")
    group = f"mqtrace-{started}"
    with unlogged():
        session = spark or build_session(master=options.master, driver_memory=options.driver_memory)
        with (
            # A cancelled job may still be writing there, which must not hide that it was cancelled.
            tempfile.TemporaryDirectory(prefix=".work-", dir=options.out, ignore_cleanup_errors=True) as work,
            job_group(session, group, "mqtrace reconcile"),
            told_by_cause(),
        ):
            result = _reconciled(session, options, policy, Path(work), progress)
    cost = _cost(session, group, (clock.monotonic_ns() - started) / _NANOSECONDS)
    return replace(result, spark=cost)


def _policy(options: ReconcileOptions) -> Policy:
    policy = read_policy(options.policy, profile=options.profile, native_writer=options.native_writer)
    if None not in (options.begin_ms, options.end_ms) and options.begin_ms > options.end_ms:  # type: ignore[operator]
        raise UsageError("--begin is later than --end; exchange them")
    grace_ms = policy.grace_ms if options.grace_ms is None else options.grace_ms
    return replace(policy, grace_ms=grace_ms, begin_ms=options.begin_ms, end_ms=options.end_ms, strict=options.strict)


def _reading(options: ReconcileOptions) -> NormaliseOptions:
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


def _reconciled(
    spark: SparkSession, options: ReconcileOptions, policy: Policy, work: Path, progress: Callable[[str], None]
) -> Result:
    progress("reading the native trace")
    reading = _reading(options)
    native = normalise_native(spark, options.native, work, options=reading)
    progress("reading the spans")
    reading = replace(reading, trace_topics=native.trace_topics)
    otlp = normalise_otlp(spark, options.otlp, work, options=reading)
    malformed = native.malformed.unionByName(otlp.malformed)

    progress("surveying both sides")
    survey = facts.overview(native.events, otlp.events, malformed)
    known = facts.read_facts(survey.collect(), policy)
    progress("judging every key")
    judged = _write_verdicts(
        spark, verdicts(native.events, otlp.events, malformed, policy=policy, facts=known), options.out, work
    )
    progress("adding up")
    return _told(judged, known, policy, (native, otlp), most_samples=options.samples)


def _write_verdicts(spark: SparkSession, frame: DataFrame, out: Path, work: Path) -> DataFrame:
    fresh, final = work / VERDICTS, out / VERDICTS
    frame.write.parquet(spark_target(fresh.absolute()))
    if final.exists():
        shutil.rmtree(final)
    fresh.rename(final)
    return spark.read.schema(frame.schema).parquet(spark_path(final))


def _told(
    judged: DataFrame,
    known: facts.Facts,
    policy: Policy,
    sides: tuple[NormalisedSide, NormalisedSide],
    *,
    most_samples: int,
) -> Result:
    width_ms = tally.bucket_width_ms(known)
    counts = tally.read_tally(tally.patterns(judged, width_ms, known.data_end_ms).collect(), known)
    native, otlp = (_side_read(side) for side in sides)
    inputs, conservation = balance.balanced(native, otlp, counts, known)
    gated = gates.judged(counts, known, policy)
    doubt = gates.doubt(counts, known, policy)
    verdict, code = gates.concluded(gated, policy, holds=conservation.holds, conclusive=doubt is None)
    return Result(
        verdict=verdict.value,
        exit_code=int(code),
        window=_window(policy, known),
        horizon_ms=known.horizon_ms,
        grace_ms=policy.grace_ms,
        profile=policy.profile.name,
        native_writer=policy.native_writer,
        inputs=inputs,
        status=dict(counts.status),
        status_by_kind={kind: dict(found) for kind, found in counts.status_by_kind.items()},
        reason=dict(counts.reason),
        reason_detail=dict(counts.reason_detail),
        gates=gated,
        conservation=conservation,
        loss=gates.losses(counts),
        timeline=_timeline(counts, width_ms),
        malformed=_malformed(sides, known),
        versions=_versions(judged.sparkSession),
        duplicates=dict(counts.duplicates),
        timing=dict(counts.timing),
        doubt=doubt,
        **measured(judged, counts, most_samples=most_samples),
    )


def _side_read(side: NormalisedSide) -> balance.SideRead:
    return balance.SideRead(
        sources=side.sources,
        layouts=side.layouts,
        records_read=side.records_read,
        exploded=side.exploded,
        truncated_tails=side.truncated_tails,
        last_event_ms=side.last_event_ms,
        offsets=tuple(
            Offsets(source=str(one.address), partition=one.partition, first=one.first, end=one.end)
            for one in side.offsets
        ),
        offsets_without_message=side.offsets_without_message,
    )


def _window(policy: Policy, known: facts.Facts) -> Span:
    begin_ms = known.first_ms if policy.begin_ms is None else policy.begin_ms
    return Span(begin_ms=begin_ms, end_ms=known.data_end_ms if policy.end_ms is None else policy.end_ms)


def _malformed(sides: tuple[NormalisedSide, NormalisedSide], known: facts.Facts) -> tuple[MalformedSample, ...]:
    if not any(known.malformed.values()):
        return ()
    frame = sides[0].malformed.unionByName(sides[1].malformed)
    return _located(evidence.read_malformed(evidence.malformed_sample(frame).collect()))


def _located(pieces: tuple[MalformedSample, ...]) -> tuple[MalformedSample, ...]:
    """Give samples from files too large to be read whole their line, where exactly one line begins with their text."""
    wanted: dict[str, set[str]] = {}
    for piece in pieces:
        if piece.line is None and piece.text:
            wanted.setdefault(piece.path, set()).add(piece.text)
    found = {path: line_numbers(Path(path), texts) for path, texts in wanted.items()}

    def placed(piece: MalformedSample) -> MalformedSample:
        numbers = found.get(piece.path, {}).get(piece.text, ()) if piece.line is None else ()
        return replace(piece, line=numbers[0]) if len(numbers) == 1 else piece

    return tuple(map(placed, pieces))


def _timeline(counts: tally.Tally, width_ms: int) -> tuple[TimeBucket, ...]:
    return tuple(
        TimeBucket(start_ms=start_ms, width_ms=width_ms, status=dict(found))
        for start_ms, found in sorted(counts.buckets.items())
    )


def _versions(spark: SparkSession) -> dict[str, str]:
    java = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")  # type: ignore[union-attr]  # noqa: SLF001
    return {"otel-mqtrace": version("otel-mqtrace"), "spark": spark.version, "java": str(java)}


def _cost(spark: SparkSession, group: str, wall_seconds: float) -> SparkCost:
    tracker = spark.sparkContext.statusTracker()
    jobs = [info for job in tracker.getJobIdsForGroup(group) if (info := tracker.getJobInfo(job))]
    stages = {stage for info in jobs for stage in info.stageIds}
    return SparkCost(jobs=len(jobs), stages=len(stages), wall_seconds=round(wall_seconds, 3))
