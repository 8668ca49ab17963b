"""This module knows the graph run: read one side or both, make every event a leg once, add legs up to edges.

The only place of the graph that reads, writes or calls an action. Memory is bounded by the number of edges that are
told, not by traces or messages.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.client_properties import read_properties
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError
from spark_jobs.engine import as_meant, grouped
from spark_jobs.failure import told_by_cause
from spark_jobs.graph.calls import direct_calls
from spark_jobs.graph.edges import MOST_EDGES, most_frequent
from spark_jobs.graph.legs import LEG, legs
from spark_jobs.graph.owners import owners, read_owners
from spark_jobs.graph.ties import named_by_position, tied, unnamed
from spark_jobs.interrupt import unlogged
from spark_jobs.jobs.drawing import drawing, judged_span
from spark_jobs.jobs.normalise import NormaliseOptions, check_inputs, normalise_native, normalise_otlp
from spark_jobs.jobs.places import with_message_ids
from spark_jobs.policy.policy import read_policy
from spark_jobs.reconcile import facts
from spark_jobs.reconcile.together import apart as answers
from spark_jobs.reconcile.together import together
from spark_jobs.reconcile.verdicts import verdicts
from spark_jobs.session import DEFAULT_DRIVER_MEMORY, build_session, check_start
from spark_jobs.sources.files import input_bytes, spark_path, spark_target
from spark_jobs.sources.kafka.address import apart
from spark_jobs.spark_schemas import EVENT, MALFORMED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.graph import Graph

__all__ = ["GraphOptions", "run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """What to draw, and how. ``native`` and ``otlp`` are sources as the command line takes them; one may be empty.

    ``begin_ms`` and ``end_ms`` are epoch milliseconds, both included: an event belongs to the window when its start
    does; events outside of it still say what became of those inside.
    """

    native: tuple[str, ...] = ()
    otlp: tuple[str, ...] = ()
    out: Path
    begin_ms: int | None = None
    end_ms: int | None = None
    grace_ms: int | None = None
    native_writer: str = "mqtrace"
    master: str | None = None
    driver_memory: str = DEFAULT_DRIVER_MEMORY
    msg_type_map: str = "a"
    otlp_format: str | None = None
    charset: str = "utf-8"
    client_config: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    at_most: int = MOST_EDGES


def _silent(_stage: str) -> None:
    """Report no progress."""


def run(
    options: GraphOptions, *, spark: SparkSession | None = None, progress: Callable[[str], None] = _silent
) -> Graph:
    """Return the graph; ``options.out`` exists then, and is as it was otherwise.

    Args:
        options: what to draw, and how.
        spark: a session to use; built from the options when absent.
        progress: told the name of each stage as it begins.

    Raises:
        UsageError: an option or a source is wrong, or there is no source.
        UnreadableInputError: a source exists but is not what it should be.
        MissingExtraError, PeerError: there is no Spark or no Java to run it, or Spark gave up.
    """
    policy = _policy(options)
    check_start(master=options.master, driver_memory=options.driver_memory)
    check_inputs(options.native, options.otlp, _reading(options))
    try:
        options.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {options.out} cannot be made: {error.strerror}; name a directory that can") from error
    progress("starting Spark")
    with unlogged():
        session = spark or _session(options)
        with (
            # A cancelled job may still be writing there, which must not hide that it was cancelled.
            tempfile.TemporaryDirectory(prefix=".work-", dir=options.out, ignore_cleanup_errors=True) as work,
            as_meant(session),
            grouped(session, f"mqtrace-{SystemClock().monotonic_ns()}", "mqtrace graph"),
            told_by_cause(),
        ):
            return _drawn(session, options, policy, Path(work), progress)


def _session(options: GraphOptions) -> SparkSession:
    files, _ = apart((*options.native, *options.otlp))
    return build_session(
        master=options.master,
        driver_memory=options.driver_memory,
        input_bytes=input_bytes(files),
        extra=options.conf,
    )


def _policy(options: GraphOptions) -> Policy:
    if not options.native and not options.otlp:
        raise UsageError("nothing says what to draw: give --native SRC, --otlp SRC, or both")
    policy = read_policy(None, profile="mqtrace", native_writer=options.native_writer)
    if None not in (options.begin_ms, options.end_ms) and options.begin_ms > options.end_ms:  # type: ignore[operator]
        raise UsageError("--begin is later than --end; exchange them")
    grace_ms = policy.grace_ms if options.grace_ms is None else options.grace_ms
    return replace(policy, grace_ms=grace_ms, begin_ms=options.begin_ms, end_ms=options.end_ms)


def _reading(options: GraphOptions) -> NormaliseOptions:
    return NormaliseOptions(
        native_writer=options.native_writer,
        msg_type_map=options.msg_type_map,
        charset=options.charset,
        otlp_format=options.otlp_format,
        client_config={} if options.client_config is None else read_properties(options.client_config),
    )


def _drawn(
    spark: SparkSession, options: GraphOptions, policy: Policy, work: Path, progress: Callable[[str], None]
) -> Graph:
    native, otlp, malformed = _read(spark, options, work, progress)
    progress("following links")
    named = named_by_position(otlp)
    spans = tied(named) if options.otlp and unnamed(named).collect()[0]["unnamed"] else named
    progress("surveying the input")
    known = facts.read_facts(facts.overview(native, spans, malformed).collect(), policy)
    both = bool(options.native and options.otlp)
    progress("making every event a leg")
    once = verdicts(native, spans, malformed, policy=policy, facts=known)
    legs(once).write.parquet(spark_target((work / "legs").absolute()))
    progress("adding up")
    called = direct_calls(otlp, begin_ms=options.begin_ms, end_ms=options.end_ms)
    frame = spark.read.schema(LEG).parquet(spark_path(work / "legs"))
    drawn = drawing(
        frame,
        read_owners(owners(frame).collect()),
        sides=tuple(name for name, given in (("native", options.native), ("otlp", options.otlp)) if given),
        judged=judged_span(known.first_ms, _settled(known, policy) if both else known.data_end_ms, policy.grace_ms),
        at_most=options.at_most,
        direct=most_frequent(called, options.at_most) if options.otlp else None,
    )
    return drawn.read(answers(together(drawn.tables).collect()))


def _settled(known: Facts, policy: Policy) -> int | None:
    """Return where the shorter side ends; where only one side has anything, where that ends."""
    return known.data_end_ms if known.horizon_ms is None else known.horizon_ms + policy.grace_ms


def _read(
    spark: SparkSession, options: GraphOptions, work: Path, progress: Callable[[str], None]
) -> tuple[DataFrame, DataFrame, DataFrame]:
    nothing, reading = spark.createDataFrame([], EVENT), _reading(options)
    native = otlp = nothing
    malformed = spark.createDataFrame([], MALFORMED)
    if options.native:
        progress("reading the native trace")
        side = normalise_native(spark, options.native, work, options=reading)
        native, malformed = side.events, malformed.unionByName(side.malformed)
        reading = replace(reading, trace_topics=side.trace_topics)
    if options.otlp:
        progress("reading the spans")
        side = normalise_otlp(spark, options.otlp, work, options=reading)
        otlp, malformed = side.events, malformed.unionByName(side.malformed)
        if options.native:
            otlp = with_message_ids(otlp, native, work, by_place=side.by_place)
    return native, otlp, malformed
