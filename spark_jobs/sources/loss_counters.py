"""Counters of lost spans, their increments, and the losses these stand for."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, TypeAlias

from spark_jobs.schemas import CountedDrop, LedgerRead

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

Series: TypeAlias = "tuple[str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]"
"""The identity of a counter: name, labels and resource attributes, both sorted."""


@dataclass(frozen=True, slots=True)
class Point:
    """One reading; ``start_ms`` and ``at_ms`` are epoch milliseconds, ``None`` when the source has no clock.

    ``value`` is from 0 to 2^53, or NaN for anything else that the source gives.
    """

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
    """Yield what each series counted, in the order of series and time; nothing where it did not grow. Skip NaN.

    Readings without a time are each of one unknown moment: of several the largest stands. A reading given
    twice counts once.
    """
    found: defaultdict[Series, set[Point]] = defaultdict(set)
    for point in points:
        if not math.isnan(point.value):
            found[point.series].add(point)
    read_at = _readings(found)
    for (name, _, resource), points_of in sorted(found.items(), key=itemgetter(0)):
        yield from (each for each in _increments(points_of, read_at[name, resource]) if each.count > 0)


def _readings(found: Mapping[Series, set[Point]]) -> dict[tuple[object, object], list[int]]:
    """Return when each counter was read, whatever its labels: a series that is not there then had counted nothing."""
    times: defaultdict[tuple[object, object], set[int]] = defaultdict(set)
    for (name, _, resource), points in found.items():
        times[name, resource] |= {point.at_ms for point in points if point.at_ms is not None and not point.delta}
    return {counter: sorted(instants) for counter, instants in times.items()}


def _increments(points: set[Point], read_at: Sequence[int]) -> Iterator[Increment]:
    timed = sorted(
        (point for point in points if point.at_ms is not None),
        key=lambda point: (point.at_ms, point.start_ms or 0, point.value),
    )
    yield from _deltas([point for point in timed if point.delta])
    yield from _cumulative([point for point in timed if not point.delta], read_at)
    if len(timed) < len(points):
        largest = max((point for point in points if point.at_ms is None), key=attrgetter("value"))
        yield Increment(largest.series, round(largest.value))


def _deltas(points: list[Point]) -> Iterator[Increment]:
    last_ms: int | None = None
    for point in points:
        yield Increment(point.series, round(point.value), point.start_ms or last_ms, point.at_ms)
        last_ms = point.at_ms


def _cumulative(points: list[Point], read_at: Sequence[int]) -> Iterator[Increment]:
    if points:
        yield _first(points[0], read_at)
    for last, point in pairwise(points):
        if _began_again(last, point):
            yield Increment(point.series, round(point.value), point.start_ms or last.at_ms, point.at_ms)
        else:
            yield Increment(point.series, round(point.value) - round(last.value), last.at_ms, point.at_ms)


def _first(point: Point, read_at: Sequence[int]) -> Increment:
    """Return what a series had counted when it was first read: since its counter was read without it, else ever."""
    at_ms, count = point.at_ms or 0, round(point.value)
    absent_ms = max((read_ms for read_ms in read_at if read_ms < at_ms), default=None)
    if absent_ms is not None:
        return Increment(point.series, count, max(absent_ms, point.start_ms or 0), at_ms)
    end_ms = None if point.start_ms is None else at_ms
    return Increment(point.series, count, point.start_ms, end_ms, before=read_at[-1] > at_ms)


def _began_again(last: Point, point: Point) -> bool:
    """A start that moved beyond the last reading, or a count that fell: the process was restarted in between."""
    moved = point.start_ms is not None and last.start_ms is not None and point.start_ms >= (last.at_ms or 0)
    return point.value < last.value or (moved and point.start_ms != last.start_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCounter:
    """One counter of lost spans.

    Attributes:
        name: with underscores.
        label: a reading with this label is a loss, and its text the cause; by default every reading is a loss.
        value: the text that the label must have.
        cause: of every loss it counts.
        component: the labels that name the component, or its name.
        names_service: whether the resource is that of the spans, and not the Collector's.
        depth: position in a Collector's pipeline; a failure is counted once more at every lesser depth.
    """

    name: str
    label: str | None = None
    value: str | None = None
    cause: str | None = None
    component: tuple[str, ...]
    names_service: bool = True
    depth: int | None = None


_SDK_COMPONENT: Final = ("otel_component_name", "otel_component_type")


def _collector(name: str, component: str, cause: str, depth: int | None = None) -> LossCounter:
    return LossCounter(
        name=f"otelcol_{name}_spans", component=(component,), cause=cause, names_service=False, depth=depth
    )


LOSS_COUNTERS: Final = (
    LossCounter(name="otel_sdk_processor_span_processed", label="error_type", component=_SDK_COMPONENT),
    LossCounter(name="otel_sdk_exporter_span_exported", label="error_type", component=_SDK_COMPONENT),
    LossCounter(name="processedSpans", label="dropped", value="true", cause="queue_full", component=("processorType",)),
    _collector("receiver_refused", "receiver", "receiver_refused", 0),
    _collector("processor_refused", "processor", "processor_refused", 1),
    _collector("processor_dropped", "processor", "processor_dropped"),
    _collector("exporter_enqueue_failed", "exporter", "enqueue_failed", 2),
    _collector("exporter_send_failed", "exporter", "send_failed", 2),
)
"""Every counter that is read; the others of a dump are passed over."""

_BY_NAME: Final = {counter.name: counter for counter in LOSS_COUNTERS}
_UNIT: Final = re.compile(r"_+spans?$")  # some writers put the unit behind the name, some with its braces
_OWN: Final = ("otel_mqtrace.", "bridge.")


def drops_of(found: Iterable[Increment]) -> LedgerRead:
    """Return the counted losses among increments, except those of mqtrace's own processor.

    Those do not name the side of their lane; the processor's ledger file does, and would count twice.
    """
    drops, own = [], 0
    of_collectors: defaultdict[tuple[object, ...], list[tuple[int, CountedDrop]]] = defaultdict(list)
    for increment in found:
        _, labels, resource = increment.series
        counter = _loss_counter(increment.series)
        if counter is None:
            continue
        if any(value.startswith(_OWN) for _, value in labels):
            own += 1
            continue
        drop = _drop(counter, increment)
        if counter.depth is None:
            drops.append(drop)
        else:
            of_collectors[resource, drop.instance, increment.end_ms].append((counter.depth, drop))
    once = [drop for answered in of_collectors.values() for drop in _once(answered)]
    whole = sum(drop.count for answered in of_collectors.values() for _, drop in answered)
    return LedgerRead(drops=(*drops, *once), own=own, again=whole - sum(drop.count for drop in once))


def count_unusable(points: Iterable[Point]) -> int:
    """Return how many readings of loss counters are not counts."""
    return sum(math.isnan(point.value) and _loss_counter(point.series) is not None for point in points)


def _loss_counter(key: Series) -> LossCounter | None:
    """Return what counts the losses of a series; ``None`` if it counts anything else."""
    plain = key[0].replace(".", "_")
    untotalled = plain.removesuffix("_total").rstrip("_")
    names = (plain, untotalled, _UNIT.sub("", untotalled))
    counter = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if counter is None or counter.label is None:
        return counter
    value = _underscore(key[1]).get(counter.label)
    is_loss = bool(value) if counter.value is None else value == counter.value
    return counter if is_loss else None


def _once(answered: Iterable[tuple[int, CountedDrop]]) -> list[CountedDrop]:
    """Return one Collector's losses between two readings: a lesser depth adds only its excess over the deeper ones.

    Losses at two depths with a queue between them are counted too low: the stricter result.
    """
    drops, counted, taken, last = [], 0, 0, None
    for depth, drop in sorted(answered, key=lambda each: -each[0]):
        if depth != last:
            last, taken = depth, counted  # what this depth may have counted again
        again = min(drop.count, taken)
        taken -= again
        counted += drop.count - again
        if drop.count > again:
            drops.append(replace(drop, count=drop.count - again))
    return drops


def _underscore(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.replace(".", "_"): value for name, value in pairs}


def _drop(counter: LossCounter, increment: Increment) -> CountedDrop:
    labels, resource = map(_underscore, increment.series[1:])

    def either(name: str) -> str | None:
        return resource.get(name) or labels.get(name) or None

    timed = increment.start_ms is not None and increment.end_ms is not None and increment.end_ms > increment.start_ms
    return CountedDrop(
        side="otlp",
        component=next(filter(None, map(labels.get, counter.component)), counter.component[-1]),
        cause=counter.cause or labels["error_type"],
        count=increment.count,
        service=either("service_name") if counter.names_service else None,
        instance=either("service_instance_id"),
        bucket_start_ms=increment.start_ms if timed else None,
        bucket_ms=increment.end_ms - increment.start_ms if timed else None,  # type: ignore[operator]
        before=increment.before,
    )
