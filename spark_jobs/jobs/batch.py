"""Reconcile: read both sides, judge every key, explain what has no reason, add up, leave the rest to the next run.

Everything is written beside its final place first; an interrupted run leaves the last one's verdicts as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from bridge.storage.paths import as_path, list_files, open_parquet, write_atomically
from otel_mqtrace._program import delay_interrupt
from spark_jobs.columns import take_groups
from spark_jobs.exchange.packing import count_buckets, count_together, group_pieces, open_blobs, pieces_of, plain_size
from spark_jobs.explain.budgets import Budgets
from spark_jobs.explain.evidence import TRAFFIC_COLUMNS, collect_evidence, collect_traffic, merge_evidence
from spark_jobs.explain.explainers import GAP_COLUMNS, NO_REASONS, explain, find_neighbours, merge_neighbours
from spark_jobs.explain.keys import RESIDUE
from spark_jobs.graph.edges import GraphPart, add_up, build_graph, find_judged_span
from spark_jobs.graph.legs import choose_owners, read_verdict_legs
from spark_jobs.history.carried import carry_over_events
from spark_jobs.history.history import read_rows, summarise_run, trend_points, write_rows
from spark_jobs.history.lifecycle import CLOSED, assign_lifecycle, merge_closed, read_closed, select_left_open
from spark_jobs.jobs.judge_tasks import CANDIDATES, BucketPlan, Counted, Judged, judge_buckets, pack_events
from spark_jobs.jobs.naming import with_message_ids
from spark_jobs.jobs.options import ReconcileOptions, check_options, no_progress, no_report
from spark_jobs.jobs.reading import read_sides
from spark_jobs.jobs.summarise import (
    JudgedRun,
    find_malformed,
    first_malformed,
    read_samples,
    read_timelines,
    summarise,
)
from spark_jobs.jobs.workspace import open_engine, open_workspace, record_engine, replace_outcome
from spark_jobs.jobs.writers import name_native_writers
from spark_jobs.judging.counts import add_unjudged
from spark_jobs.judging.facts import Survey, read_facts
from spark_jobs.policy.policy import hash_policy, make_plan
from spark_jobs.report.result import VERDICTS
from spark_jobs.schemas import VERDICT
from spark_jobs.sources.ledger import read_ledgers
from spark_jobs.sums import by, sum_of
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bridge.storage.paths import AnyPath
    from spark_jobs.exchange.engine import Engine
    from spark_jobs.exchange.packing import Piece
    from spark_jobs.explain.evidence import Evidence, WantedKeys
    from spark_jobs.explain.explainers import Neighbours
    from spark_jobs.history.carried import CarriedOver
    from spark_jobs.jobs.options import Report
    from spark_jobs.jobs.reading import EventSide
    from spark_jobs.jobs.workspace import Workspace
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.result import MalformedSample, Result, Sample
    from spark_jobs.schemas import LedgerRead


def run(
    options: ReconcileOptions, *, progress: Callable[[str], None] = no_progress, report: Report = no_report
) -> Result:
    """Read both sides, reconcile once and return the result; the verdicts are then in ``options.out / "verdicts"``.

    ``progress`` is called with the name of each stage, ``report`` with the result: it yields
    the texts of the reports by file name, and its block ends when they are in place of the last run's.

    Raises:
        UsageError: an option, a policy or a source is wrong.
        UnreadableInputError: the content of a source is wrong.
        MissingExtraError, PeerError: Spark or Java is missing, or Spark failed.
    """
    chosen = check_options(options)
    ledger = read_ledgers(options.ledger) if options.ledger else None
    options = chosen.options
    opener = partial(open_engine, chosen.engine, options, progress=progress)
    with open_workspace(options.out, options.history, opener) as workspace:
        how = name_native_writers(chosen.native, options.reading)
        sides = read_sides(workspace.engine, chosen.native, chosen.otlp, workspace.work, options=how, progress=progress)
        result = reconcile(workspace, sides, chosen.policy, progress=progress, ledger=ledger)
        result = replace(result, unknown_files=chosen.native.unknown | chosen.otlp.unknown)
        return conclude(workspace, result, report, out=options.out)


_EXPLAINED: Final = "explained-"
_TASK_ROWS: Final = 200
"""Most rows of the residue in a task: a file has some tens, and counting any number of them takes 16 ms or more."""

_OPENED_BYTES: Final = 4 << 20
"""Blobs of so many bytes are opened at a time: an open one of 32 rows takes 50 KiB, six times the size of its rows."""


def explain_residue(
    engine: Engine, judged: Judged, plan: BucketPlan, *, budgets: Budgets, traffic: Sequence[Piece]
) -> Counted:
    """Write the residue with its reasons beside the settled verdicts, and return its counts.

    ``budgets`` cover keys that no rule explains; ``traffic`` are row groups of the spans, among which the trace topic's
    own sends show ids.
    """
    residue = open_residue(judged.residue)
    files = [file for file in list_files(plan.residue) if not as_path(file).name.startswith(CANDIDATES)]
    buckets = group_by_bucket([*list_files(plan.settled), *files])
    found = explain(
        residue,
        policy=plan.policy,
        facts=plan.facts,
        collect=lambda wanted: engine.map(partial(_collect, wanted), [*buckets, *traffic], merge=merge_evidence),
        find_neighbours=lambda wanted: engine.map(partial(_find_neighbours, wanted), buckets, merge=merge_neighbours),
    )
    if budgets.is_wanted:
        found = budgets.spend(residue, found, judged.settled)
    reasons = pa.table({"reason": found.reasons, "reason_detail": found.details})
    sizes = [open_parquet(file).metadata.num_rows for file in files]
    ends = np.cumsum(sizes).tolist()
    # Taken, as a slice is pickled with all the memory that it is a part of.
    parts = [
        (file, reasons.take(np.arange(end - size, end))) for file, size, end in zip(files, sizes, ends, strict=True)
    ]
    most = min(_TASK_ROWS, -(-len(residue) // engine.parallelism))
    tasks = [*take_groups(parts, lambda part: (len(part[1]), 0), rows=most)]
    return sum_of(Counted, engine.map(partial(_write_reasons, plan), tasks, merge=partial(sum_of, Counted)))


def open_residue(blobs: Mapping[int, bytes]) -> pa.Table:
    """Return the rows of all buckets' blobs in the order of the buckets, each column as one array."""
    in_order = (blob for _, blob in sorted(blobs.items()))
    groups = take_groups(in_order, lambda blob: (0, plain_size(blob)), size=_OPENED_BYTES)
    parts = [pa.concat_tables(open_blobs([blob]) for blob in some).combine_chunks() for some in groups]
    return pa.concat_tables(parts).combine_chunks()


