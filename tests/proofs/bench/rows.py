"""One row of a benchmark: our figure, the anchor's figure of the same run, the target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeVar

RATIO: Final = "x"
"""The unit of a target for the ratio; any other unit is that of our own figure."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound with the sign ``≤`` or ``≥``, for the ratio when ``unit`` is ``x``, else for our own figure."""

    sign: str
    bound: float
    unit: str = RATIO

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g} {self.unit}"

    def is_met(self, value: float) -> bool:
        return value <= self.bound if self.sign == "≤" else value >= self.bound


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds; ``low``, ``middle`` and ``high`` describe the ratios of the rounds.

    ``theirs`` is ``None`` without an anchor. The ratio's median is not the ratio of the medians: when the machine changes
    its speed between rounds, both sides of one round still see the same speed.
    """

    measure: str
    anchor: str
    ours: float
    theirs: float | None
    unit: str
    target: Target | None = None
    note: str = ""
    low: float | None = None
    middle: float | None = None
    high: float | None = None

    @property
    def ratio(self) -> float | None:
        """Ours divided by the anchor's; ``None`` without an anchor, or when noise made a figure negative."""
        if self.theirs is None or self.theirs <= 0 or self.ours < 0:
            return None
        return self.ours / self.theirs if self.middle is None else self.middle

    @property
    def met(self) -> bool | None:
        """Whether the target is met; ``None`` without a target or a ratio."""
        if self.target is None:
            return None
        value = self.ratio if self.target.unit == RATIO else self.ours
        return None if value is None else self.target.is_met(value)

    def to_json(self) -> dict[str, Any]:
        """Return the row as plain data."""
        target = None if self.target is None else [self.target.sign, self.target.bound, self.target.unit]
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "target"}
        return {**fields, "target": target, "ratio": self.ratio, "met": self.met}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Row:
        """Return the row of a file; ``ratio`` and ``met`` are computed again, never read."""
        own = {name: fields[name] for name in cls.__slots__ if name != "target" and name in fields}
        return cls(**own, target=Target(*fields["target"]) if fields["target"] else None)


@dataclass(frozen=True, slots=True)
class Effort:
    """Rounds, the share of the usual work in each, messages of a day or a topic (0: the section's own number)."""

    rounds: int = 7
    share: float = 1.0
    messages: int = 0

    def scale(self, usual: int, *, least: int = 1) -> int:
        """Return this share of ``usual``."""
        return max(least, int(usual * self.share))


_Name = TypeVar("_Name")
_Result = TypeVar("_Result")


def run_in_turns(contenders: Mapping[_Name, Callable[[], _Result]], rounds: int) -> dict[_Name, list[_Result]]:
    """Run every contender once a round, each round starting with the next one; return their results by round."""
    names = list(contenders)
    results: dict[_Name, list[_Result]] = {name: [] for name in names}
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            results[name].append(contenders[name]())
    return results


def compare(
    measure: str,
    anchor: str,
    ours: Sequence[float],
    theirs: Sequence[float] | None,
    unit: str,
    target: Target | None = None,
    note: str = "",
) -> Row:
    """Return the row of two contenders that ran in turns."""
    if theirs is None:
        return Row(measure, anchor, median(ours), None, unit, target, note)
    ratios = [one / other for one, other in zip(ours, theirs, strict=True) if other > 0]
    is_whole = len(ratios) == len(ours) > 1  # the difference to the bare client is below zero in a noisy round
    spread = (min(ratios), median(ratios), max(ratios)) if is_whole else (None, None, None)
    return Row(measure, anchor, median(ours), median(theirs), unit, target, note, *spread)


def format_figure(figure: float) -> str:
    """Return three significant digits, with separators of thousands."""
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
