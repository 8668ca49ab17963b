"""Spend counted drops on lost keys: as a budget, never more than was counted.

A drop pays for a key of the same side that nothing tells apart from it (service, group, process) and whose time lies
in its bucket or one cell beside it; a drop without a bucket pays for any time. The nearest and best known are served
first, so a bucket whose drops equal its keys covers exactly them. What is then left over moves along neighbouring
buckets, so that as many keys are covered as the counters allow. Names, times and counts decide, never row order.

Losses of keys that have a verdict anyway come before all others, however far away: what was counted for them is spent.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_jobs import names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from spark_jobs.drops import CountedDrop

__all__ = ["CELL_MS", "Allocation", "Covered", "Loss", "allocate", "cells"]

CELL_MS: Final = 10_000
"""The width of a cell of time; ``mqtrace``'s own ledger counts in the same."""

_WIDE_CELLS: Final = 720  # two hours: longer buckets are looked through, not indexed


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One-sided keys that nothing tells apart; ``None`` is unknown.

    Attributes:
        slot: names them.
        side: the side that lost them, ``native`` or ``otlp``.
        count: how many they are.
        services: those that the keys may belong to.
        cell: their time in ``CELL_MS``; ``None`` when no bucket is near.
        known: the key is there all the same; what is paid for it covers no other.
    """

    slot: str
    side: str
    count: int
    services: frozenset[str] | None = None
    group: str | None = None
    process: str | None = None
    cell: int | None = None
    known: bool = False


@dataclass(frozen=True, slots=True)
class Covered:
    """``count`` keys of ``slot`` that drops by ``cause`` pay for."""

    slot: str
    cause: str
    count: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """What is paid for, ordered by slot and cause, and of each drop, in the order given, how much was spent."""

    covered: tuple[Covered, ...]
    spent: tuple[int, ...]


def allocate(losses: Iterable[Loss], drops: Sequence[CountedDrop]) -> Allocation:
    """Spend ``drops`` on ``losses``; the sum over any part of either is never more than the other's."""
    wanted = sorted(losses, key=_position)
    alike = _alike(drops)
    ledger = _Ledger([drops[members[0]] for members in alike])
    edges = sorted(
        (rank, need, index) for need, loss in enumerate(wanted) for index, rank in ledger.paying(loss).items()
    )
    books = _Books([loss.count for loss in wanted], [sum(drops[member].count for member in each) for each in alike])
    of_known = [edge for edge in edges if wanted[edge[1]].known]
    for round_of in (of_known, edges):
        books.serve(round_of)
        books.move(round_of)
    paid: Counter[tuple[str, str]] = Counter()
    spent = [0] * len(drops)
    for (need, index), count in sorted(books.flow.items()):
        for member, part in _shares(alike[index], count, drops, spent):
            paid[wanted[need].slot, drops[member].cause] += part
            spent[member] += part
    covered = tuple(Covered(slot, cause, count) for (slot, cause), count in sorted(paid.items()) if count)
    return Allocation(covered, tuple(spent))


def _alike(drops: Sequence[CountedDrop]) -> list[list[int]]:
    """Return the drops, by their places, in groups that pay for the same: the budget knows each group as one."""
    found: defaultdict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, drop in enumerate(drops):
        found[drop.side, drop.service, _group(drop), drop.process, cells(drop), drop.of_start].append(place)
    return list(found.values())


def _shares(
    members: Sequence[int], count: int, drops: Sequence[CountedDrop], spent: Sequence[int]
) -> list[tuple[int, int]]:
    """Return which of several drops that are alike pay how much of ``count``: the first that have something left."""
    shares = []
    for member in members:
        part = min(count, drops[member].count - spent[member])
        if part:
            shares.append((member, part))
            count -= part
    return shares


def _position(loss: Loss) -> tuple[str, int, str]:
    return (loss.side, -1 if loss.cell is None else loss.cell, loss.slot)


