"""The processor's self-metrics: observed by callbacks, so that the application's thread pays nothing."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Observation

from otel_mqtrace.semconv import SCOPE
from otel_mqtrace.spans.stats import ALREADY_SHUTDOWN, EXPORT_FAILED, QUEUE_FULL, SHUTDOWN_TIMEOUT, WANTS_ERROR

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider

    from otel_mqtrace.spans.lane import Lane
    from otel_mqtrace.spans.stats import LaneStats

COMPONENT_TYPE: Final = "otel_mqtrace.spans.processor.MqTraceSpanProcessor"
"""The convention names a component of a custom kind by its class."""
_ordinals: Final[defaultdict[str, Iterator[int]]] = defaultdict(itertools.count)
_NEVER_EXPORTED: Final = frozenset({QUEUE_FULL, ALREADY_SHUTDOWN, SHUTDOWN_TIMEOUT, WANTS_ERROR})
"""Losses that an exporter never saw, or did not finish before the shutdown's time-out."""


def observe(meter_provider: MeterProvider, capacity: int, lanes: Sequence[Lane]) -> None:
    """Report queue size, capacity and processed spans of every lane; losses carry their reason as ``error.type``.

    The size is what waits: a batch in flight has left the queue, though it is still ``pending`` in the lane's account.
    """
    meter = meter_provider.get_meter(SCOPE)
    named = [(_labelled(COMPONENT_TYPE), lane) for lane in lanes]

    def sizes(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(lane.waiting, labels) for labels, lane in named]

    def capacities(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(capacity, labels) for labels, _ in named]

    def processed(_options: CallbackOptions) -> Iterable[Observation]:
        return [observation for labels, lane in named for observation in _processed(labels, lane.stats())]

    meter.create_observable_up_down_counter("otel.sdk.processor.span.queue.size", [sizes], "{span}")
    meter.create_observable_up_down_counter("otel.sdk.processor.span.queue.capacity", [capacities], "{span}")
    meter.create_observable_counter("otel.sdk.processor.span.processed", [processed], "{span}")
    ours = [(_labelled(lane.exporter_type), lane) for lane in lanes if lane.exporter_type is not None]
    if ours:
        _observe_exporters(meter, ours)


def _observe_exporters(meter: Meter, named: list[tuple[dict[str, str], Lane]]) -> None:
    def in_flight(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(lane.in_flight, labels) for labels, lane in named]

    def exported(_options: CallbackOptions) -> Iterable[Observation]:
        return [
            each
            for labels, lane in named
            for each in _processed(labels, lane.stats())
            if (each.attributes or {}).get("error.type") not in _NEVER_EXPORTED
        ]

    meter.create_observable_up_down_counter("otel.sdk.exporter.span.inflight", [in_flight], "{span}")
    meter.create_observable_counter("otel.sdk.exporter.span.exported", [exported], "{span}")
    duration = meter.create_histogram("otel.sdk.exporter.operation.duration", "s")
    for labels, lane in named:
        lane.on_exported = _timer(duration, labels)


def _timer(duration: Histogram, labels: Mapping[str, str]) -> Callable[[int, bool], None]:
    def on_exported(elapsed_ns: int, succeeded: bool) -> None:  # noqa: FBT001 - as a lane calls it
        duration.record(elapsed_ns / 1e9, labels if succeeded else {**labels, "error.type": EXPORT_FAILED})

    return on_exported


def _labelled(component_type: str) -> dict[str, str]:
    return {
        "otel.component.type": component_type,
        "otel.component.name": f"{component_type}/{next(_ordinals[component_type])}",
    }


def _processed(labels: Mapping[str, str], stats: LaneStats) -> list[Observation]:
    lost = {**stats["dropped"], EXPORT_FAILED: stats["failed"]}
    return [
        Observation(stats["exported"], labels),
        *(Observation(count, {**labels, "error.type": reason}) for reason, count in lost.items() if count),
    ]
