"""Apply the budgets of one run to its unexplained keys.

In the order of the reasons: the policy's sampling ratio (NOT_SAMPLED), then the drops that ledgers counted
(DROP_ATTRIBUTED, with the counter's cause). The remaining keys stay UNEXPLAINED; unused drops are surplus.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_jobs.columns import apply_to_distinct, is_true
from spark_jobs.explain.drop_budget import (
    Allocation,
    add_carried_over,
    allocate,
    choose_rows,
    count_lost_keys,
    find_stretches,
    group_residue,
    group_rows,
)
from spark_jobs.explain.explainers import Reasons
from spark_jobs.explain.rules import is_carried
from spark_jobs.judging.columns import NullableInts, flatten_sides, is_any_of, is_equal
from spark_jobs.judging.counts import CARRIED_ON, find_last
from spark_jobs.report.result import Ledger, LedgerLine
from spark_jobs.sums import by
from spark_jobs.taxonomy import Lifecycle, Reason, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from spark_jobs.columns import Column, Mask
    from spark_jobs.explain.drop_budget import LossGroup, LostKeys
    from spark_jobs.judging.facts import Facts
    from spark_jobs.policy.policy import Policy
    from spark_jobs.schemas import CountedDrop, LedgerRead

_MOST_SERVICES: Final = 20_000
_SAMPLED_DETAIL: Final = "policy_sampling_ratio"
_Z_99_ONE_SIDED: Final = 2.3263478740408408


# -- what settled verdicts contribute ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Settled:
    """What settled verdicts contribute to the budgets.

    Attributes:
        both: how many keys both sides have.
        group_services: native group and service of keys that both sides have: the first ``_MOST_SERVICES`` pairs.
        lost_ends: deliveries by loss group whose native end is lost while their span is complete, and whether that is
            settled: counted losses, though no key is lost.
        waiting: how many keys that an earlier run left open are PENDING: this run has not reached their time.
    """

    both: int = 0
    group_services: frozenset[tuple[str, str]] = field(
        default=frozenset(), metadata=by(lambda parts: _first_pairs(chain(*parts)))
    )
    lost_ends: Mapping[tuple[LossGroup, bool], int] = field(default_factory=dict)
    waiting: int = 0


def note_settled(verdicts: pa.Table, near: Sequence[range] | None) -> Settled:
    """Return what settled ``VERDICT`` rows contribute to the budgets of a run.

    ``near`` are the cells around its counted drops (``Budgets.near``); without drops (``None``) only keys are counted.
    """
    columns = flatten_sides(verdicts)
    on_both = is_true(columns["on_native"]) & is_true(columns["on_otlp"])
    both = int(np.count_nonzero(on_both))
    if near is None:
        return Settled(both)
    is_pending = is_equal(columns["status"], Status.PENDING.value)
    waiting = int(np.count_nonzero(is_pending & is_equal(columns["lifecycle"], Lifecycle.STILL_OPEN.value)))
    return Settled(both, _find_group_services(columns, on_both), _count_lost_ends(columns, near), waiting)


def _find_group_services(columns: Mapping[str, Column], on_both: Mask) -> frozenset[tuple[str, str]]:
    chosen = pa.array(np.flatnonzero(on_both))
    groups, services = (columns[name].take(chosen) for name in ("native.group_name", "otlp.service"))
    pairs, _ = apply_to_distinct(lambda group, service: (group, service), groups, services)
    return _first_pairs(pair for pair in pairs if None not in pair)


def _first_pairs(pairs: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
    return frozenset(sorted(set(pairs))[:_MOST_SERVICES])


def _count_lost_ends(columns: Mapping[str, Column], near: Sequence[range]) -> Counter[tuple[LossGroup, bool]]:
    is_end = is_equal(columns["reason"], Reason.HALF_RECORD.value) & is_equal(columns["reason_detail"], "before")
    is_settled = ~is_any_of(columns["lifecycle"], CARRIED_ON)[is_end]
    rows = pa.array(np.flatnonzero(is_end))
    of_key = {name: columns[name].take(rows) for name in ("kind", "msg_id", "attempt_id")}
    own = {name: columns[f"otlp.{name}"].take(rows) for name in ("service", "group_name", "start_ms", "end_ms")}
    grouped = group_rows(pa.array(["native"] * len(rows), pa.string()), of_key, own, near)
    groups = (grouped.groups[at] for at in grouped.group_of.tolist())
    return Counter(zip(groups, is_settled.tolist(), strict=True))


# -- the budgets ------------------------------------------------------------------------------------------------------
class Budgets:
    """The budgets of one run: ``spend`` once, then ``used`` and ``summarise`` report how.

    ``earlier`` is what earlier runs of the history spent on keys that they left open.
    """

    def __init__(
        self, ledger: LedgerRead | None, *, policy: Policy, facts: Facts, earlier: Sequence[CountedDrop] = ()
    ) -> None:
        self._ledger, self.policy, self.facts = add_carried_over(ledger, earlier), policy, facts
        self._own = len(ledger.drops) if ledger else 0  # the drops behind these are the earlier ones
        self._is_waiting = False
        # A process is up a little before its first message: as long as a record may be late, and no longer.
        self._begin_ms = None if facts.first_ms is None else facts.first_ms - policy.grace_ms
        self._drops = make_spendable(self._ledger.drops if self._ledger else (), self._begin_ms)
        self._used = self._used_for_unsettled = (0,) * len(self._drops)

    @property
    def is_wanted(self) -> bool:
        """Return whether there is any budget to spend."""
        return self.policy.sampling_ratio < 1 or bool(self._drops)

    @property
    def near(self) -> tuple[range, ...] | None:
        """The cells around the drops, by which the lost keys are distinguished; ``None`` without drops."""
        return tuple(find_stretches(self._drops)) if self._drops else None

    def spend(self, residue: pa.Table, given: Reasons, settled: Settled) -> Reasons:
        """Return the reasons of the whole residue with those that the budgets cover; ``given`` are its reasons so far.

        ``settled`` are all other verdicts of the run.
        """
        self._is_waiting = settled.waiting > 0
        columns = flatten_sides(residue)
        if self.policy.sampling_ratio < 1:
            given = self._spend_share(columns, given, settled)
        return self._spend_drops(columns, given, settled) if self._drops else given

    def _spend_share(self, columns: Mapping[str, Column], given: Reasons, settled: Settled) -> Reasons:
        is_open, lacks_span = _find_open(columns, given), is_equal(columns["status"], Status.NATIVE_ONLY.value)
        is_lost, is_unsampled = is_open & lacks_span, is_equal(given.reasons, Reason.NOT_SAMPLED.value) & lacks_span
        messages = columns["msg_id"].filter(pa.array(is_lost | is_unsampled)).drop_null()
        most = limit_missing(
            settled.both,
            int(np.count_nonzero(is_lost)),
            int(np.count_nonzero(is_unsampled)),
            len(messages.unique()),
            ratio=self.policy.sampling_ratio,
        )
        if not most:
            return given
        grouped = group_residue(columns)
        shares = share_out(count_lost_keys(grouped, is_open), most)
        return _apply_reasons(given, choose_rows(columns, grouped, is_open, shares), Reason.NOT_SAMPLED)

    def _spend_drops(self, columns: Mapping[str, Column], given: Reasons, settled: Settled) -> Reasons:
        is_open, grouped = _find_open(columns, given), group_residue(columns, self.near or ())
        services: defaultdict[str | None, set[str]] = defaultdict(set)
        for group, service in settled.group_services:
            services[group].add(service)
        services_of = {group: frozenset(some) for group, some in services.items()}
        # only native drops pay for lost ends, which otherwise take the places of other groups
        lost_ends = settled.lost_ends if any(drop.side == "native" for drop in self._drops) else {}
        losses = count_lost_keys(
            grouped, is_open, lost_ends=lost_ends, services_of=services_of, is_forgotten=self._find_forgotten(columns)
        )
        allocations, self._used, self._used_for_unsettled = allocate(losses, self._drops)
        return _apply_reasons(given, choose_rows(columns, grouped, is_open, allocations), Reason.DROP_ATTRIBUTED)

    def _find_forgotten(self, columns: Mapping[str, Column]) -> Mask:
        """Return which keys the next run does not see again, being as old as keys that expire."""
        age = NullableInts.constant(self.facts.data_end_ms) - find_last(columns)
        is_old, from_ms = age.exceeds(self.policy.forget_after_ms), self.facts.read_again_from_ms
        if from_ms is None:
            return is_old
        return is_old & (is_carried(columns) | ~NullableInts.of(columns["event_ms"]).exceeds(from_ms - 1))

    def used(self) -> tuple[CountedDrop, ...]:
        """Return the counted losses that were spent on keys, each with how much of it: what a history remembers.

        It leaves out what was spent on settled halves of deliveries and on forgotten keys: the next run does not see
        these, and would spend it on other keys. While a key of an earlier run waits, earlier counts that nothing used
        stay: it may be covered.
        """
        found: list[CountedDrop] = []
        for place, drop in enumerate(self._ledger.drops if self._ledger else ()):
            count = self._used_for_unsettled[place]
            if self._is_waiting and place >= self._own:
                count += drop.count - self._used[place]
            found += [replace(drop, count=count)] if count else []
        return tuple(found)

    def summarise(self) -> Ledger | None:
        """Return the result's part about the ledgers; ``None`` when none was given."""
        if self._ledger is None:
            return None
        return summarise_ledger(self._ledger, self._used, scopes=self.facts.scopes, begin_ms=self._begin_ms)


