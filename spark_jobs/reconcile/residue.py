"""This module knows how the residue of a run is explained: a table of explainers, tried in order, the first hit wins.

The keyed pass leaves a settled one-sided key UNEXPLAINED when nothing of its own message explains it. That residue is
small in every run worth trusting, so only it is taken further: the whole run is asked once what it knows about it
(``testimony``), and each explainer reads the answers. What no explainer takes stays UNEXPLAINED.

To add an explainer, put a row into ``EXPLAINERS`` at its place; the order is that of ``taxonomy.Reason``. It says by an
expression over ``VERDICT`` and ``heard`` what shows that a key has the reason; that becomes its ``reason_detail``. What
must be counted before it can be said, as a ledger's budget, comes after all of these (``jobs.explain``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.calls import call_without_region, trace_switched_off, within_gaps
from spark_jobs.reconcile.degraded import ambiguous, beside_nameless
from spark_jobs.reconcile.endings import before_the_input, shutdown
from spark_jobs.reconcile.sampling import not_sampled
from spark_jobs.reconcile.sequence import untraced_send
from spark_jobs.reconcile.silence import lite_pull, silent_writer
from spark_jobs.reconcile.testimony import answered
from spark_jobs.schemas import VERDICT
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame

    from spark_jobs.reconcile.facts import Facts
    from spark_jobs.reconcile.policy import Policy

__all__ = ["EXPLAINERS", "Context", "Explainer", "explained", "is_residue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an explainer may know beside the residue and the answers."""

    policy: Policy
    facts: Facts


@dataclass(frozen=True, slots=True)
class Explainer:
    """One row of the table: ``reason`` holds for the keys for which ``detail`` is not null.

    ``of_carried`` is off where absence from this run's input is the evidence: it says nothing of a key that an earlier
    run left open, whose other side that run's input would have held.
    """

    reason: Reason
    detail: Callable[[Context], Column]
    of_carried: bool = True


EXPLAINERS: Final = (
    Explainer(Reason.BY_DESIGN, lambda context: untraced_send(context.policy)),
    Explainer(Reason.BY_DESIGN, lambda context: call_without_region(context.policy)),
    Explainer(Reason.BY_DESIGN, lambda context: trace_switched_off(context.policy)),
    Explainer(Reason.BY_DESIGN, lambda context: lite_pull(context.policy, context.facts)),
    Explainer(Reason.NOT_SAMPLED, lambda _: not_sampled()),
    Explainer(Reason.WRITER_SILENT, lambda context: silent_writer(context.policy, context.facts), of_carried=False),
    Explainer(Reason.SHUTDOWN_WINDOW, lambda context: shutdown(context.policy, context.facts), of_carried=False),
    Explainer(
        Reason.LATE_BEYOND_RETENTION, lambda context: before_the_input(context.policy, context.facts), of_carried=False
    ),
    Explainer(Reason.KEY_DEGRADED, lambda _: ambiguous()),
)
"""Every explainer but the ledger's, in the order they are tried."""


def is_residue() -> Column:
    """Say whether a verdict has been given no reason yet."""
    return F.col("reason").eqNullSafe(F.lit(Reason.UNEXPLAINED.value))


def explained(  # noqa: PLR0913 - what is asked, of whom, by what
    residue: DataFrame, verdicts: DataFrame, traffic: DataFrame, *, policy: Policy, facts: Facts, asking: int
) -> DataFrame:
    """Return the residue with the reasons that the rest of the run gives it, as ``VERDICT``.

    Args:
        residue: ``VERDICT``, the rows for which ``is_residue`` holds.
        verdicts: ``VERDICT`` of the whole run, the residue among them.
        traffic: ``EVENT`` of the spans in which trace messages were sent (``TRACE_TRAFFIC``).
        policy: what the run tolerates.
        facts: what ``facts.read_facts`` said of the same input.
        asking: how many rows the residue has.
    """
    context = Context(policy=policy, facts=facts)
    rows = within_gaps(beside_nameless(residue, policy), verdicts, policy)
    rows = answered(rows, verdicts, traffic, asking=asking)
    found = F.coalesce(*(_told(explainer, context) for explainer in EXPLAINERS))
    told = rows.withColumn("found", found).drop("heard")
    reason = {name: F.coalesce(F.col("found")[name], F.col(name)) for name in ("reason", "reason_detail")}
    return told.withColumns(reason).select(*VERDICT.names)


def _told(explainer: Explainer, context: Context) -> Column:
    detail = explainer.detail(context)
    if not explainer.of_carried:
        carried = F.coalesce(*(F.col(side)["first_seen_run"] for side in ("native", "otlp")))
        detail = F.when(carried.isNull(), detail)
    told = F.struct(F.lit(explainer.reason.value).alias("reason"), detail.alias("reason_detail"))
    return F.when(detail.isNotNull(), told)
