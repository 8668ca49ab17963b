"""Reconcile what was read: judge every key, explain what has no reason, add up, and leave the rest to the next run.

Everything is written beside its final place first; an interrupted run leaves the last one's verdicts as they were.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from bridge.storage import list_files, replace_tree
from spark_jobs.exchange.packing import count_buckets, count_together, group_pieces, pieces_of
from spark_jobs.explain.budgets import Budgets
from spark_jobs.explain.drop_budget import add_carried_over
from spark_jobs.graph.edges import GraphPart, add_up, build_graph, find_judged_span, merge_parts
from spark_jobs.graph.legs import choose_owners, read_verdict_legs
from spark_jobs.history.carried import carry_over_events
from spark_jobs.history.history import read_rows, summarise_run, trend_points
from spark_jobs.history.lifecycle import CLOSED, Runs, merge_closed
from spark_jobs.jobs.explain import Explanation, explain_residue, group_by_bucket
from spark_jobs.jobs.judge_tasks import BucketPlan, History, judge_buckets, merge_counted, merge_judged, pack_events
from spark_jobs.jobs.naming import with_message_ids
from spark_jobs.jobs.summarise import JudgedRun, find_malformed, find_messages, first_malformed, read_samples, summarise
from spark_jobs.jobs.workspace import record_engine
from spark_jobs.judging.counts import CountPlan, add_unjudged, bucket_width_ms
from spark_jobs.judging.evidence import PER_STRATUM, TOTAL
from spark_jobs.judging.facts import merge_surveys, read_facts
from spark_jobs.policy.plan import make_plan
from spark_jobs.policy.policy import hash_policy
from spark_jobs.session import delay_interrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bridge.storage import AnyPath
    from spark_jobs.exchange.packing import Piece
    from spark_jobs.history.carried import CarriedOver
    from spark_jobs.jobs.judge_tasks import Counted, Judged
    from spark_jobs.jobs.reading import EventSide
    from spark_jobs.jobs.workspace import Workspace
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.result import MessageEvent, Result
    from spark_jobs.schemas import LedgerRead

VERDICTS: Final = "verdicts"
"""The directory of the verdicts' parquet files under ``out``."""
_MOST_EDGES: Final = 200  # of each kind in the graph of a result
_JUDGED, _REPLACED = "judged", "replaced"
"""Below the work directory: the verdicts of this run, and those of the last one."""


def reconcile(  # noqa: PLR0913 - the run's options
    place: Workspace,
    sides: tuple[EventSide, EventSide],
    policy: Policy,
    *,
    most_samples: int,
    progress: Callable[[str], None],
    ledger: LedgerRead | None = None,
    trace_topics: Sequence[str] = (),
) -> Result:
    """Judge every key of both sides and of earlier runs' open ones, write the verdicts, return the summary.

    The keys open now go to the history of ``place``, which :func:`conclude` commits. ``ledger`` are counted losses;
    ``trace_topics`` are topics whose spans are trace traffic, though the files may not mark them.
    """
    native, otlp = sides
    engine, past = place.engine, place.past
    carried = carry_over_events(engine, past.carried_files(), [*native.files, *otlp.files], str(place.work / "carried"))
    surveyed = merge_surveys([native.survey, otlp.survey])
    known = read_facts(surveyed, policy.grace_ms, is_complete=policy.is_complete)
    budgets = Budgets(add_carried_over(ledger, past.used_drops()), policy=policy, facts=known)
    plan = _bucket_plan(place, policy, known, budgets, most_samples)
    how = Explanation(
        policy=policy, facts=known, traffic=pieces_of(otlp.files, trace_topics=trace_topics), budgets=budgets
    )
    progress("judging every key")
    pieces = _pieces(place, sides, carried, trace_topics)
    judged = _write_verdicts(place, pieces, again=carried.again, plan=plan, how=how)
    progress("adding up")
    counted = judged.counted
    add_unjudged(counted.tally, malformed=sum(known.malformed.values()), scopes=known.scopes.values())
    _leave(place, plan.history, counted, budgets)
    samples = read_samples(counted.samples, at_most=most_samples)
    run = JudgedRun(
        sides=sides,
        carried=carried,
        known=known,
        policy=policy,
        counted=counted,
        durations=judged.durations,
        samples=samples,
    )
    result = _summarise(place, run, group_by_bucket(list_files(plan.settled)), choose_owners(judged.owners))
    return replace(result, ledger=budgets.summarise(), policy_hash=hash_policy(policy))


def conclude(place: Workspace, result: Result, report: Callable[[Result], object], *, out: AnyPath) -> Result:
    """Add what the run cost and the trend it ends, have it reported, and commit it to the history.

    The verdicts replace those of the last run below ``out``. An interrupt waits until all of it is done: the reports of
    one run never stand beside the verdicts of another.
    """
    result = record_engine(replace(result, run=place.past.run), place.engine, place.started_ns, place.clock)
    line = summarise_run(result, run=place.past.run or 1, wall_ns=place.clock.wall_ns())
    if place.past.run is not None:
        result = replace(result, trend=trend_points((*place.past.runs, line)))
    with delay_interrupt():
        place.check_held()
        place.past.check_held()
        final = out / VERDICTS
        replace_tree(place.work / _JUDGED, final, spare=place.work / _REPLACED)
        report(result)
        place.past.commit(line)
    return result