def _find_open(columns: Mapping[str, Column], given: Reasons) -> Mask:
    is_alone = is_any_of(columns["status"], {Status.NATIVE_ONLY.value, Status.OTLP_ONLY.value})
    return is_alone & is_equal(given.reasons, Reason.UNEXPLAINED.value)


def _apply_reasons(given: Reasons, chosen: Sequence[tuple[int, str]], reason: Reason) -> Reasons:
    reasons, details = given.reasons.to_pylist(), given.details.to_pylist()
    for row, cause in chosen:
        reasons[row], details[row] = reason.value, cause
    return Reasons(pa.array(reasons, pa.string()), pa.array(details, pa.string()))


# -- the share of messages that is not sampled ------------------------------------------------------------------------
def limit_missing(both: int, still_open: int, unsampled: int, messages: int, *, ratio: float) -> int:
    """Return how many open keys without a span the sampling ``ratio`` accounts for by chance.

    ``both`` are keys on both sides, ``still_open`` keys without a span and without a reason, ``unsampled`` keys known
    as not sampled, ``messages`` the distinct messages of the last two.
    """
    lost = still_open + unsampled
    most = allow_missing(both + lost, ratio, keys_per_message=lost / max(messages, 1))
    return max(0, min(still_open, most - unsampled))


def allow_missing(keys: int, ratio: float, *, keys_per_message: float = 1.0) -> int:
    """Return how many of ``keys`` may have no span when ``ratio`` of messages are sampled, in 99 of 100 runs.

    Whether a message is sampled is one throw of a coin for all of its keys: their number spreads as that of messages
    does, times the keys a message has.
    """
    spread = math.sqrt(keys * ratio * (1 - ratio) * max(keys_per_message, 1.0))
    return min(keys, math.floor(keys * (1 - ratio) + _Z_99_ONE_SIDED * spread)) if ratio < 1 else 0


