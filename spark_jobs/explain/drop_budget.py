"""Assign counted drops to lost keys, never more than were counted.

A drop covers a key of the same side, service, group and process whose time lies in the drop's bucket or one cell
beside it; a drop without a bucket covers any time. The nearest and most specific drops are assigned first. The rest
moves along neighbouring buckets, since the tail of a burst is counted in the next one. Losses of keys that have a
verdict anyway use up their drops first. Names, times and counts decide, never row order.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from spark_jobs.schemas import LedgerRead, bare

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

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
class Loss:
    """How many keys of a group are lost, and the services that they may belong to.

    ``known``: the keys have a verdict all the same; what is used for them covers no other.
    """

    group: LossGroup
    count: int
    services: frozenset[str] | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class Allocation:
    """``count`` keys of a group that drops by ``cause`` cover."""

    group: LossGroup
    cause: str
    count: int


def allocate(losses: Iterable[Loss], drops: Sequence[CountedDrop]) -> tuple[list[Allocation], tuple[int, ...]]:
    """Spend ``drops`` on ``losses``; return what is covered, and how much of each drop is used.

    What is covered leaves out the known losses, and is ordered by cause within a group.
    """
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
    used = [0] * len(drops)
    for (need, drop), count in sorted(balance.flow.items()):
        for member in alike[drop]:
            part = min(count, drops[member].count - used[member])
            covered[need, drops[member].cause] += part
            used[member] += part
            count -= part  # noqa: PLW2901 - what the next one of those that are alike covers
    found = [
        Allocation(wanted[need].group, cause, count)
        for (need, cause), count in sorted(covered.items())
        if count and not wanted[need].known
    ]
    return found, tuple(used)


def _position(loss: Loss) -> tuple[str, int, bool, str]:
    return loss.group.lost, -1 if loss.group.cell is None else loss.group.cell, not loss.known, loss.group.name


def _group_alike(drops: Sequence[CountedDrop]) -> list[list[int]]:
    """Return the places of drops in groups that cover the same keys: the budget counts each group as one."""
    found: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, drop in enumerate(drops):
        found[drop.side, drop.service, _bare(drop.group), drop.process, cells_of(drop), drop.of_start].append(place)
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


def _bare(group: str | None) -> str | None:
    return None if group is None else bare(group)


_Rank: TypeAlias = tuple[int, int]
"""How far a drop is from a loss: in time, then in what is unknown of it."""


class _DropIndex:
    """The drops, found by side and cell."""

    def __init__(self, drops: Sequence[CountedDrop]) -> None:
        self._drops = [(drop, cells_of(drop), _bare(drop.group)) for drop in drops]
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

    def find(self, loss: Loss) -> Iterator[tuple[int, _Rank]]:
        """Yield the drops that may cover a loss."""
        lost, _, group, process, cell = loss.group
        group = _bare(group)
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
        self,
        need: int,
        drops_of: defaultdict[int, list[int]],
        losses_of: defaultdict[int, list[int]],
        dead: set[int],
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