def group_by_bucket(files: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the files of each bucket: all verdicts of a message are in one of these."""
    found: dict[str, list[str]] = {}
    for file in files:
        found.setdefault(as_path(file).name.removeprefix(_EXPLAINED), []).append(file)
    return [tuple(each) for _, each in sorted(found.items())]


def _collect(wanted: WantedKeys, part: Any) -> Evidence:
    if isinstance(part, tuple):
        return collect_evidence(pa.concat_tables([_read(file, wanted.columns) for file in part]), wanted)
    file = open_parquet(part.path)
    table = file.read_row_group(part.group, columns=["scope", "topic", *TRAFFIC_COLUMNS], use_threads=False)
    traffic: Any = pc.equal(table["scope"], pa.scalar(Reason.TRACE_TRAFFIC.value))
    if part.trace_topics:
        traffic = pc.or_kleene(traffic, pc.is_in(table["topic"], pa.array(part.trace_topics, pa.string())))
    return collect_traffic(table.filter(traffic), wanted)


def _find_neighbours(wanted: pa.Table, files: tuple[str, ...]) -> Neighbours:
    return find_neighbours(pa.concat_tables([_read(file, GAP_COLUMNS) for file in files]), wanted)


def _read(file: str, columns: Sequence[str]) -> pa.Table:
    # read_table() would take the fields of a side out of it
    table: pa.Table = open_parquet(file).read(columns=list(columns), use_threads=False)
    return table


def _write_reasons(plan: BucketPlan, parts: Sequence[tuple[str, pa.Table]]) -> Counted:
    closed = read_closed(plan.closed)
    verdicts = pa.concat_tables(_write_again(plan, closed, *part) for part in parts)
    return Counted.of(verdicts, plan)


def _write_again(plan: BucketPlan, closed: pa.Table | None, path: str, reasons: pa.Table) -> pa.Table:
    verdicts = open_parquet(path).read(use_threads=False).combine_chunks()
    # The kernel took these keys for open ones; their age is found again.
    runs = [pc.struct_field(verdicts[side], "first_seen_run") for side in ("native", "otlp")]
    found = reasons.append_column("first_seen_run", pc.min_element_wise(*runs).combine_chunks())
    for column in found.column_names:
        verdicts = verdicts.set_column(verdicts.column_names.index(column), column, found[column])
    verdicts = assign_lifecycle(verdicts, plan.policy, plan.facts, run=plan.run, closed=closed)
    name = f"{_EXPLAINED}{as_path(path).name}"
    with write_atomically(str(as_path(plan.settled) / name)) as unready:
        parquet.write_table(verdicts, unready, compression="zstd", write_statistics=False)
    candidates = as_path(path).with_name(f"{CANDIDATES}{as_path(path).name}")
    if plan.left_open is not None and candidates.exists():
        left = select_left_open(open_parquet(candidates).read(use_threads=False), verdicts)
        if len(left):
            write_rows(left, str(as_path(plan.left_open) / name))
    return verdicts


_MOST_EDGES: Final = 200  # of each kind in the graph of a result


def reconcile(  # noqa: PLR0913 - the run's options
    place: Workspace,
    sides: tuple[EventSide, EventSide],
    policy: Policy,
    *,
    progress: Callable[[str], None],
    ledger: LedgerRead | None = None,
    trace_topics: Sequence[str] = (),
    has_earlier_input: bool = False,
    read_again_from_ms: int | None = None,
) -> Result:
    """Judge every key of both sides and of earlier runs' open ones, write the verdicts, return the summary.

    The keys open now go to the history of ``place``, which :func:`conclude` commits. ``ledger`` are counted losses;
    ``trace_topics`` are topics whose spans are trace traffic, though the files may not mark them.
    ``has_earlier_input``: the sides include all that earlier runs of the history read. ``read_again_from_ms``: the next
    run reads events from then on again; ``None`` if it reads none.
    """
    native, otlp = sides
    engine, past = place.engine, place.past
    carried = carry_over_events(engine, past.carried_files(), [*native.files, *otlp.files], str(place.work / "carried"))
    surveyed = sum_of(Survey, [native.survey, otlp.survey])
    known = read_facts(surveyed, policy.grace_ms, is_complete=policy.is_complete)
    known = replace(known, trace_topics=native.trace_topics)
    known = replace(known, has_earlier_input=has_earlier_input, read_again_from_ms=read_again_from_ms)
    budgets = Budgets(ledger, earlier=past.used_drops(), policy=policy, facts=known)
    plan = _bucket_plan(place, policy, known, budgets)
    progress("judging every key")
    pieces = _pieces(place, sides, carried, trace_topics)
    judged = _judge(engine, pieces, carried.again, plan)
    if judged.residue:
        has_traffic = known.scopes["otlp"].get(Reason.TRACE_TRAFFIC.value)  # spans that sent trace messages
        traffic = pieces_of(otlp.files, trace_topics=trace_topics) if has_traffic else []
        explained = explain_residue(engine, judged, plan, budgets=budgets, traffic=traffic)
        judged = replace(judged, counted=sum_of(Counted, [judged.counted, explained]))
    elif budgets.is_wanted:  # halves of deliveries use up counted losses, too
        budgets.spend(RESIDUE.empty_table(), NO_REASONS, judged.settled)
    progress("adding up")
    counted = judged.counted
    add_unjudged(counted.tally, malformed=sum(known.malformed.values()), scopes=known.scopes.values())
    if plan.left_open is not None:  # the tasks have written the events that the next run takes over
        earlier = (read_rows(path, CLOSED) for path in plan.closed)
        place.past.keep_closed(merge_closed([counted.closed, *earlier], since_ms=plan.forget_before_ms))
        place.past.keep_used_drops(budgets.used())
    samples = read_samples(counted.samples.rows)
    run = JudgedRun(sides=sides, carried=carried, known=known, policy=policy, judged=judged, samples=samples)
    buckets = group_by_bucket(list_files(plan.settled))
    result = _summarise(place, run, buckets)
    if not buckets:  # Spark and pandas do not read a directory without a parquet file
        write_rows(VERDICT.empty_table(), str(as_path(plan.settled) / "part-00000.parquet"))
    return replace(result, ledger=budgets.summarise(), policy_hash=hash_policy(policy))


def conclude(place: Workspace, result: Result, report: Report, *, out: AnyPath) -> Result:
    """Add what the run cost and the trend it ends, have it reported, and commit it to the history.

    Verdicts and reports replace those of the last run below ``out`` once all are written. A run that is killed
    meanwhile leaves no ``result.json``.
    """
    result = record_engine(replace(result, run=place.past.run), place)
    line = summarise_run(result, run=place.past.run or 1, wall_ns=place.clock.wall_ns())
    if place.past.run is not None:
        result = replace(result, trend=trend_points((*place.past.runs, line)))
    with delay_interrupt():
        place.check_held()
        place.past.check_held()
        with report(result) as texts:
            replace_outcome(texts, place.work, out, has_verdicts=True)
        place.past.commit(line)
    return result


def _bucket_plan(place: Workspace, policy: Policy, known: Facts, budgets: Budgets) -> BucketPlan:
    past = place.past
    return BucketPlan(
        policy=policy,
        facts=known,
        plan=make_plan(policy, known),
        settled=place.make_directory(VERDICTS),
        residue=place.make_directory("residue"),
        run=past.run,
        closed=tuple(past.closed_files()),
        left_open=past.make_events_directory(),
        near=budgets.near,
    )


def _pieces(
    place: Workspace, sides: tuple[EventSide, EventSide], carried: CarriedOver, trace_topics: Sequence[str]
) -> list[Piece]:
    """Return the row groups to be judged, with spans named by native sends."""
    native, otlp = sides
    spans = with_message_ids(
        place.engine,
        (*native.files, *carried.files),
        (*otlp.files, *carried.files),
        str(place.work / "named"),
        by_place=otlp.by_place + carried.by_place,
    )
    # Carried events are in these files, of both sides: where they came from, or beside the spans that were named.
    return [*pieces_of(native.files), *pieces_of(spans, trace_topics=trace_topics)]


def _judge(engine: Engine, pieces: list[Piece], again: Sequence[str], plan: BucketPlan) -> Judged:
    """Judge the pieces and write the verdicts into the work directory, the residue apart."""
    buckets = count_buckets(pieces, engine.parallelism, engine.bucket_rows)
    together = count_together(buckets, engine.parallelism)
    answers = engine.exchange(
        partial(pack_events, buckets, together, again),
        group_pieces(pieces, engine.parallelism),
        partial(judge_buckets, plan, buckets, together),
        -(-buckets // together),
        merge=partial(sum_of, Judged),
    )
    return sum_of(Judged, answers)


def _summarise(place: Workspace, run: JudgedRun, buckets: Sequence[tuple[str, ...]]) -> Result:
    """Draw the graph, find the messages behind the samples and the first malformed rows, all by one map."""
    msg_ids = sorted({each.verdict["msg_id"] for each in run.samples if each.verdict["msg_id"] is not None})
    grace_ms, horizon_ms = run.policy.grace_ms, run.known.horizon_ms
    judged = find_judged_span(run.known.first_ms, None if horizon_ms is None else horizon_ms + grace_ms, grace_ms)
    files = [path for side in run.sides for path in side.files] if any(run.known.malformed.values()) else []
    read = partial(_read_details, msg_ids, choose_owners(run.judged.owners), judged)
    details = sum_of(_Details, place.engine.map(read, [*buckets, *files], merge=partial(sum_of, _Details)))
    graph = build_graph(details.graph, sides=("native", "otlp"), judged=judged, at_most=_MOST_EDGES)
    return summarise(run, graph=graph, messages=details.messages, malformed=details.malformed)


@dataclass(frozen=True, slots=True)
class _Details:
    """Details of a run for its report: a part of the graph, the messages of the samples, the first malformed rows."""

    graph: GraphPart = field(default_factory=GraphPart)
    messages: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    malformed: Sequence[MalformedSample] = field(default=(), metadata=by(lambda parts: first_malformed(chain(*parts))))


def _read_details(
    msg_ids: Sequence[str],
    owners: Mapping[tuple[str, str], str],
    judged: tuple[int | None, int | None],
    task: tuple[str, ...] | str,
) -> _Details:
    if isinstance(task, str):
        return _Details(malformed=find_malformed(task))
    return _Details(add_up(read_verdict_legs(task), owners, judged), read_timelines(task, msg_ids))
