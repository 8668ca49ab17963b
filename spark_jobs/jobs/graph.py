"""Draw the graph of one side or both: read, judge every event once, make it a leg, add legs up to edges.

Memory is bounded by the number of distinct edges, not by traces or messages.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pyarrow import parquet

from bridge.storage import committed, hold, make_directory, open_parquet
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import UsageError
from otel_mqtrace.client_properties import read_properties
from spark_jobs.exchange.local import LocalEngine
from spark_jobs.exchange.packing import count_buckets, group_pieces, open_blobs, pack_pieces, pieces_of
from spark_jobs.graph.edges import MOST_EDGES, add_up, build_graph, find_judged_span, merge_parts
from spark_jobs.graph.legs import LEG, choose_owners, find_owners, make_legs, merge_owners
from spark_jobs.graph.spans import count_direct_calls, tie_spans
from spark_jobs.jobs.naming import with_message_ids
from spark_jobs.jobs.reading import EventSide, ReadOptions, check_inputs, read_native, read_otlp
from spark_jobs.jobs.workspace import open_engine, work_directory
from spark_jobs.judging.facts import merge_surveys, read_facts
from spark_jobs.judging.kernel import judge_slices
from spark_jobs.policy.plan import make_plan
from spark_jobs.policy.policy import read_policy
from spark_jobs.session import configure_stores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import pyarrow as pa

    from bridge.storage import AnyPath
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.graph.edges import GraphPart
    from spark_jobs.judging.facts import Facts
    from spark_jobs.judging.plan import Plan
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.graph import Graph

_DRIVER_MEMORY: Final = "1g"


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphOptions:
    """Options of the graph. ``native`` and ``otlp`` are sources as on the command line; one may be empty.

    ``begin_ms`` and ``end_ms`` are epoch milliseconds, both included: an event belongs to the window if its start does;
    later events still show the fate of messages inside. ``master`` or ``conf`` choose Spark, else processes of this
    machine run the tasks.
    """

    native: tuple[str, ...] = ()
    otlp: tuple[str, ...] = ()
    out: AnyPath
    begin_ms: int | None = None
    end_ms: int | None = None
    grace_ms: int | None = None
    native_writer: str = "mqtrace"
    master: str | None = None
    driver_memory: str = _DRIVER_MEMORY
    msg_type_map: str = "a"
    otlp_format: str | None = None
    charset: str = "utf-8"
    client_config: Path | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    at_most: int = MOST_EDGES

    @property
    def needs_spark(self) -> bool:
        """Return whether an option was given that means something to Spark only."""
        return self.master is not None or bool(self.conf)


def _silent(_stage: str) -> None:
    """Report no progress."""


def run(options: GraphOptions, *, engine: Engine | None = None, progress: Callable[[str], None] = _silent) -> Graph:
    """Return the graph; ``options.out`` is left as it was.

    Raises:
        UsageError: an option or a source is wrong, or no source is given.
        UnreadableInputError: the content of a source is wrong.
        MissingExtraError, PeerError: Spark or Java is missing, or the engine failed.
    """
    configure_stores(options.conf, {"--native": options.native, "--otlp": options.otlp, "--out": [options.out]})
    _policy(options)
    reading = _reading(options)
    check_inputs(options.native, options.otlp, reading)
    opened = _engine(options, progress) if engine is None else nullcontext(engine)
    with hold(options.out, name="--out"), work_directory(options.out) as made, opened as chosen:
        work = str(made.absolute())
        sides = _read(chosen, options, reading, work, progress)
        return _draw(chosen, sides, options, work=work, progress=progress)


def _policy(options: GraphOptions) -> Policy:
    if not options.native and not options.otlp:
        raise UsageError("no source to draw: give --native SRC, --otlp SRC, or both")
    policy = read_policy(None, profile="mqtrace", native_writer=options.native_writer)
    if None not in (options.begin_ms, options.end_ms) and options.begin_ms > options.end_ms:  # type: ignore[operator]
        raise UsageError("--begin is later than --end: swap them")
    grace_ms = policy.grace_ms if options.grace_ms is None else options.grace_ms
    return replace(policy, grace_ms=grace_ms, begin_ms=options.begin_ms, end_ms=options.end_ms)


def _reading(options: GraphOptions) -> ReadOptions:
    return ReadOptions(
        native_writer=options.native_writer,
        msg_type_map=options.msg_type_map,
        charset=options.charset,
        otlp_format=options.otlp_format,
        client_config={} if options.client_config is None else read_properties(options.client_config),
    )


def _engine(options: GraphOptions, progress: Callable[[str], None]) -> AbstractContextManager[Engine]:
    """Return the engine that the options choose; this process by default."""
    if not options.needs_spark:
        return LocalEngine()
    from spark_jobs.session import build_session, check_start  # noqa: PLC0415  (pyspark, of the optional extra)

    check_start(master=options.master, driver_memory=options.driver_memory)

    def start() -> Any:
        progress("starting Spark")
        return build_session(master=options.master, driver_memory=options.driver_memory, extra=options.conf)

    return open_engine("spark", start, clock=SystemClock(), description="mqtrace graph")


def _read(
    engine: Engine, options: GraphOptions, reading: ReadOptions, work: str, progress: Callable[[str], None]
) -> tuple[EventSide, EventSide]:
    native = otlp = EventSide()
    if options.native:
        progress("reading the native trace")
        native = read_native(engine, options.native, f"{work}/native", options=reading)
        reading = replace(reading, trace_topics=native.trace_topics)
    if options.otlp:
        progress("reading the spans")
        otlp = read_otlp(engine, options.otlp, f"{work}/otlp", options=reading)
    if options.native and options.otlp:
        named = with_message_ids(engine, native.files, otlp.files, f"{work}/named", by_place=otlp.by_place)
        otlp = replace(otlp, files=named)
    return native, otlp


def _draw(
    engine: Engine,
    sides: tuple[EventSide, EventSide],
    options: GraphOptions,
    *,
    work: str,
    progress: Callable[[str], None],
) -> Graph:
    """Return the graph of the events read; ``work`` is a directory for files between tasks."""
    policy, (native, otlp) = _policy(options), sides
    progress("following links")
    spans = tie_spans(engine, otlp.files, f"{work}/tied")
    progress("surveying the input")
    known = read_facts(merge_surveys([native.survey, otlp.survey]), policy.grace_ms)
    plan = make_plan(policy, data_end_ms=known.data_end_ms, horizon_ms=known.horizon_ms)
    progress("making every event a leg")
    make_directory(f"{work}/legs")
    pieces = pieces_of([*native.files, *spans])
    buckets, tasks = count_buckets(pieces, engine.parallelism), group_pieces(pieces, engine.parallelism)
    legs = engine.exchange(partial(pack_pieces, buckets), tasks, partial(_judge_legs, plan, f"{work}/legs"), buckets)
    progress("adding up")
    given = tuple(name for name, some in (("native", options.native), ("otlp", options.otlp)) if some)
    judged = find_judged_span(known.first_ms, _settled_ms(known, policy, given), policy.grace_ms)
    owned = choose_owners(merge_owners(one.owners for one in legs))
    parts = engine.map(partial(_part_of, owned, judged), sorted(one.path for one in legs))
    direct = count_direct_calls(engine, otlp.files, begin_ms=options.begin_ms, end_ms=options.end_ms)
    return build_graph(merge_parts(parts), sides=given, judged=judged, direct=direct, at_most=options.at_most)


def _settled_ms(known: Facts, policy: Policy, given: tuple[str, ...]) -> int | None:
    """Return where the shorter side ends; where only one side has anything, where that ends."""
    if len(given) == 1 or known.horizon_ms is None:
        return known.data_end_ms
    return known.horizon_ms + policy.grace_ms


@dataclass(frozen=True, slots=True)
class _Legs:
    """A file of ``LEG``, all legs of each message that has any, and how its groups name their services."""

    path: str
    owners: pa.Table


def _judge_legs(plan: Plan, directory: str, bucket: int, blobs: Sequence[bytes]) -> _Legs:
    path = f"{directory}/part-{bucket:05d}.parquet"
    owners = []
    with committed(path) as unready, parquet.ParquetWriter(unready, LEG, compression="zstd") as file:
        for judged in judge_slices(open_blobs(blobs), plan):
            legs = make_legs(judged.verdicts)
            owners.append(find_owners(legs))
            file.write_table(legs)
    return _Legs(path, merge_owners(owners))


def _part_of(owned: Mapping[tuple[str, str], str], judged: tuple[int | None, int | None], path: str) -> GraphPart:
    legs = open_parquet(path).read(use_threads=False).cast(LEG).unify_dictionaries()
    return add_up(legs, owned, judged)
