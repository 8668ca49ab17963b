"""This module knows what a counter has counted: increments out of points that only add up, restart and repeat.

A cumulative point says how much since its start; the next one of the same series counts from there on, unless the
process began again. A delta point says how much in its own stretch of time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

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
    """``count`` more between ``start_ms`` and ``end_ms``; both are ``None`` when that can be any time of the run.

    ``before``: it had counted that much when it was first read, and further readings follow.
    """

    series: Series
    count: int
    start_ms: int | None = None
    end_ms: int | None = None
    before: bool = False


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
    read_at = _readings(found)
    for key in sorted(found):
        name, _, resource = key
        yield from (each for each in _increments(key, found[key], read_at[name, resource]) if each.count > 0)


def _readings(found: Mapping[Series, set[Point]]) -> dict[tuple[object, object], list[int]]:
    """Return when each counter was read, whatever its labels: a series that is not there then had counted nothing."""
    times: defaultdict[tuple[object, object], set[int]] = defaultdict(set)
    for (name, _, resource), points in found.items():
        times[name, resource] |= {point.at_ms for point in points if point.at_ms is not None and not point.delta}
    return {counter: sorted(instants) for counter, instants in times.items()}


def _increments(key: Series, points: set[Point], read_at: Sequence[int]) -> Iterator[Increment]:
    timed = sorted((point for point in points if point.at_ms is not None), key=_time)
    yield from _deltas(key, [point for point in timed if point.delta])
    yield from _cumulative(key, [point for point in timed if not point.delta], read_at)
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


def _cumulative(key: Series, points: list[Point], read_at: Sequence[int]) -> Iterator[Increment]:
    last: Point | None = None
    for point in points:
        if last is None:
            yield _first(key, point, read_at)
        elif _began_again(last, point):
            yield Increment(key, round(point.value), point.start_ms or last.at_ms, point.at_ms)
        else:
            yield Increment(key, round(point.value) - round(last.value), last.at_ms, point.at_ms)
        last = point


def _first(key: Series, point: Point, read_at: Sequence[int]) -> Increment:
    """Return what a series had counted when it was first read: since its counter was read without it, else ever."""
    at_ms, count = point.at_ms or 0, round(point.value)
    absent_ms = max((read_ms for read_ms in read_at if read_ms < at_ms), default=None)
    if absent_ms is not None:
        return Increment(key, count, max(absent_ms, point.start_ms or 0), at_ms)
    end_ms = None if point.start_ms is None else at_ms
    return Increment(key, count, point.start_ms, end_ms, before=read_at[-1] > at_ms)


def _began_again(last: Point, point: Point) -> bool:
    """A start that moved beyond the last reading, or a count that fell: the process was restarted in between."""
    moved = point.start_ms is not None and last.start_ms is not None and point.start_ms >= (last.at_ms or 0)
    return point.value < last.value or (moved and point.start_ms != last.start_ms)
