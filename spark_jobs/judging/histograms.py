"""Counts per distinct value that add up: ranks of durations over many tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from spark_jobs.judging.columns import Ints

__all__ = ["Histogram", "merge_histograms"]

_MOST_VALUES: Final = 10_000
"""So many distinct values are counted exactly; beyond, values are rounded to four significant digits."""
_DIGITS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Histogram:
    """Distinct ``values`` in ascending order and how often each was seen; ``least`` and ``most`` are always exact."""

    values: Ints
    counts: Ints
    least: int
    most: int

    @classmethod
    def of(cls, values: Ints) -> Histogram:
        """Return the histogram of at least one value."""
        distinct, counts = np.unique(values, return_counts=True)
        return cls(distinct, counts, int(distinct[0]), int(distinct[-1])).bounded()

    @property
    def count(self) -> int:
        """How many values there are."""
        return int(self.counts.sum())

    def rank(self, shares: Sequence[float]) -> list[int]:
        """Return for each share the least value that at least this share of all values does not exceed."""
        so_far = np.cumsum(self.counts)
        wanted = np.ceil(np.array(shares) * so_far[-1])
        return [int(value) for value in self.values[np.searchsorted(so_far, wanted)]]

    def bounded(self) -> Histogram:
        """Return it with no more values than are counted exactly."""
        if len(self.values) <= _MOST_VALUES:
            return self
        size = 10.0 ** np.floor(np.log10(np.maximum(np.abs(self.values.astype(np.float64)), 1)))
        step = np.maximum(size / (_DIGITS / 10), 1).astype(np.int64)
        rounded = self.values // step * step
        distinct, places = np.unique(rounded, return_inverse=True)
        return Histogram(distinct, np.bincount(places, weights=self.counts).astype(np.int64), self.least, self.most)


def merge_histograms(parts: Iterable[Histogram]) -> Histogram:
    """Return the histogram of all values of at least one part."""
    some = list(parts)
    if len(some) == 1:
        return some[0]
    values, places = np.unique(np.concatenate([part.values for part in some]), return_inverse=True)
    counts = np.bincount(places, weights=np.concatenate([part.counts for part in some])).astype(np.int64)
    merged = Histogram(values, counts, min(part.least for part in some), max(part.most for part in some))
    return merged.bounded()
