"""This module knows how a processor reports on itself: OpenTelemetry's ``otel.sdk.processor.span.*`` metrics.

Observed, not recorded: a collection reads the lanes' accounts, and the application's thread pays nothing. Names of
semantic conventions 1.44, ``docs/otel/sdk-metrics.md``.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Observation

from otel_mqtrace.spans.stats import EXPORT_FAILED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.metrics import CallbackOptions, MeterProvider

    from otel_mqtrace.spans.lane import Lane
    from otel_mqtrace.spans.stats import LaneStats

__all__ = ["COMPONENT_TYPE", "observe"]

COMPONENT_TYPE: Final = "otel_mqtrace.spans.processor.MqTraceSpanProcessor"
"""A component of our own kind is named by its class, says the convention."""
_ordinals = itertools.count()


def observe(meter_provider: MeterProvider, capacity: int, lanes: Iterable[Lane]) -> None:
    """Report queue size, capacity and processed spans of every lane; losses carry their reason as ``error.type``.

    The size is what waits: a batch in flight has left the queue, though it is still ``pending`` in the lane's account.
    """
    meter = meter_provider.get_meter("otel_mqtrace")
    named = [
        ({"otel.component.type": COMPONENT_TYPE, "otel.component.name": f"{COMPONENT_TYPE}/{next(_ordinals)}"}, lane)
        for lane in lanes
    ]

    def sizes(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(lane.waiting, labels) for labels, lane in named]

    def capacities(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(capacity, labels) for labels, _ in named]

    def processed(_options: CallbackOptions) -> Iterable[Observation]:
        return [observation for labels, lane in named for observation in _processed(labels, lane.stats())]

    meter.create_observable_up_down_counter("otel.sdk.processor.span.queue.size", [sizes], "{span}")
    meter.create_observable_up_down_counter("otel.sdk.processor.span.queue.capacity", [capacities], "{span}")
    meter.create_observable_counter("otel.sdk.processor.span.processed", [processed], "{span}")


def _processed(labels: Mapping[str, str], stats: LaneStats) -> list[Observation]:
    lost = {**stats["dropped"], EXPORT_FAILED: stats["failed"]}
    return [
        Observation(stats["exported"], labels),
        *(Observation(count, {**labels, "error.type": reason}) for reason, count in lost.items() if count),
    ]
