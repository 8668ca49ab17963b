"""Judge a run: both sides' events and what is carried over, one verdict a key, a result.

Everything is written beside its final place first; an interrupted run leaves the last one's verdicts as they were.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F

from spark_jobs.exchange.packing import count_buckets, group_pieces, pack_pieces, pieces_of
from spark_jobs.exchange.spark import SparkEngine
from spark_jobs.explain.residue import RESIDUE
from spark_jobs.jobs.adding_up import added_up
from spark_jobs.jobs.asked import ask
from spark_jobs.jobs.attribute import Attribution
from spark_jobs.jobs.carry import assign, leave_open, payable, runs_of, take_over
from spark_jobs.jobs.explain import VERDICTS, Explanation, explain_residue
from spark_jobs.jobs.judge_tasks import BucketPlan, judge_bucket
from spark_jobs.jobs.places import with_message_ids
from spark_jobs.judging.counts import CountPlan, add_patterns, bucket_width_ms
from spark_jobs.judging.durations import merge_durations
from spark_jobs.judging.evidence import PER_STRATUM, TOTAL
from spark_jobs.policy.plan import make_plan
from spark_jobs.policy.text import policy_hash
from spark_jobs.reconcile import facts
from spark_jobs.sources.files import spark_path, spark_target
from spark_jobs.spark_schemas import VERDICT
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from spark_jobs.exchange.packing import Piece
    from spark_jobs.jobs.carry import Carried
    from spark_jobs.jobs.judge_tasks import Counted, Judged
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.jobs.workplace import Workplace
    from spark_jobs.judging.durations import Durations
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.result import Result
    from spark_jobs.sources.ledger import LedgerRead

__all__ = ["judge"]

_SIDES: Final = ("native", "otlp")


@dataclass(frozen=True, slots=True)
class _Verdicts:
    """The verdicts of a run where they belong, and what they come to."""

    frame: DataFrame
    counted: tuple[Counted, ...]
    durations: Durations


def judge(  # noqa: PLR0913 - what the run was asked for
    place: Workplace,
    sides: tuple[NormalisedSide, NormalisedSide],
    policy: Policy,
    *,
    out: Path,
    most_samples: int,
    progress: Callable[[str], None],
    ledger: LedgerRead | None = None,
) -> Result:
    """Judge every key of both sides and what earlier runs left open, write the verdicts and return what they add up to.

    What is open now is left in the history of ``place``, which does not remember it before it is told to.

    Args:
        place: where the run works.
        sides: native and OTLP, normalised.
        policy: what the run tolerates.
        out: the directory under which the verdicts replace those of the last run.
        most_samples: events laid open in the report, at most.
        progress: told the name of each stage as it begins.
        ledger: counted losses that may explain what nothing else does.
    """
    native, otlp = sides
    malformed = native.malformed.unionByName(otlp.malformed)
    progress("surveying both sides")
    taken = _named(take_over(place.spark, native, otlp, place.past), place)
    known = facts.read_facts(facts.overview(native.events, otlp.events, malformed).collect(), policy)
    plan = _bucket_plan(place, policy, known, most_samples)
    budgets = Attribution(payable(ledger, place.past), policy=policy, facts=known)
    how = Explanation(
        policy=policy,
        facts=known,
        traffic=_traffic(otlp, place),
        finish=partial(assign, plan.runs),
        last=budgets.explain if budgets.wanted else None,
    )
    progress("judging every key")
    found = _write_verdicts(place, _pieces(taken, sides, place), plan, how, out)
    progress("adding up")
    tally = add_patterns(
        (one.patterns for one in found.counted),
        malformed=sum(known.malformed.values()),
        scopes=known.scopes.values(),
    )
    leave_open(found.frame, taken, tally, past=place.past, known=known, policy=policy)
    place.past.keep_paid(budgets.spent())
    answered = ask(
        found.frame,
        found.counted,
        tally=tally,
        durations=found.durations,
        known=known,
        policy=policy,
        sides=sides,
        per_stratum=plan.counting.per_stratum,
    )
    result = added_up(answered, most_samples=most_samples, taken=taken)
    return replace(result, ledger=budgets.told(), policy_hash=policy_hash(policy))


def _bucket_plan(place: Workplace, policy: Policy, known: Facts, most_samples: int) -> BucketPlan:
    counting = CountPlan(
        width_ms=bucket_width_ms(known.first_ms, known.data_end_ms),
        data_end_ms=known.data_end_ms,
        grace_ms=policy.grace_ms,
        per_stratum=max(PER_STRATUM, most_samples * PER_STRATUM // TOTAL),
    )
    return BucketPlan(
        plan=make_plan(policy, data_end_ms=known.data_end_ms, horizon_ms=known.horizon_ms),
        runs=runs_of(place.past, known, policy),
        counting=counting,
        settled=_made(place.work / "judged"),
        residue=_made(place.work / "residue"),
    )


def _made(directory: Path) -> str:
    directory.mkdir()
    return str(directory.absolute())


def _named(taken: Carried, place: Workplace) -> Carried:
    """Give ids to the spans that know their message by its place, those that wait since an earlier run among them."""
    return replace(taken, otlp=with_message_ids(taken.otlp, taken.native, place.work, by_place=taken.by_place))


def _pieces(taken: Carried, sides: tuple[NormalisedSide, NormalisedSide], place: Workplace) -> list[Piece]:
    """Return the row groups to be judged: those that the readers wrote, or what was made of them since."""
    found = []
    for name, side, events in zip(_SIDES, sides, (taken.native, taken.otlp), strict=True):
        if side.files is not None and events is side.events:
            found += pieces_of(side.files, trace_topics=side.scoped_topics)
            continue
        found += pieces_of(_written(events, place.work / f"{name}-taken"), mentions=False)
        rows = side.malformed.selectExpr("side", "path", "line", "struct(mentions) as bad")
        if side.files is None:
            found += pieces_of(_written(rows, place.work / f"{name}-bad"), events=False)
        else:
            found += pieces_of(side.files, events=False)
    return found


def _traffic(otlp: NormalisedSide, place: Workplace) -> list[Piece]:
    """Return the row groups in which spans of trace traffic may lie; none where no span is."""
    if otlp.files is not None:
        return pieces_of(otlp.files, trace_topics=otlp.scoped_topics)
    rows = otlp.events.where(F.col("scope") == Reason.TRACE_TRAFFIC.value)
    return pieces_of(_written(rows, place.work / "traffic"))


def _written(rows: DataFrame, directory: Path) -> list[str]:
    rows.write.parquet(spark_target(directory.absolute()))
    return sorted(map(str, directory.absolute().glob("*.parquet")))


def _write_verdicts(place: Workplace, pieces: list[Piece], plan: BucketPlan, how: Explanation, out: Path) -> _Verdicts:
    """Judge the pieces, explain what has no reason, and put the verdicts where they belong."""
    engine = SparkEngine(place.spark, place.parallelism())
    buckets = count_buckets(pieces, engine.parallelism)
    answers: list[Judged] = engine.exchange(
        partial(pack_pieces, buckets), group_pieces(pieces, engine.parallelism), partial(judge_bucket, plan), buckets
    )
    counted = [one for answer in answers for one in answer.counted]
    settled, final = Path(plan.settled), out / VERDICTS
    answers.sort(key=lambda answer: answer.bucket)
    residue = pa.concat_tables([RESIDUE.empty_table(), *(answer.residue for answer in answers)])
    if len(residue):
        counted += explain_residue(place.spark, engine, how, plan, residue)
    if final.exists():
        shutil.rmtree(final)
    settled.rename(final)
    frame = place.spark.read.schema(VERDICT).parquet(spark_path(final))
    return _Verdicts(frame, tuple(counted), merge_durations(answer.durations for answer in answers))
