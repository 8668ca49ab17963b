"""A measurement: ours beside an anchor of the same run, the target, and whether it is met.

Every ratio is ours divided by the anchor's, whatever the unit; the target says which way is good. A row that is read back
from a file is judged anew, so no file can say ``met`` of a figure that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeVar

TIMES: Final = "x"
"""The unit of a target that is a ratio; any other unit is a bound of our own figure."""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound: ``sign`` is ``≤`` or ``≥``; of the ratio when ``unit`` is ``x``, else of our own figure."""

    sign: str
    bound: float
    unit: str = TIMES

    def __str__(self) -> str:
        return f"{self.sign} {self.bound:g} {self.unit}"

    def holds(self, value: float) -> bool:
        return value <= self.bound if self.sign == "≤" else value >= self.bound


@dataclass(frozen=True, slots=True)
class Row:
    """One line: medians over the rounds. ``low``, ``middle`` and ``high`` are of the ratios of the rounds, if several.

    A machine that is half as fast every other moment makes two medians of different moments; the median of ratios is of
    one, for both of a pair were measured in it.

    Without an anchor ``theirs`` is ``None``; without a target the figure is published and nothing is promised of it.
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
        """Ours divided by the anchor's, round by round; ``None`` where noise left nothing to divide, or to divide by."""
        if self.theirs is None or self.theirs <= 0 or self.ours < 0:
            return None
        return self.ours / self.theirs if self.middle is None else self.middle

    @property
    def met(self) -> bool | None:
        """Return whether the target holds; ``None`` where there is none, or no anchor to hold it against."""
        if self.target is None:
            return None
        value = self.ratio if self.target.unit == TIMES else self.ours
        return None if value is None else self.target.holds(value)

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data, with what a reader of the file would have to work out."""
        target = None if self.target is None else [self.target.sign, self.target.bound, self.target.unit]
        own = {name: getattr(self, name) for name in self.__slots__ if name != "target"}
        return {**own, "target": target, "ratio": self.ratio, "met": self.met}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Row:
        """Return the row that a file holds; its ``ratio`` and ``met`` are worked out again."""
        given = {name: said[name] for name in cls.__slots__ if name != "target" and name in said}
        return cls(**given, target=Target(*said["target"]) if said["target"] else None)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: rounds, the share of the usual work in each, messages of a day or of a topic.

    ``messages`` of 0 are as many as the section says, or none where it reads neither (``Section.fitting``).
    """

    rounds: int = 7
    share: float = 1.0
    messages: int = 0

    def of(self, usual: int, *, least: int = 1) -> int:
        return max(least, int(usual * self.share))


_Name = TypeVar("_Name")
_Taken = TypeVar("_Taken")


def interleaved(contenders: Mapping[_Name, Callable[[], _Taken]], rounds: int) -> dict[_Name, list[_Taken]]:
    """Run every contender once in each round, each round beginning with another one, so that a busy moment hits all.

    Returns what each took, round by round; the same place is the same round.
    """
    names = list(contenders)
    took: dict[_Name, list[_Taken]] = {name: [] for name in names}
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            took[name].append(contenders[name]())
    return took


def beside(
    measure: str,
    anchor: str,
    ours: Sequence[float],
    theirs: Sequence[float] | None,
    unit: str,
    target: Target | None = None,
    note: str = "",
) -> Row:
    """Return the row of two contenders that took turns."""
    if theirs is None:
        return Row(measure, anchor, median(ours), None, unit, target, note)
    shares = [one / other for one, other in zip(ours, theirs, strict=True) if other > 0]
    are_all = len(shares) == len(ours) > 1  # a round that noise left nothing of would be the worst of ours
    spread = (min(shares), median(shares), max(shares)) if are_all else (None, None, None)
    return Row(measure, anchor, median(ours), median(theirs), unit, target, note, *spread)


def written(figure: float) -> str:
    """Return three digits that count, and thousands as a reader expects them."""
    return f"{figure:,.0f}" if abs(figure) >= 100 else f"{figure:.3g}"
