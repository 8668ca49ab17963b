"""Count each loss once that earlier runs have spent on keys, whether this run's ledgers hold it or not."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from spark_jobs.sources.ledger import LedgerRead

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.drops import CountedDrop

__all__ = ["add_earlier_losses", "find_payable"]


def find_payable(ledger: LedgerRead | None, earlier: Sequence[CountedDrop]) -> LedgerRead | None:
    """Return the losses that may be spent: those counted for this run, and those that paid for keys still carried.

    The keys that an earlier loss was spent on are judged again, and it can pay for those and no others beside.
    """
    if not earlier:
        return ledger
    read = LedgerRead() if ledger is None else ledger
    return replace(read, drops=add_earlier_losses(read.drops, earlier))


def add_earlier_losses(drops: Sequence[CountedDrop], earlier: Sequence[CountedDrop]) -> tuple[CountedDrop, ...]:
    """Return ``drops`` less what they hold of ``earlier``, and ``earlier``: each loss is there exactly once.

    A loss is held by counts of the same place and cause whose bucket is the same, or spans it: a counter that only adds
    up is read over a longer stretch each day.

    Args:
        drops: what this run's ledgers count.
        earlier: what earlier runs spent on keys; it was payable then, so ``before`` no longer matters.
    """
    owed: Counter[CountedDrop] = Counter()
    for drop in earlier:
        owed[replace(drop, count=0, before=False)] += drop.count
    known: defaultdict[CountedDrop, list[int]] = defaultdict(list)
    for index, drop in enumerate(drops):
        same = replace(drop, count=0, before=False)
        for key in {same, _without_bucket(same)}:
            known[key].append(index)
    left = [drop.count for drop in drops]
    for drop, count in owed.items():
        holding = (index for key in (drop, _without_bucket(drop)) for index in known[key] if _spans(drops[index], drop))
        missing = count
        for index in holding:
            taken = min(missing, left[index])
            left[index] -= taken
            missing -= taken
            if not missing:
                break
    return (
        *(replace(drop, count=count) for drop, count in zip(drops, left, strict=True)),
        *(replace(drop, count=count) for drop, count in owed.items()),
    )


def _without_bucket(drop: CountedDrop) -> CountedDrop:
    return replace(drop, bucket_start_ms=None, bucket_ms=None)


def _spans(drop: CountedDrop, other: CountedDrop) -> bool:
    """Tell whether a drop's bucket holds that of another one; without a bucket it is the whole run's."""
    if drop.bucket_start_ms is None:
        return True
    if other.bucket_start_ms is None:
        return False
    end_ms = drop.bucket_start_ms + (drop.bucket_ms or 0)
    return drop.bucket_start_ms <= other.bucket_start_ms and end_ms >= other.bucket_start_ms + (other.bucket_ms or 0)
