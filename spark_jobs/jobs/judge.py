"""This module knows the judging of a run: both sides' events and what is carried over → one verdict a key → a result.

Everything is written beside its final place first; an interrupted run leaves the last one's verdicts as they were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_jobs.jobs.adding_up import added_up
from spark_jobs.jobs.asked import Judged, counted
from spark_jobs.jobs.attribute import Attribution
from spark_jobs.jobs.carry import leave_open, payable, take_over, told
from spark_jobs.jobs.explain import Explanation, written_verdicts
from spark_jobs.jobs.places import with_message_ids
from spark_jobs.jobs.set_aside import set_aside
from spark_jobs.reconcile import facts
from spark_jobs.reconcile.masking import masked_keys
from spark_jobs.reconcile.policy_text import policy_hash
from spark_jobs.reconcile.verdicts import verdicts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from spark_jobs.jobs.carry import Carried
    from spark_jobs.jobs.normalise import NormalisedSide
    from spark_jobs.jobs.workplace import Workplace
    from spark_jobs.reconcile.policy import Policy
    from spark_jobs.report.result import Result
    from spark_jobs.sources.ledger import LedgerRead

__all__ = ["judge"]


def judge(  # noqa: PLR0913 - what the run was asked for
    place: Workplace,
    sides: tuple[NormalisedSide, NormalisedSide],
    policy: Policy,
    *,
    out: Path,
    most_samples: int,
    progress: Callable[[str], None],
    ledger: LedgerRead | None = None,
    segments: int | None = None,
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
        segments: of so many segments, those that are equal on both sides are counted without a verdict a key.
    """
    native, otlp = sides
    malformed = native.malformed.unionByName(otlp.malformed)
    progress("surveying both sides")
    taken = _named(take_over(place.spark, native, otlp, place.past), place)
    known = _surveyed(native, otlp, malformed, policy, taken)
    aside = set_aside(taken, policy, segments, progress)
    progress("judging every key")
    found = masked_keys(verdicts(aside.native, aside.otlp, malformed, policy=policy, facts=known), policy)
    budgets = Attribution(payable(ledger, place.past), policy=policy, facts=known)
    how = Explanation(
        policy=policy,
        facts=known,
        spans=otlp.events,
        finish=lambda rows: told(place.spark, rows, place.past, known, policy),
        last=budgets.explain if budgets.wanted else None,
        unwritten=aside.matched,
    )
    judged = written_verdicts(found, how, out=out, work=place.work)
    everything = aside.beside(judged)
    progress("adding up")
    counts = counted(everything, known, policy, waiting=None if place.past.directory is None else judged)
    leave_open(judged, taken, counts.tally, waiting=counts.waiting, past=place.past, known=known, policy=policy)
    place.past.keep_paid(budgets.spent())
    run = Judged(frame=judged, everything=everything, known=known, policy=policy, sides=sides, taken=taken)
    result = added_up(run, counts, most_samples=most_samples)
    return replace(result, ledger=budgets.told(), policy_hash=policy_hash(policy), segments=aside.told())


def _named(taken: Carried, place: Workplace) -> Carried:
    """Tell ids to the spans that go by their place, those that wait since an earlier run among them."""
    return replace(taken, otlp=with_message_ids(taken.otlp, taken.native, place.work, by_place=taken.by_place))


def _surveyed(
    native: NormalisedSide, otlp: NormalisedSide, malformed: DataFrame, policy: Policy, taken: Carried
) -> facts.Facts:
    known = facts.read_facts(facts.overview(native.events, otlp.events, malformed).collect(), policy)
    return replace(known, some_lack_keys=True, some_lack_groups=True) if taken else known