def _bucket_plan(place: Workspace, policy: Policy, known: Facts, budgets: Budgets, most_samples: int) -> BucketPlan:
    past = place.past
    return BucketPlan(
        plan=make_plan(policy, data_end_ms=known.data_end_ms, horizon_ms=known.horizon_ms),
        runs=Runs(
            run=past.run,
            data_end_ms=known.data_end_ms,
            horizon_ms=known.horizon_ms,
            forget_after_ms=policy.forget_after_ms,
        ),
        counting=CountPlan(
            width_ms=bucket_width_ms(known.first_ms, known.data_end_ms),
            data_end_ms=known.data_end_ms,
            grace_ms=policy.grace_ms,
            per_stratum=max(PER_STRATUM, most_samples * PER_STRATUM // TOTAL),
        ),
        settled=place.make_directory(_JUDGED),
        residue=place.make_directory("residue"),
        history=History(
            events=past.make_events_directory(),
            closed=tuple(past.closed_files()),
            since_ms=(known.data_end_ms or 0) - policy.forget_after_ms,
        ),
        notes=budgets.notes,
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
        by_place=otlp.by_place + carried.by_position,
    )
    # Carried events are in these files, of both sides: where they came from, or beside the spans that were named.
    return [*pieces_of(native.files), *pieces_of(spans, trace_topics=trace_topics)]


def _write_verdicts(
    place: Workspace, pieces: list[Piece], *, again: Sequence[str], plan: BucketPlan, how: Explanation
) -> Judged:
    """Judge the pieces, explain what has no reason, and write the verdicts into the work directory."""
    engine = place.engine
    buckets = count_buckets(pieces, engine.parallelism, engine.bucket_rows)
    together = count_together(buckets, engine.parallelism)
    merge = partial(merge_judged, plan.counting)
    answers = engine.exchange(
        partial(pack_events, buckets, together, again),
        group_pieces(pieces, engine.parallelism),
        partial(judge_buckets, plan, buckets, together),
        -(-buckets // together),
        merge=merge,
    )
    judged = merge(answers)
    if not judged.residue:
        return judged
    residue = pa.concat_tables(table for _, table in sorted(judged.residue.items()))
    explained = explain_residue(engine, how, plan, residue, judged.settled)
    return replace(judged, counted=merge_counted(plan.counting, [judged.counted, explained]))


def _leave(place: Workspace, history: History, counted: Counted, budgets: Budgets) -> None:
    """Write what the next run takes over beside the events, which the tasks have written."""
    if history.events is None:
        return
    earlier = (read_rows(path, CLOSED) for path in history.closed)
    place.past.keep_closed(merge_closed([counted.closed, *earlier], since_ms=history.since_ms))
    place.past.keep_used_drops(budgets.used())


def _summarise(
    place: Workspace, run: JudgedRun, buckets: Sequence[tuple[str, ...]], owners: Mapping[tuple[str, str], str]
) -> Result:
    """Draw the graph, find the messages behind the samples and the first malformed rows, all by one map."""
    msg_ids = sorted({each.verdict["msg_id"] for each in run.samples if each.verdict["msg_id"] is not None})
    grace_ms, horizon_ms = run.policy.grace_ms, run.known.horizon_ms
    judged = find_judged_span(run.known.first_ms, None if horizon_ms is None else horizon_ms + grace_ms, grace_ms)
    files = [path for side in run.sides for path in side.files] if any(run.known.malformed.values()) else []
    read = partial(_read_details, msg_ids, owners, judged)
    details = _merge_details(place.engine.map(read, [*buckets, *files], merge=_merge_details))
    graph = build_graph(details.graph, sides=("native", "otlp"), judged=judged, at_most=_MOST_EDGES)
    return summarise(run, graph=graph, messages=details.messages, malformed=details.malformed)


@dataclass(frozen=True, slots=True)
class _Details:
    """Details of a run for its report: a part of the graph, the messages of the samples, the first malformed rows."""

    graph: GraphPart = field(default_factory=GraphPart)
    messages: Mapping[str, tuple[MessageEvent, ...]] = field(default_factory=dict)
    malformed: Sequence[dict[str, Any]] = ()


def _read_details(
    msg_ids: Sequence[str],
    owners: Mapping[tuple[str, str], str],
    judged: tuple[int | None, int | None],
    task: tuple[str, ...] | str,
) -> _Details:
    """Read the details in the verdicts of a bucket, or in a file of events."""
    if isinstance(task, str):
        return _Details(malformed=find_malformed(task))
    return _Details(add_up(read_verdict_legs(task), owners, judged), find_messages(task, msg_ids))


def _merge_details(parts: Sequence[_Details]) -> _Details:
    return _Details(
        merge_parts(part.graph for part in parts),
        {msg_id: events for part in parts for msg_id, events in part.messages.items()},
        first_malformed(row for part in parts for row in part.malformed),
    )