def share_out(losses: Iterable[LostKeys], most: int) -> list[Allocation]:
    """Cover at most ``most`` keys that lack a span, of each group its share, by largest remainder, then by name."""
    open_ = sorted((loss for loss in losses if loss.group.lost == "otlp"), key=lambda loss: loss.group.name)
    whole = sum(loss.count for loss in open_)
    if not whole:
        return []
    most = min(most, whole)
    shares = [divmod(loss.count * most, whole) for loss in open_]
    left = most - sum(share for share, _ in shares)
    favoured = set(sorted(range(len(open_)), key=lambda number: -shares[number][1])[:left])
    allocations = (
        Allocation(loss.group, _SAMPLED_DETAIL, share + (number in favoured))
        for number, (loss, (share, _)) in enumerate(zip(open_, shares, strict=True))
    )
    return [each for each in allocations if each.count]


# -- what a ledger may cover, and what the result reports of it -------------------------------------------------------
def make_spendable(drops: Iterable[CountedDrop], begin_ms: int | None) -> list[CountedDrop]:
    """Return the drops in the same order, those that may have been lost before the data with a count of 0.

    That is what a counter had counted when it was first read, unless it began at ``begin_ms`` or later; of a counter
    that was read only once nothing else is known, so it covers keys.
    """
    return [replace(drop, count=0) if _is_of_before(drop, begin_ms) else drop for drop in drops]