def cells(drop: CountedDrop) -> range | None:
    """Return the cells of a drop's bucket; ``None`` when it has no bucket."""
    if drop.bucket_start_ms is None:
        return None
    last_ms = drop.bucket_start_ms + max(drop.bucket_ms or 1, 1) - 1
    return range(drop.bucket_start_ms // CELL_MS, last_ms // CELL_MS + 1)


def _group(named: CountedDrop | Loss) -> str | None:
    return None if named.group is None else names.bare(named.group)


class _Ledger:
    """The drops, found by side, group and cell."""

    def __init__(self, drops: Sequence[CountedDrop]) -> None:
        self._drops = drops
        self._cells = [cells(drop) for drop in drops]
        self._near: defaultdict[tuple[str, int, str | None], list[int]] = defaultdict(list)
        self._wide: defaultdict[str, list[int]] = defaultdict(list)
        for index, (drop, bucket) in enumerate(zip(drops, self._cells, strict=True)):
            if drop.of_start:
                continue  # a key whose end was recorded is on both sides; one whose end was lost, too, is counted there
            if bucket is None or len(bucket) > _WIDE_CELLS:
                self._wide[drop.side].append(index)
                continue
            for cell in range(bucket.start - 1, bucket.stop + 1):
                self._near[drop.side, cell, _group(drop)].append(index)
        self._groups = sorted({name for _, _, name in self._near if name is not None})

    def paying(self, loss: Loss) -> dict[int, tuple[int, int]]:
        """Return the drops that may pay for a loss and how far each is from it: in time, then in what is unknown."""
        return {index: self._rank(index, loss) for index in self._candidates(loss) if self._may_pay(index, loss)}

    def _candidates(self, loss: Loss) -> Iterator[int]:
        yield from self._wide[loss.side]
        if loss.cell is not None:
            for group in (None, *([_group(loss)] if loss.group is not None else self._groups)):
                yield from self._near.get((loss.side, loss.cell, group), ())

    def _may_pay(self, index: int, loss: Loss) -> bool:
        drop, bucket = self._drops[index], self._cells[index]
        return (
            (bucket is None or (loss.cell is not None and bucket.start - 1 <= loss.cell <= bucket.stop))
            and (drop.service is None or loss.services is None or drop.service in loss.services)
            and (drop.group is None or loss.group is None or _group(drop) == _group(loss))
            and (drop.process is None or loss.process is None or drop.process == loss.process)
        )

    def _rank(self, index: int, loss: Loss) -> tuple[int, int]:
        drop, bucket = self._drops[index], self._cells[index]
        apart = 2 if bucket is None else int(loss.cell not in bucket)
        return (apart, [drop.service, drop.group, drop.process].count(None))


class _Books:
    """The payments: how much of each drop went to each loss."""

    def __init__(self, needs: list[int], left: list[int]) -> None:
        self.needs, self.left = needs, left
        self.flow: Counter[tuple[int, int]] = Counter()

    def serve(self, edges: Iterable[tuple[tuple[int, int], int, int]]) -> None:
        """Spend each drop on the nearest losses first, as far as it goes."""
        for _, need, index in edges:
            self._pay(need, index)

    def _pay(self, need: int, index: int) -> None:
        amount = min(self.needs[need], self.left[index])
        if amount:
            self._book(need, index, amount)
            self.needs[need] -= amount
            self.left[index] -= amount

    def _book(self, need: int, index: int, amount: int) -> None:
        self.flow[need, index] += amount
        if not self.flow[need, index]:
            del self.flow[need, index]

    def move(self, edges: Iterable[tuple[tuple[int, int], int, int]]) -> None:
        """Cover what is still open by moving other losses to drops that have something left."""
        payers: dict[int, list[int]] = defaultdict(list)
        for _, need, index in edges:
            payers[need].append(index)
        customers: dict[int, list[int]] = defaultdict(list)
        for _, need, index in edges:
            customers[index].append(need)
        dead: set[int] = set()  # drops from which nothing left over can be reached, now or later
        for need in sorted(payers):
            while self.needs[need] and (path := self._path(need, payers, customers, dead)):
                self._shift(need, path)

    def _path(
        self, need: int, payers: Mapping[int, list[int]], customers: Mapping[int, list[int]], dead: set[int]
    ) -> list[tuple[int, int]] | None:
        """Return ``(drop, its customer that changes)`` from ``need`` outwards; the last one's customer is -1."""
        came: dict[int, tuple[int, int]] = {}  # drop → the loss that wants it, and the drop that loss leaves
        waiting = deque([(need, -1)])
        seen = {need}
        while waiting:
            wanting, leaving = waiting.popleft()
            for index in payers[wanting]:
                if index in came or index in dead:
                    continue
                came[index] = (wanting, leaving)
                if self.left[index]:
                    return _traced(came, index)
                for customer in customers[index]:
                    if customer not in seen and self.flow.get((customer, index)):
                        seen.add(customer)
                        waiting.append((customer, index))
        dead.update(came)
        return None

    def _shift(self, need: int, path: list[tuple[int, int]]) -> None:
        moves = [self.flow[customer, index] for index, customer in path if customer >= 0]
        amount = min(self.needs[need], self.left[path[-1][0]], *moves)
        paid = need
        for index, customer in path:
            self._book(paid, index, amount)
            if customer >= 0:
                self._book(customer, index, -amount)
                paid = customer
        self.needs[need] -= amount
        self.left[path[-1][0]] -= amount


def _traced(came: Mapping[int, tuple[int, int]], last: int) -> list[tuple[int, int]]:
    path, index, customer = [], last, -1
    while index >= 0:
        path.append((index, customer))
        customer, index = came[index]
    return path[::-1]
