"""The rows of a long list that a page shows: those with most trouble, and the rest as one counted row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Listing", "listing"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """``shown`` in their own order; ``others`` counts what is left out, and ``sums`` what it adds up to."""

    shown: tuple[T, ...]
    others: int
    sums: dict[str, int]


def listing(rows: Sequence[T], *, most: int, weight: Callable[[T], Any], sums: Sequence[str]) -> Listing[T]:
    """Return up to ``most`` of ``rows``, those of the highest ``weight``, and the rest added up by the named counts."""
    heaviest = sorted(range(len(rows)), key=lambda at: weight(rows[at]), reverse=True)
    kept, left = sorted(heaviest[:most]), heaviest[most:]
    totals = {name: sum(getattr(rows[at], name) for at in left) for name in sums}
    return Listing(tuple(rows[at] for at in kept), len(left), totals)