def _is_of_before(drop: CountedDrop, begin_ms: int | None) -> bool:
    if not drop.before or begin_ms is None:
        return False
    return drop.bucket_start_ms is None or drop.bucket_start_ms < begin_ms


_NOTES: Final = {
    "starts": "{starts} records of a delivery's start were counted as lost; they cover no key, since its end is there: "
    "see HALF_RECORD",
    "surplus traffic": "{surplus} spans were counted as lost that nothing misses; {traffic} spans of the trace topic's "
    "own sends were seen, and those that were lost are counted too",
    "own": "{own} counters of mqtrace's own processor were left out: they do not name the side that lost; give the "
    "files of MQTRACE_LEDGER_DIR",
    "before": "{before} losses were counted when their counters were first read, in processes that began before the "
    "data; they pay for nothing, how the counters grew from there does",
    "again": "{again} refusals were left out: the same Collector counted as many failures further down its pipeline, "
    "which return as refusals",
    "unusable": "{unusable} readings of loss counters were left out: they are not counts, such as NaN or -5",
    "nameless": "{nameless} lost spans were counted under no service; they pay for keys of any",
}
"""Each is shown where none of the numbers before it is 0."""
_MOST_LINES: Final = 200
_MOST_BUCKETS: Final = 2_000


def summarise_ledger(
    read: LedgerRead, used: Sequence[int], *, scopes: Mapping[str, Mapping[str, int]], begin_ms: int | None = None
) -> Ledger:
    """Return the result's table of the ledger: per side, component, cause and service the count and its use.

    ``used`` is how much of each row was assigned; ``scopes`` are the records out of scope by side and scope, to which
    drops may belong; ``begin_ms`` is that of ``make_spendable``.
    """
    counted: Counter[tuple[str, str, str, str]] = Counter()
    spent: Counter[tuple[str, str, str, str]] = Counter()
    for drop, count in zip(read.drops, used, strict=True):
        line = (drop.side, drop.component, drop.cause, drop.service or "")
        counted[line] += drop.count
        spent[line] += count
    lines = tuple(
        LedgerLine(
            side=line[0],
            component=line[1],
            cause=line[2],
            service=line[3] or None,
            counted=counted[line],
            attributed=spent[line],
            surplus=counted[line] - spent[line],
        )
        for line in sorted(counted, key=lambda line: (-counted[line], line))
    )
    surplus, attributed = (
        {side: sum(getattr(line, name) for line in lines if line.side == side) for side in ("native", "otlp")}
        for name in ("surplus", "attributed")
    )
    numbers = {
        "starts": sum(drop.count for drop in read.drops if drop.of_start),
        "before": sum(drop.count for drop in read.drops if _is_of_before(drop, begin_ms)),
        "nameless": sum(drop.count for drop in read.drops if drop.side == "otlp" and drop.service is None),
        "traffic": scopes.get("otlp", {}).get(Reason.TRACE_TRAFFIC.value, 0),
        "surplus": surplus["otlp"],
        "own": read.own,
        "again": read.again,
        "unusable": read.unusable,
    }
    return Ledger(
        files=tuple(read.files),
        rows_read=len(read.drops),
        attributed=attributed,
        surplus=surplus,
        lines=lines[:_MOST_LINES],
        notes=tuple(
            note.format_map(numbers) for names, note in _NOTES.items() if all(numbers[name] for name in names.split())
        ),
        over_time=_count_over_time(read.drops),
    )


def _count_over_time(drops: Sequence[CountedDrop]) -> tuple[tuple[int, str, int], ...]:
    """Return when which side counted how many losses, earliest first; of very many buckets those that counted most."""
    counted: Counter[tuple[int, str]] = Counter()
    for drop in drops:
        if drop.bucket_start_ms is not None:
            counted[drop.bucket_start_ms, drop.side] += drop.count
    return tuple(sorted((start_ms, side, count) for (start_ms, side), count in counted.most_common(_MOST_BUCKETS)))
