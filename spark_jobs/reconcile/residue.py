"""This module knows how the residue of a run is explained: a table of explainers, tried in order, the first hit wins.

The keyed pass leaves a settled one-sided key UNEXPLAINED when nothing of its own message explains it. That residue is
small in every run worth trusting, so only it is taken further: the whole run is asked once what it knows about it
(``testimony``), and each explainer reads the answers. What no explainer takes stays UNEXPLAINED.

To add an explainer, put a row into ``EXPLAINERS`` at its place; the order is that of ``taxonomy.Reason``. It is given
the residue as ``VERDICT`` plus ``heard`` and returns the same columns, with ``reason`` and ``reason_detail`` set on
rows that were UNEXPLAINED and on no other. The ledger comes after all of these (``jobs.explain``): what is left must be
counted before it is spent on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from spark_jobs.reconcile.calls import call_without_region, trace_switched_off
from spark_jobs.reconcile.degraded import ambiguous
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
    """One row of the table: ``explain`` gives ``reason`` to the rows it can answer for."""

    reason: Reason
    explain: Callable[[DataFrame, Context], DataFrame]


def _by(reason: Reason, detail: Callable[[Context], Column]) -> Explainer:
    """Make an explainer of an expression: not null, it is the ``reason_detail`` of a row that has the reason."""

    def explain(residue: DataFrame, context: Context) -> DataFrame:
        found = F.when(is_residue(), detail(context))
        told = residue.withColumn("_found", found)
        hit = F.col("_found").isNotNull()
        return told.withColumns(
            {
                "reason": F.when(hit, reason.value).otherwise(F.col("reason")),
                "reason_detail": F.when(hit, F.col("_found")).otherwise(F.col("reason_detail")),
            }
        ).drop("_found")

    return Explainer(reason, explain)


EXPLAINERS: Final = (
    _by(Reason.BY_DESIGN, lambda context: untraced_send(context.policy)),
    _by(Reason.BY_DESIGN, lambda context: call_without_region(context.policy)),
    _by(Reason.BY_DESIGN, lambda context: trace_switched_off(context.policy)),
    _by(Reason.BY_DESIGN, lambda context: lite_pull(context.policy, context.facts)),
    _by(Reason.NOT_SAMPLED, lambda _: not_sampled()),
    _by(Reason.WRITER_SILENT, lambda context: silent_writer(context.policy, context.facts)),
    _by(Reason.SHUTDOWN_WINDOW, lambda context: shutdown(context.policy, context.facts)),
    _by(Reason.LATE_BEYOND_RETENTION, lambda context: before_the_input(context.policy, context.facts)),
    _by(Reason.KEY_DEGRADED, lambda context: ambiguous(context.policy)),
)
"""Every explainer but the ledger's, in the order they are tried."""


def is_residue() -> Column:
    """Say whether a verdict has been given no reason yet."""
    return F.col("reason").eqNullSafe(F.lit(Reason.UNEXPLAINED.value))


def explained(
    residue: DataFrame, verdicts: DataFrame, traffic: DataFrame, *, policy: Policy, facts: Facts
) -> DataFrame:
    """Return the residue with the reasons that the rest of the run gives it, as ``VERDICT``.

    Args:
        residue: ``VERDICT``, the rows for which ``is_residue`` holds.
        verdicts: ``VERDICT`` of the whole run, the residue among them.
        traffic: ``EVENT`` of the spans in which trace messages were sent (``TRACE_TRAFFIC``).
        policy: what the run tolerates.
        facts: what ``facts.read_facts`` said of the same input.
    """
    context = Context(policy=policy, facts=facts)
    rows = answered(residue, verdicts, traffic.select("msg_id"))
    for explainer in EXPLAINERS:
        rows = explainer.explain(rows, context)
    return rows.select(*VERDICT.names)
