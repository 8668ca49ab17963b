"""This module knows the last step of explaining: what is still open is counted, weighed against budgets, and marked.

Two budgets, in the order of the reasons: the share of messages that the policy says is sampled, then the drops that
ledgers counted. Each costs one small job on the residue, and one over the verdicts for what it is weighed against.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from spark_jobs.reconcile import sampled_share, slots
from spark_jobs.reconcile.budget import Allocation, allocate
from spark_jobs.reconcile.ledger import ledger_result, spendable, stretches
from spark_jobs.taxonomy import Reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_jobs.drops import CountedDrop
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.ledger import Ledger
    from spark_jobs.sources.ledger import LedgerRead

__all__ = ["Attribution"]


class Attribution:
    """The budgets of one run; ``explain`` spends them once, ``told`` says how."""

    def __init__(self, ledger: LedgerRead | None, *, policy: Policy, facts: Facts) -> None:
        self._ledger = ledger
        self._policy = policy
        self._facts = facts
        # A process is up a little before its first message: as long as a record may be late, and no longer.
        self._begin_ms = None if facts.first_ms is None else facts.first_ms - policy.grace_ms
        self._allocation = Allocation((), (0,) * len(ledger.drops if ledger else ()))

    @property
    def wanted(self) -> bool:
        """Whether there is any budget to spend."""
        return self._policy.sampling_ratio < 1 or bool(self._ledger and self._ledger.drops)

    def explain(self, residue: DataFrame, settled: DataFrame) -> DataFrame:
        """Return the residue (``VERDICT``, written) with what the budgets cover; ``settled`` are the other verdicts."""
        if self._policy.sampling_ratio < 1:
            residue = self._sampled(residue, settled)
        if self._ledger and self._ledger.drops:
            residue = self._dropped(residue, settled)
        return residue

    def _sampled(self, residue: DataFrame, settled: DataFrame) -> DataFrame:
        counts = sampled_share.missing_spans(residue, settled).collect()
        most = sampled_share.read_allowed(counts, self._policy.sampling_ratio)
        losses = slots.read_losses(slots.counted(residue).collect(), {}) if most else []
        return slots.marked(residue, sampled_share.shared_out(losses, most), (), Reason.NOT_SAMPLED)

    def _dropped(self, residue: DataFrame, settled: DataFrame) -> DataFrame:
        drops = spendable(self._ledger.drops if self._ledger else (), self._begin_ms)
        near = stretches(drops)
        names = any(drop.side == "otlp" and drop.service is not None for drop in drops)
        known = slots.read_homes(slots.homes(settled).collect()) if names else {}
        ends = slots.lost_ends(settled) if any(drop.side == "native" for drop in drops) else None
        losses = slots.read_losses(slots.counted(residue, near, ends=ends).collect(), known)
        self._allocation = allocate(losses, drops)
        return slots.marked(residue, self._allocation.covered, near, Reason.DROP_ATTRIBUTED)

    def spent(self) -> tuple[CountedDrop, ...]:
        """Return the counted losses that keys were paid with, each with what it paid: what a history remembers."""
        drops = self._ledger.drops if self._ledger else ()
        paid = zip(drops, self._allocation.spent, strict=True)
        return tuple(replace(drop, count=count) for drop, count in paid if count)

    def told(self) -> Ledger | None:
        """Return what the result says of the ledgers; ``None`` when none was given."""
        read = self._ledger
        if read is None:
            return None
        return ledger_result(
            read.files,
            read.drops,
            self._allocation,
            scopes=self._facts.scopes,
            begin_ms=self._begin_ms,
            own=read.own,
            again=read.again,
        )
