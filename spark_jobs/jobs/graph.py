"""Draw the graph of one side or both: read, judge every event once, make it a leg, add legs up to edges.

Memory is bounded by the number of distinct edges, not by traces or messages.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from bridge.otlp.detect import Side
from bridge.storage.locks import hold
from bridge.storage.paths import list_files, make_directory, open_parquet
from otel_mqtrace._errors import UsageError
from spark_jobs.exchange.packing import count_buckets, group_pieces, open_blobs, pack_pieces, pieces_of
from spark_jobs.graph.edges import GraphPart, add_up, build_graph, find_judged_span
from spark_jobs.graph.legs import LEG, choose_owners, find_owners, make_legs
from spark_jobs.jobs.naming import tie_spans, with_message_ids
from spark_jobs.jobs.options import build_policy, check_places, no_progress
from spark_jobs.jobs.reading import open_rows, read_sides
from spark_jobs.jobs.summarise import find_malformed, first_malformed
from spark_jobs.jobs.workspace import open_engine, replace_outcome, work_directory
from spark_jobs.judging.facts import Survey, read_facts
from spark_jobs.judging.kernel import judge_slices
from spark_jobs.policy.policy import make_plan
from spark_jobs.session import DEFAULT_DRIVER_MEMORY, check_start, configure_stores
from spark_jobs.sources.files import find_inputs
from spark_jobs.sums import sum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark_jobs.exchange.engine import Engine
    from spark_jobs.graph.legs import Owners
    from spark_jobs.jobs.options import ReconcileOptions
    from spark_jobs.jobs.reading import EventSide
    from spark_jobs.judging.facts import Facts
    from spark_jobs.judging.plan import Plan
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.graph import Graph


def run(options: ReconcileOptions, *, progress: Callable[[str], None] = no_progress) -> Graph:
    """Return the graph, and write its files (``GRAPH_FILES``) into ``options.out``.

    The sources, the window and how to read them count, and where Spark runs; writers are not detected.

    Raises:
        UsageError: an option or a source is wrong, or no source is given.
        UnreadableInputError: the content of a source is wrong.
        MissingExtraError, PeerError: Spark or Java is missing, or the engine failed.
    """
    from spark_jobs.report.graph_files import GRAPH_FILES, render_files  # noqa: PLC0415  (tasks do without)

    configure_stores(options.conf, {"--native": options.native, "--otlp": options.otlp, "--out": [options.out]})
    if not options.native and not options.otlp:
        raise UsageError("no source to draw: give --native SRC, --otlp SRC, or both")
    policy, how = build_policy(options), options.reading
    inputs = (
        find_inputs(Side.NATIVE, options.native, how.client_config),
        find_inputs(Side.OTLP, options.otlp, how.client_config, layout=how.otlp_format),
    )
    check_places(options, GRAPH_FILES)
    name = "local"
    if options.master is not None or options.conf or options.driver_memory != DEFAULT_DRIVER_MEMORY:
        name = "spark"
        check_start(master=options.master, driver_memory=options.driver_memory)
    opened = open_engine(name, options, progress=progress, description="mqtrace graph")
    with hold(options.out, name="--out"), work_directory(options.out) as made, opened as engine:
        work = made.absolute()
        native, otlp = read_sides(engine, *inputs, work, options=how, progress=progress)
        if native.sources and otlp.sources:
            named = with_message_ids(engine, native.files, otlp.files, f"{work}/named", by_place=otlp.by_place)
            otlp = replace(otlp, files=named)
        drawn = _draw(engine, (native, otlp), policy, work=str(work), progress=progress)
        replace_outcome(render_files(drawn), work, options.out, has_verdicts=False)
        malformed = sum(sum(side.survey.malformed.values()) for side in (native, otlp))
        found = engine.map(find_malformed, [*native.files, *otlp.files]) if malformed else []
        first = [
            f"{piece.path}{'' if piece.line is None else f':{piece.line}'}: {piece.reason}"
            for piece in first_malformed(chain(*found))[:1]
        ]
    return replace(
        drawn,
        unknown_files=frozenset().union(*(side.unknown for side in inputs)),
        malformed=malformed,
        first_malformed="".join(first),
        truncated_tails=native.truncated_tails + otlp.truncated_tails,
    )


def _draw(
    engine: Engine, sides: tuple[EventSide, EventSide], policy: Policy, *, work: str, progress: Callable[[str], None]
) -> Graph:
    """Return the graph of the events read; ``work`` is a directory for files between tasks."""
    native, otlp = sides
    progress("following links")
    spans = tie_spans(engine, otlp.files, f"{work}/tied")
    progress("surveying the input")
    known = read_facts(sum_of(Survey, [native.survey, otlp.survey]), policy.grace_ms)
    plan = make_plan(policy, known)
    progress("following every message")
    directory = f"{work}/legs"
    make_directory(directory)
    pieces = pieces_of([*native.files, *spans])
    buckets, tasks = count_buckets(pieces, engine.parallelism), group_pieces(pieces, engine.parallelism)
    owners = engine.exchange(partial(pack_pieces, buckets), tasks, partial(_write_legs, plan, directory), buckets)
    progress("adding up")
    given = tuple(name for name, side in (("native", native), ("otlp", otlp)) if side.sources)
    judged = find_judged_span(known.first_ms, _settled_ms(known, policy, given), policy.grace_ms)
    parts = engine.map(partial(_add_up, choose_owners(sum_of(dict, owners)), judged), list_files(directory))
    return build_graph(sum_of(GraphPart, parts), sides=given, judged=judged)


def _settled_ms(known: Facts, policy: Policy, given: tuple[str, ...]) -> int | None:
    """Return where the shorter side ends; where only one side has anything, where that ends."""
    if len(given) == 1 or known.horizon_ms is None:
        return known.data_end_ms
    return known.horizon_ms + policy.grace_ms


def _write_legs(plan: Plan, directory: str, bucket: int, blobs: Sequence[bytes]) -> Owners:
    """Write the legs of a bucket, all of a message in one file; return how their groups name their services."""
    owners = []
    with open_rows(f"{directory}/part-{bucket:05d}.parquet") as write:
        for judged in judge_slices(open_blobs(blobs), plan):
            legs = make_legs(judged.verdicts)
            owners.append(find_owners(legs))
            write(legs)
    return sum_of(dict, owners)


def _add_up(owned: Mapping[tuple[str, str], str], judged: tuple[int | None, int | None], path: str) -> GraphPart:
    legs = open_parquet(path).read(use_threads=False).cast(LEG).unify_dictionaries()
    return add_up(legs, owned, judged)
