"""This module knows what a counter has counted: increments out of points that only add up, restart and repeat.

A cumulative point says how much since its start; the next one of the same series counts from there on, unless the
process began again. A delta point says how much in its own stretch of time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Increment", "Point", "Series", "increments", "series"]

Series: TypeAlias = "tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]"
"""Name, labels and resource attributes, both sorted: what tells one counter from every other."""


@dataclass(frozen=True, slots=True)
class Point:
    """One reading; ``start_ms`` and ``at_ms`` are epoch milliseconds, ``None`` when the source has no clock."""

    series: Series
    value: float
    start_ms: int | None = None
    at_ms: int | None = None
    delta: bool = False


@dataclass(frozen=True, slots=True)
class Increment:
    """``count`` more between ``start_ms`` and ``end_ms``; both are ``None`` when that can be any time of the run."""

    series: Series
    count: int
    start_ms: int | None = None
    end_ms: int | None = None


def series(name: str, labels: Mapping[str, str], resource: Mapping[str, str]) -> Series:
    """Return the identity of a counter."""
    return (name, tuple(sorted(labels.items())), tuple(sorted(resource.items())))


def increments(points: Iterable[Point]) -> Iterator[Increment]:
    """Yield what each series counted, in the order of series and time; nothing where it did not grow.

    Readings without a time are of one moment each, nobody knows which: of several the largest stands. A reading given
    twice counts once.
    """
    found: defaultdict[Series, set[Point]] = defaultdict(set)
    for point in points:
        found[point.series].add(point)
    for key in sorted(found):
        yield from (each for each in _increments(key, found[key]) if each.count > 0)


def _increments(key: Series, points: set[Point]) -> Iterator[Increment]:
    timed = sorted((point for point in points if point.at_ms is not None), key=_time)
    yield from _deltas(key, [point for point in timed if point.delta])
    yield from _cumulative(key, [point for point in timed if not point.delta])
    if len(timed) < len(points):
        largest = max(point.value for point in points if point.at_ms is None)
        yield Increment(key, round(largest))


def _time(point: Point) -> tuple[int, int, float]:
    return (point.at_ms or 0, point.start_ms or 0, point.value)


def _deltas(key: Series, points: list[Point]) -> Iterator[Increment]:
    last_ms: int | None = None
    for point in points:
        yield Increment(key, round(point.value), point.start_ms or last_ms, point.at_ms)
        last_ms = point.at_ms


def _cumulative(key: Series, points: list[Point]) -> Iterator[Increment]:
    last: Point | None = None
    for point in points:
        if last is None or _began_again(last, point):
            begin_ms = point.start_ms or (last.at_ms if last else None)
            yield Increment(key, round(point.value), begin_ms, point.at_ms if begin_ms is not None else None)
        else:
            yield Increment(key, round(point.value) - round(last.value), last.at_ms, point.at_ms)
        last = point


def _began_again(last: Point, point: Point) -> bool:
    """A start that moved beyond the last reading, or a count that fell: the process was restarted in between."""
    moved = point.start_ms is not None and last.start_ms is not None and point.start_ms >= (last.at_ms or 0)
    return point.value < last.value or (moved and point.start_ms != last.start_ms)
