"""Assign counted drops to lost keys, never more than were counted.

A drop covers a key of the same side, service, group and process whose time lies in the drop's bucket or one cell
beside it; a drop without a bucket covers any time. The nearest and most specific drops are assigned first. The rest
moves along neighbouring buckets, since the tail of a burst is counted in the next one. Losses of keys that have a
verdict anyway use up their drops first. Names, times and counts decide, never row order.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import xxhash

from otel_mqtrace.model import strip_prefixes
from spark_jobs.columns import apply_to_distinct, is_true, runs_of
from spark_jobs.judging.columns import LATEST, NullableInts, either
from spark_jobs.schemas import LedgerRead
from spark_jobs.taxonomy import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.columns import Column, Ints, Mask
    from spark_jobs.schemas import CountedDrop

CELL_MS: Final = 10_000
"""The width of a cell of time; ``mqtrace``'s own ledger counts in the same."""

_WIDE_CELLS: Final = 720  # two hours: longer buckets are compared one by one, not indexed


class LossGroup(NamedTuple):
    """Lost keys that a budget cannot distinguish; ``None`` is unknown. ``cell`` is their time in ``CELL_MS``."""

    lost: str
    service: str | None = None
    group: str | None = None
    process: str | None = None
    cell: int | None = None

    @property
    def name(self) -> str:
        """A JSON object without nulls: groups of equal rank are ordered by it."""
        named = zip(("lost", "service", "grp", "process", "cell"), self, strict=True)
        known = {name: value for name, value in named if value is not None}
        return json.dumps(known, ensure_ascii=False, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class LostKeys:
    """How many keys of a group are lost, and the services that they may belong to.

    ``known``: the keys have a verdict already; a drop used for them covers no other key. ``is_settled``: the next run
    of a history does not read them again.
    """

    group: LossGroup
    count: int
    services: frozenset[str] | None = None
    known: bool = False
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """``count`` keys of a group that drops by ``cause`` cover."""

    group: LossGroup
    cause: str
    count: int


class Spending(NamedTuple):
    """What drops were spent on, how much of each was used, and how much of that for keys that are not settled.

    ``allocations`` leave out the known losses, and are ordered by cause within a loss.
    """

    allocations: list[Allocation]
    used: tuple[int, ...]
    used_for_unsettled: tuple[int, ...]


def allocate(losses: Iterable[LostKeys], drops: Sequence[CountedDrop]) -> Spending:
    """Spend ``drops`` on ``losses``."""
    wanted = sorted(losses, key=_position)
    alike = _group_alike(drops)
    index = _DropIndex([drops[members[0]] for members in alike])
    edges = sorted((rank, need, drop) for need, loss in enumerate(wanted) for drop, rank in index.find(loss))
    balance = _Balance(
        [loss.count for loss in wanted], [sum(drops[member].count for member in members) for members in alike]
    )
    balance.spend([edge for edge in edges if wanted[edge[1]].known])
    balance.spend(edges)
    covered: Counter[tuple[int, str]] = Counter()
    used, used_for_unsettled = [0] * len(drops), [0] * len(drops)
    for (need, drop), count in sorted(balance.flow.items()):
        for member in alike[drop]:
            part = min(count, drops[member].count - used[member])
            used[member] += part
            covered[need, drops[member].cause] += 0 if wanted[need].known else part
            used_for_unsettled[member] += 0 if wanted[need].is_settled else part
            count -= part  # noqa: PLW2901 - what the next one of those that are alike covers
    found = [Allocation(wanted[need].group, cause, count) for (need, cause), count in sorted(covered.items()) if count]
    return Spending(found, tuple(used), tuple(used_for_unsettled))


def _position(loss: LostKeys) -> tuple[str, int, bool, str, bool]:
    cell = -1 if loss.group.cell is None else loss.group.cell
    # of a group's keys the earliest are covered: those that the next run does not see
    return loss.group.lost, cell, not loss.known, loss.group.name, not (loss.known or loss.is_settled)


def _group_alike(drops: Sequence[CountedDrop]) -> list[list[int]]:
    """Return the places of drops in groups that cover the same keys: the budget counts each group as one."""
    found: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, drop in enumerate(drops):
        group = drop.group and strip_prefixes(drop.group)
        found[drop.side, drop.service, group, drop.process, cells_of(drop), drop.of_start].append(place)
    return list(found.values())


def cells_of(drop: CountedDrop) -> range | None:
    """Return the cells of a drop's bucket; ``None`` when it has no bucket."""
    if drop.bucket_start_ms is None:
        return None
    last_ms = drop.bucket_start_ms + max(drop.bucket_ms or 1, 1) - 1
    return range(drop.bucket_start_ms // CELL_MS, last_ms // CELL_MS + 1)


def find_stretches(drops: Iterable[CountedDrop]) -> list[range]:
    """Return the cells that the drops' buckets cover, one cell more on either side, as ranges that do not touch."""
    near: list[range] = []
    buckets = (bucket for drop in drops if (bucket := cells_of(drop)) is not None)
    for begin, end in sorted({(bucket.start - 1, bucket.stop + 1) for bucket in buckets}):
        if near and begin <= near[-1].stop:
            near[-1] = range(near[-1].start, max(near[-1].stop, end))
        else:
            near.append(range(begin, end))
    return near


_Rank: TypeAlias = tuple[int, int]
"""How far a drop is from a loss: in time, then in what is unknown of it."""


class _DropIndex:
    """The drops, found by side and cell."""

    def __init__(self, drops: Sequence[CountedDrop]) -> None:
        self._drops = [(drop, cells_of(drop), drop.group and strip_prefixes(drop.group)) for drop in drops]
        self._near: defaultdict[tuple[str, int | None], list[int]] = defaultdict(list)
        self._wide: defaultdict[str, list[int]] = defaultdict(list)
        for place, (drop, bucket, _) in enumerate(self._drops):
            if drop.of_start:
                continue  # a key whose end was recorded is on both sides; one whose end was lost, too, is counted there
            if bucket is None or len(bucket) > _WIDE_CELLS:
                self._wide[drop.side].append(place)
                continue
            for cell in range(bucket.start - 1, bucket.stop + 1):
                self._near[drop.side, cell].append(place)

    def find(self, loss: LostKeys) -> Iterator[tuple[int, _Rank]]:
        """Yield the drops that may cover a loss."""
        lost, _, group, process, cell = loss.group
        group = group and strip_prefixes(group)
        for place in (*self._wide[lost], *self._near.get((lost, cell), ())):
            drop, bucket, of_group = self._drops[place]
            if (
                (bucket is None or (cell is not None and bucket.start - 1 <= cell <= bucket.stop))
                and (drop.service is None or loss.services is None or drop.service in loss.services)
                and (of_group is None or group is None or of_group == group)
                and (drop.process is None or process is None or drop.process == process)
            ):
                apart = 2 if bucket is None else int(cell not in bucket)
                yield place, (apart, [drop.service, drop.group, drop.process].count(None))


class _Balance:
    """How much of each drop goes to each loss, and what remains of both."""

    def __init__(self, open_: list[int], remaining: list[int]) -> None:
        self._open, self._remaining = open_, remaining
        self.flow: Counter[tuple[int, int]] = Counter()

    def spend(self, edges: Sequence[tuple[_Rank, int, int]]) -> None:
        """Spend each drop on the nearest losses first, then move losses to drops with something remaining."""
        drops_of: defaultdict[int, list[int]] = defaultdict(list)
        losses_of: defaultdict[int, list[int]] = defaultdict(list)
        for _, need, drop in edges:
            drops_of[need].append(drop)
            losses_of[drop].append(need)
            amount = min(self._open[need], self._remaining[drop])
            if amount:
                self._move(need, [(drop, need)], amount)
        dead: set[int] = set()  # drops from which nothing that remains can be reached, now or later
        for need in sorted(drops_of):
            while self._open[need] and (path := self._find_path(need, drops_of, losses_of, dead)):
                # Each loss on the path leaves the drop by which it was reached to the loss before it.
                leaving = [self.flow[loss, drop] for (drop, _), (_, loss) in pairwise(path)]
                self._move(need, path, min(self._open[need], self._remaining[path[-1][0]], *leaving))

    def _move(self, need: int, path: Sequence[tuple[int, int]], amount: int) -> None:
        """Cover ``amount`` of a loss: every drop of the path gets its loss, and gives up the next one's."""
        for (drop, loss), (_, after) in zip(path, [*path[1:], (-1, -1)], strict=True):
            self.flow[loss, drop] += amount
            if after >= 0:
                self.flow[after, drop] -= amount
        self._open[need] -= amount
        self._remaining[path[-1][0]] -= amount

    def _find_path(
        self, need: int, drops_of: defaultdict[int, list[int]], losses_of: defaultdict[int, list[int]], dead: set[int]
    ) -> list[tuple[int, int]] | None:
        """Return drops and the losses that they shall cover, from ``need`` to a drop with something remaining."""
        loss_of: dict[int, int] = {}  # drop → the loss that it shall cover
        left_by: dict[int, int] = {need: -1}  # loss → the drop that it leaves
        waiting = deque([need])
        while waiting:
            loss = waiting.popleft()
            for drop in drops_of[loss]:
                if drop in loss_of or drop in dead:
                    continue
                loss_of[drop] = loss
                if self._remaining[drop]:
                    path = []
                    while drop >= 0:
                        path.append((drop, loss_of[drop]))
                        drop = left_by[loss_of[drop]]  # noqa: PLW2901 - the path is walked back
                    return path[::-1]
                for other in losses_of[drop]:
                    if other not in left_by and self.flow[other, drop]:
                        left_by[other] = drop
                        waiting.append(other)
        dead.update(loss_of)
        return None


def add_carried_over(ledger: LedgerRead | None, earlier: Sequence[CountedDrop]) -> LedgerRead | None:
    """Return the drops that may be spent: those counted for this run, and those used for keys still carried over.

    The keys that an earlier drop was spent on are judged again, and it can cover those and no others beside.
    """
    if not earlier:
        return ledger
    read = LedgerRead() if ledger is None else ledger
    return replace(read, drops=carry_over(read.drops, earlier))


def carry_over(drops: Sequence[CountedDrop], earlier: Sequence[CountedDrop]) -> tuple[CountedDrop, ...]:
    """Return ``drops`` (this run's ledgers) less their part of ``earlier``, and ``earlier``: each loss is there once.

    An earlier drop, assigned to keys by an earlier run, is part of a count of the same place and cause whose bucket is
    the same or spans it: a counter that only grows is read over a longer stretch each day.
    """
    used: Counter[CountedDrop] = Counter()
    for drop in earlier:
        used[_without_count(drop)] += drop.count
    counted: defaultdict[CountedDrop, list[int]] = defaultdict(list)
    for place, drop in enumerate(drops):
        same = _without_count(drop)
        for key in {same, _without_bucket(same)}:
            counted[key].append(place)
    remaining = [drop.count for drop in drops]
    for drop, count in used.items():
        missing = count
        for key in (drop, _without_bucket(drop)):
            for place in counted[key]:
                if _spans(drops[place], drop):
                    taken = min(missing, remaining[place])
                    remaining[place] -= taken
                    missing -= taken
    return (
        *(replace(drop, count=count) for drop, count in zip(drops, remaining, strict=True)),
        *(replace(drop, count=count) for drop, count in used.items()),
    )


def _without_count(drop: CountedDrop) -> CountedDrop:
    return replace(drop, count=0, before=False)


def _without_bucket(drop: CountedDrop) -> CountedDrop:
    return replace(drop, bucket_start_ms=None, bucket_ms=None)


def _spans(drop: CountedDrop, other: CountedDrop) -> bool:
    if drop.bucket_start_ms is None:
        return True
    if other.bucket_start_ms is None:
        return False
    end_ms = drop.bucket_start_ms + (drop.bucket_ms or 0)
    return drop.bucket_start_ms <= other.bucket_start_ms and end_ms >= other.bucket_start_ms + (other.bucket_ms or 0)


MOST_GROUPS: Final = 50_000
"""The keys of groups beyond the largest ones stay unexplained, which is the stricter verdict."""

_MOST_STRETCHES: Final = 200  # beyond it, all cells from the first to the last are distinguished
_ID_DIGITS: Final = (32, 56)  # RocketMQ's unique ids, with an address of IPv4 or IPv6
_TAIL_DIGITS: Final = 24  # process id and what follows it
# Java's $ also matches before a final line end: it makes no difference.
_HEX: Final = re.compile(r"[0-9A-Fa-f]+(?:\r\n|[\n\r\u0085\u2028\u2029])?")
_SPARK_SEED, _LONG_BYTES = 42, 8
_HASHED: Final = ("kind", "msg_id", "group", "attempt_id", "native.raw_hash", "otlp.raw_hash", "event_ms")


class GroupedRows(NamedTuple):
    """Rows by loss group: the distinct groups, each row's place among them, and when each event was over."""

    groups: Sequence[LossGroup]
    group_of: Ints
    when_ms: NullableInts


def group_residue(rows: Mapping[str, Column], near: Sequence[range] = ()) -> GroupedRows:
    """Return the loss groups of ``RESIDUE`` rows; keys outside the cells of ``near`` are grouped without their time."""
    lost = pa.array(np.where(is_true(rows["on_native"]), "otlp", "native"))
    columns = {name: either(rows, name) for name in ("service", "group_name", "start_ms", "end_ms")}
    return group_rows(lost, rows, columns, near)


def group_rows(
    lost: Column, rows: Mapping[str, Column], own: Mapping[str, Column], near: Sequence[range]
) -> GroupedRows:
    """Return the loss groups of rows, each with the side that ``lost`` it.

    ``rows`` are ``kind``, ``msg_id`` and ``attempt_id`` of each, ``own`` are ``service``, ``group_name``, ``start_ms``
    and ``end_ms`` of the other side's record.
    """
    when_ms = NullableInts.of(own["end_ms"]).believable().coalesce(NullableInts.of(own["start_ms"]).believable())
    cells = when_ms.values // CELL_MS
    cell = NullableInts(cells, when_ms.known & _is_inside(cells, near)).to_arrow()
    made = [_process_in(*row) for row in zip(*(rows[name].to_pylist() for name in _OF_PROCESS), strict=True)]
    process = pa.array(made, pa.string())
    groups, group_of = apply_to_distinct(LossGroup, lost, own["service"], own["group_name"], process, cell)
    return GroupedRows(groups, group_of, when_ms)


def _is_inside(cells: Ints, near: Sequence[range]) -> Mask:
    stretches = near if len(near) <= _MOST_STRETCHES else [range(near[0].start, near[-1].stop)]
    inside = np.zeros(len(cells), bool)
    for stretch in stretches:
        inside |= (cells >= stretch.start) & (cells < stretch.stop)
    return inside


_OF_PROCESS: Final = ("kind", "msg_id", "attempt_id")


def _process_in(kind: str, msg_id: str | None, attempt_id: str | None) -> str | None:
    """Return the process id in the id that the losing process generated: a send's message id, a delivery's request."""
    made = {Kind.PUBLISH.value: msg_id, Kind.CONSUME.value: attempt_id}.get(kind)
    if made is None or len(made) not in _ID_DIGITS or not _HEX.fullmatch(made):
        return None
    begin = len(made) - _TAIL_DIGITS
    return made[begin : begin + 4].upper()


def count_lost_keys(
    grouped: GroupedRows,
    is_open: Mask,
    *,
    lost_ends: Mapping[tuple[LossGroup, bool], int] = MappingProxyType({}),
    services_of: Mapping[str | None, frozenset[str]] = MappingProxyType({}),
    is_forgotten: Mask | None = None,
) -> list[LostKeys]:
    """Return the largest ``MOST_GROUPS`` groups of the open keys as losses.

    ``lost_ends`` are deliveries by group whose native end alone is lost, settled ones and those that may still get it;
    they come first, and their drops are used. ``services_of`` are the services that spans show for a native record's
    group. ``is_forgotten``: the next run does not see the key.
    """
    forgotten = np.zeros(len(is_open), bool) if is_forgotten is None else is_forgotten
    found = []
    for is_settled, members in ((False, is_open & ~forgotten), (True, is_open & forgotten)):
        counts = np.bincount(grouped.group_of[members], minlength=len(grouped.groups)).tolist()
        pairs = zip(grouped.groups, counts, strict=True)
        found += [LostKeys(of, count, is_settled=is_settled) for of, count in pairs if count]
    found += [LostKeys(of, count, known=True, is_settled=settled) for (of, settled), count in lost_ends.items()]
    found.sort(key=lambda loss: (not loss.known, -loss.count, loss.group.name, loss.is_settled))
    return [replace(loss, services=_services_of(loss.group, services_of)) for loss in found[:MOST_GROUPS]]


def _services_of(group: LossGroup, services_of: Mapping[str | None, frozenset[str]]) -> frozenset[str] | None:
    return services_of.get(group.group) if group.service is None else frozenset({group.service})


def choose_rows(
    rows: Mapping[str, Column], grouped: GroupedRows, is_open: Mask, allocations: Iterable[Allocation]
) -> list[tuple[int, str]]:
    """Return the covered rows of ``RESIDUE``, each with the cause, from ``allocations`` of keys by loss group."""
    by_group: defaultdict[LossGroup, list[Allocation]] = defaultdict(list)
    for allocation in allocations:
        by_group[allocation.group].append(allocation)
    wanted = {place: by_group[group] for place, group in enumerate(grouped.groups) if group in by_group}
    chosen = np.flatnonzero(is_open & np.isin(grouped.group_of, list(wanted)))
    when_ms, group_of = grouped.when_ms.take(chosen), grouped.group_of[chosen]
    order = chosen[np.lexsort((when_ms.filled(LATEST), ~when_ms.known, group_of))]
    found: list[tuple[int, str]] = []
    for begin, end in runs_of(grouped.group_of[order]):
        allocated = wanted[int(grouped.group_of[order[begin]])]
        found += _choose_members(rows, grouped.when_ms, order[begin:end].tolist(), allocated)
    return found


def _choose_members(
    rows: Mapping[str, Column], when_ms: NullableInts, members: list[int], allocations: Sequence[Allocation]
) -> Iterator[tuple[int, str]]:
    """Yield the covered ones of a group's rows, which are in order but for equal times."""
    bounds = list(accumulate(each.count for each in allocations))
    times = [int(when_ms.values[row]) if when_ms.known[row] else None for row in members]
    for bound in bounds:
        if 0 < bound < len(members) and times[bound - 1] == times[bound]:
            begin, end = times.index(times[bound]), len(times) - times[::-1].index(times[bound])
            members[begin:end] = sorted(
                members[begin:end], key=lambda row: spark_hash(*(rows[name][row].as_py() for name in _HASHED))
            )
    for each, begin, end in zip(allocations, [0, *bounds], bounds, strict=False):
        for row in members[begin:end]:
            yield row, each.cause


def spark_hash(*values: str | int | None) -> int:
    """Return Spark's ``xxhash64`` of strings and longs, as a signed 64-bit integer; nulls are skipped.

    It orders keys of equal times, so that the order of the rows decides nothing.
    """
    found = _SPARK_SEED
    for value in values:
        if value is not None:
            data = value.encode() if isinstance(value, str) else value.to_bytes(_LONG_BYTES, "little", signed=True)
            found = xxhash.xxh64_intdigest(data, found)
    return found - (1 << 64) if found >> 63 else found
