"""This module knows how instants become places on an axis that stays readable: idle stretches are cut short.

A send of 20 ms and a retry ten minutes later do not fit one linear axis. Busy stretches and short pauses share one
linear scale; a pause that is longer than all of that together is a gap of fixed width, drawn as one and labelled with
its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Gap", "Scale", "scale_for"]

GAP_WIDTH: Final = 60.0
_LEAST_BUSY_MS: Final = 1


@dataclass(frozen=True, slots=True)
class Gap:
    """A pause that is cut short: ``[from_ms, to_ms]`` is drawn from ``x`` on."""

    from_ms: int
    to_ms: int
    x: float


@dataclass(frozen=True, slots=True)
class Scale:
    """Instants to x, from ``left``; ``gaps`` are in order, ``per_ms`` is the width of a millisecond everywhere else."""

    first_ms: int
    left: float
    per_ms: float
    gaps: tuple[Gap, ...]

    def x(self, instant_ms: int) -> float:
        """Return where ``instant_ms`` lies; inside of a gap, its share of the gap."""
        x, since = self.left, self.first_ms
        for gap in self.gaps:
            if instant_ms <= gap.from_ms:
                break
            if instant_ms < gap.to_ms:
                return gap.x + GAP_WIDTH * (instant_ms - gap.from_ms) / (gap.to_ms - gap.from_ms)
            x, since = gap.x + GAP_WIDTH, gap.to_ms
        return x + (instant_ms - since) * self.per_ms


def scale_for(spans: Iterable[tuple[int, int]], *, left: float, width: float) -> Scale:
    """Return the scale that shows all of ``spans`` (begin and end, epoch ms) between ``left`` and ``left + width``."""
    busy = _united(spans)
    pauses = [(end, start) for (_, end), (start, _) in pairwise(busy)]
    lengths = sorted(start - end for end, start in pauses)
    kept_ms = max(sum(end - start for start, end in busy), _LEAST_BUSY_MS)
    most_gaps = int(width / 2 / GAP_WIDTH)
    while lengths and (lengths[0] <= kept_ms or len(lengths) > most_gaps):
        kept_ms += lengths.pop(0)
    cut = [pause for pause in pauses if lengths and pause[1] - pause[0] >= lengths[0]]
    kept_ms = max((busy[-1][1] - busy[0][0]) - sum(start - end for end, start in cut), _LEAST_BUSY_MS)
    per_ms = (width - GAP_WIDTH * len(cut)) / kept_ms
    return Scale(busy[0][0], left, per_ms, _placed(busy[0][0], cut, left, per_ms))


def _placed(first_ms: int, cut: Sequence[tuple[int, int]], left: float, per_ms: float) -> tuple[Gap, ...]:
    gaps: list[Gap] = []
    x, since = left, first_ms
    for from_ms, to_ms in cut:
        x += (from_ms - since) * per_ms
        gaps.append(Gap(from_ms, to_ms, x))
        x, since = x + GAP_WIDTH, to_ms
    return tuple(gaps)


def _united(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ``spans`` in order, those that touch as one."""
    united: list[tuple[int, int]] = []
    for start, end in sorted((start, max(start, end)) for start, end in spans):
        if united and start <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], end))
        else:
            united.append((start, end))
    return united
