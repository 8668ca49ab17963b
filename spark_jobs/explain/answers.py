"""What a run says to the questions of its residue: measures per key, added up within tasks and then over tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from spark_jobs.judging.columns import Ints

__all__ = ["COUNTS", "EARLIEST", "GREATEST", "MOST_MOMENTS", "UNKNOWN_LEAST", "Answers", "merge_answers"]

MOST_MOMENTS: Final = 256
"""More moments under one key are only counted: the key is *crowded*."""

EARLIEST: Final = -(1 << 63)
"""Stands for an unknown value where the greatest is wanted."""
UNKNOWN_LEAST: Final = (1 << 63) - 1
"""Stands for an unknown value where the least is wanted."""

COUNTS: Final = (
    "keys",
    "native",
    "otlp",
    "following",  # spans that are sampled as their send was
    "sent",  # sends that a sampler decided about one by one
    "unseen",  # those of them without a span
    "linked",  # sampled sends that links tell of; deliveries sampled with their send are no sample of all sends
    "sampled",  # links that say how it was
    "unsampled",
    "native_deliveries",
)
GREATEST: Final = ("native_ms", "otlp_ms", "cost_ms")
"""Measures of which the greatest counts; unknown ones are ``EARLIEST``."""
_LAST: Final = ("place_ms", "place_at", "place_recorded")


@dataclass(frozen=True, slots=True)
class Answers:
    """Measures per key. Answers whose keys are not distinct and sorted are parts that ``grouped`` adds up.

    Attributes:
        keys: hashes of questions.
        measures: by name one value a key: counts, ``first_ms``, the greatest ``native_ms``, ``otlp_ms`` and
            ``cost_ms``, the last place of a listener call, and ``moment_count``.
        moments: of all keys one after another; none of a crowded key.
        moment_starts: where the moments of each key begin, and behind them the end of all.
    """

    keys: npt.NDArray[np.uint64]
    measures: Mapping[str, Ints]
    moments: Ints
    moment_starts: Ints

    def grouped(self) -> Answers:
        """Return the same with each key once, in order."""
        if not len(self.keys):
            return self
        measures = self.measures
        order = np.lexsort((*(measures[name] for name in reversed(_LAST)), self.keys))
        keys = self.keys[order]
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        last = np.append(starts[1:], len(keys)) - 1
        found = {name: np.add.reduceat(measures[name][order], starts) for name in (*COUNTS, "moment_count")}
        found["first_ms"] = np.minimum.reduceat(measures["first_ms"][order], starts)
        found |= {name: np.maximum.reduceat(measures[name][order], starts) for name in GREATEST}
        found |= {name: measures[name][order][last] for name in _LAST}
        return Answers(keys[starts], found, *self._gather_moments(order, starts, found["moment_count"]))

    def _gather_moments(self, order: Ints, starts: Ints, counts: Ints) -> tuple[Ints, Ints]:
        group_of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))
        begins = self.moment_starts[:-1][order]
        sizes = np.diff(self.moment_starts)[order]
        sizes = np.where(counts[group_of] <= MOST_MOMENTS, sizes, 0)
        ends = np.cumsum(sizes)
        places = np.repeat(begins - (ends - sizes), sizes) + np.arange(ends[-1])
        return self.moments[places], np.append((ends - sizes)[starts], ends[-1])


def merge_answers(parts: Sequence[Answers]) -> Answers:
    """Return the answers of several tasks as those of one; there is at least one."""
    filled = [part for part in parts if len(part.keys)] or list(parts[:1])
    starts, behind = [], 0
    for part in filled:
        starts.append(part.moment_starts[:-1] + behind)
        behind += len(part.moments)
    return Answers(
        np.concatenate([part.keys for part in filled]),
        {name: np.concatenate([part.measures[name] for part in filled]) for name in filled[0].measures},
        np.concatenate([part.moments for part in filled]),
        np.append(np.concatenate(starts), behind),
    ).grouped()
