"""This module knows that what earlier runs were paid with is there once, whether this run's ledgers hold it or not."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_jobs.drops import CountedDrop

__all__ = ["with_earlier"]


def with_earlier(drops: Sequence[CountedDrop], earlier: Sequence[CountedDrop]) -> tuple[CountedDrop, ...]:
    """Return ``drops`` less what they hold of ``earlier``, and ``earlier``: no loss is there twice, none is missing.

    A loss is held by counts of the same place and cause whose bucket is the same, or spans it: a counter that only adds
    up is read over a longer stretch each day.

    Args:
        drops: what this run's ledgers count.
        earlier: what earlier runs were paid with; it has paid, so when it was counted is no question any more.
    """
    owed: Counter[CountedDrop] = Counter()
    for drop in earlier:
        owed[replace(drop, count=0, before=False)] += drop.count
    known: defaultdict[CountedDrop, list[int]] = defaultdict(list)
    for index, drop in enumerate(drops):
        same = replace(drop, count=0, before=False)
        for key in {same, _counter(same)}:
            known[key].append(index)
    left = [drop.count for drop in drops]
    for drop, count in owed.items():
        held = (index for key in (drop, _counter(drop)) for index in known[key] if _spans(drops[index], drop))
        for index in held:
            taken = min(count, left[index])
            left[index] -= taken
            count -= taken  # noqa: PLW2901 - what is still to be found
            if not count:
                break
    return (
        *(replace(drop, count=count) for drop, count in zip(drops, left, strict=True)),
        *(replace(drop, count=count) for drop, count in owed.items()),
    )


def _counter(same: CountedDrop) -> CountedDrop:
    """Return whose count it is, whenever it was."""
    return replace(same, bucket_start_ms=None, bucket_ms=None)


def _spans(drop: CountedDrop, other: CountedDrop) -> bool:
    """Say whether a drop's bucket holds that of another one; without a bucket it is the whole run's."""
    if drop.bucket_start_ms is None:
        return True
    if other.bucket_start_ms is None:
        return False
    ends = [one.bucket_start_ms + (one.bucket_ms or 0) for one in (drop, other) if one.bucket_start_ms is not None]
    return drop.bucket_start_ms <= other.bucket_start_ms and ends[0] >= ends[1]
