"""The budgets of one run: what is still open is counted, weighed against them, and marked.

Two budgets, in the order of the reasons: the share of messages that the policy says is sampled, then the drops that
ledgers counted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_jobs.explain.budgets import sampled_share
from spark_jobs.explain.budgets.allocation import Allocation, allocate
from spark_jobs.explain.budgets.ledger import find_stretches, make_spendable, summarise_ledger
from spark_jobs.explain.budgets.slots import Slot, choose_covered, count_losses, find_slots, make_slots
from spark_jobs.explain.explainers import Reasons
from spark_jobs.judging.columns import apply_to_distinct, equals, flatten_sides, is_true
from spark_jobs.taxonomy import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_jobs.drops import CountedDrop
    from spark_jobs.judging.columns import Column, Mask
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.report.result import Ledger
    from spark_jobs.sources.ledger import LedgerRead

__all__ = ["Attribution", "Settled", "SettledNotes", "merge_settled", "note_settled"]

_MOST_HOMES: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledNotes:
    """What the budgets of a run need of its settled verdicts.

    Attributes:
        homes: whether a native group's services are wanted.
        ends: whether deliveries are wanted whose native end alone is lost.
        near: the cells that these are told apart by.
    """

    homes: bool = False
    ends: bool = False
    near: tuple[range, ...] = ()


@dataclass(frozen=True, slots=True)
class Settled:
    """What settled verdicts give to the budgets.

    Attributes:
        both: how many keys both sides have.
        homes: native group and service of keys that both sides have: the first ``_MOST_HOMES`` pairs by name.
        ends: deliveries by slot whose native end is lost while their span is complete.
    """

    both: int = 0
    homes: frozenset[tuple[str, str]] = frozenset()
    ends: Mapping[Slot, int] = field(default_factory=dict)


def note_settled(verdicts: pa.Table, wanted: SettledNotes) -> Settled:
    """Return what settled ``VERDICT`` rows give to the budgets of a run."""
    columns = flatten_sides(verdicts)
    on_both = is_true(columns["on_native"]) & is_true(columns["on_otlp"])
    return Settled(
        int(np.count_nonzero(on_both)),
        _find_homes(columns, on_both) if wanted.homes else frozenset(),
        _count_ends(columns, wanted.near) if wanted.ends else {},
    )


def _find_homes(columns: Mapping[str, Column], on_both: Mask) -> frozenset[tuple[str, str]]:
    chosen = pa.array(np.flatnonzero(on_both))
    groups, services = (columns[name].take(chosen) for name in ("native.group_name", "otlp.service"))
    pairs, _ = apply_to_distinct(lambda group, service: (group, service), groups, services)
    return _first_homes(pair for pair in pairs if None not in pair)


def _first_homes(pairs: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    return frozenset(sorted(set(pairs))[:_MOST_HOMES])


def _count_ends(columns: Mapping[str, Column], near: Sequence[range]) -> dict[Slot, int]:
    """Count the deliveries whose native end is lost: counted losses, though no key is."""
    is_end = equals(columns["reason"], Reason.HALF_RECORD.value) & equals(columns["reason_detail"], "before")
    rows = pa.array(np.flatnonzero(is_end))
    of_key = {name: columns[name].take(rows) for name in ("kind", "msg_id", "attempt_id")}
    own = {name: columns[f"otlp.{name}"].take(rows) for name in ("service", "group_name", "start_ms", "end_ms")}
    slotted = make_slots(pa.array(["native"] * len(rows), pa.string()), of_key, own, near)
    counts = np.bincount(slotted.slot_of, minlength=len(slotted.slots)).tolist()
    return dict(zip(slotted.slots, counts, strict=True))


def merge_settled(parts: Sequence[Settled]) -> Settled:
    """Return the notes of several tasks as those of one."""
    ends: Counter[Slot] = Counter()
    for part in parts:
        ends.update(part.ends)
    homes = _first_homes(pair for part in parts for pair in part.homes)
    return Settled(sum(part.both for part in parts), homes, dict(ends))


class Attribution:
    """The budgets of one run: ``spend`` once, then ``spent`` and ``summarise`` report how."""

    def __init__(self, ledger: LedgerRead | None, *, policy: Policy, facts: Facts) -> None:
        self._ledger = ledger
        self._policy = policy
        self._scopes = facts.scopes
        # A process is up a little before its first message: as long as a record may be late, and no longer.
        self._begin_ms = None if facts.first_ms is None else facts.first_ms - policy.grace_ms
        self._drops = make_spendable(ledger.drops if ledger else (), self._begin_ms)
        self._allocation = Allocation((), (0,) * len(self._drops))

    @property
    def is_wanted(self) -> bool:
        """Whether there is any budget to spend."""
        return self._policy.sampling_ratio < 1 or bool(self._drops)

    @property
    def notes(self) -> SettledNotes:
        """What the budgets need of settled verdicts."""
        return SettledNotes(
            homes=any(drop.side == "otlp" and drop.service is not None for drop in self._drops),
            ends=any(drop.side == "native" for drop in self._drops),
            near=tuple(find_stretches(self._drops)),
        )

    def spend(self, residue: pa.Table, given: Reasons, settled: Settled) -> Reasons:
        """Return the reasons of the residue with those that the budgets pay for.

        Args:
            residue: ``RESIDUE``, whole.
            given: its reasons so far, final but for the budgets.
            settled: what ``notes`` describe, of all other verdicts of the run.
        """
        columns = flatten_sides(residue)
        if self._policy.sampling_ratio < 1:
            given = self._spend_share(columns, given, settled)
        return self._spend_drops(columns, given, settled) if self._drops else given

    def _spend_share(self, columns: Mapping[str, Column], given: Reasons, settled: Settled) -> Reasons:
        is_open, lacks_span = _find_open(columns, given), equals(columns["status"], Status.NATIVE_ONLY.value)
        is_lost, is_unsampled = is_open & lacks_span, equals(given.reasons, Reason.NOT_SAMPLED.value) & lacks_span
        messages = columns["msg_id"].filter(pa.array(is_lost | is_unsampled)).drop_null()
        most = sampled_share.limit_missing(
            settled.both,
            int(np.count_nonzero(is_lost)),
            int(np.count_nonzero(is_unsampled)),
            len(messages.unique()),
            ratio=self._policy.sampling_ratio,
        )
        if not most:
            return given
        slotted = find_slots(columns)
        covered = sampled_share.share_out(count_losses(slotted, is_open, {}, {}), most)
        return _mark(given, choose_covered(columns, slotted, is_open, covered), Reason.NOT_SAMPLED)

    def _spend_drops(self, columns: Mapping[str, Column], given: Reasons, settled: Settled) -> Reasons:
        is_open, slotted = _find_open(columns, given), find_slots(columns, self.notes.near)
        homes: dict[str | None, frozenset[str]] = {}
        for group, service in settled.homes:
            homes[group] = homes.get(group, frozenset()) | {service}
        losses = count_losses(slotted, is_open, settled.ends, homes)
        self._allocation = allocate(losses, self._drops)
        chosen = choose_covered(columns, slotted, is_open, self._allocation.covered)
        return _mark(given, chosen, Reason.DROP_ATTRIBUTED)

    def spent(self) -> tuple[CountedDrop, ...]:
        """Return the counted losses that keys were paid with, each with what it paid: what a history remembers."""
        drops = self._ledger.drops if self._ledger else ()
        paid = zip(drops, self._allocation.spent, strict=True)
        return tuple(replace(drop, count=count) for drop, count in paid if count)

    def summarise(self) -> Ledger | None:
        """Return the result's part about the ledgers; ``None`` when none was given."""
        read = self._ledger
        if read is None:
            return None
        return summarise_ledger(
            read.files,
            read.drops,
            self._allocation,
            scopes=self._scopes,
            begin_ms=self._begin_ms,
            own=read.own,
            again=read.again,
        )


def _find_open(columns: Mapping[str, Column], given: Reasons) -> Mask:
    is_alone = equals(columns["status"], Status.NATIVE_ONLY.value) | equals(columns["status"], Status.OTLP_ONLY.value)
    return is_alone & equals(given.reasons, Reason.UNEXPLAINED.value)


def _mark(given: Reasons, chosen: Sequence[tuple[int, str]], reason: Reason) -> Reasons:
    reasons, details = given.reasons.to_pylist(), given.details.to_pylist()
    for row, cause in chosen:
        reasons[row], details[row] = reason.value, cause
    return Reasons(pa.array(reasons, pa.string()), pa.array(details, pa.string()))
