"""This module knows OTLP metrics as JSON, as the Collector's file exporter writes them: the points of every sum.

Source: ``opentelemetry/proto/metrics/v1/metrics.proto`` in its JSON mapping; numbers of 64 bits stand as text.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._clock import LAST_MS
from spark_jobs.sources.counters import Point, series

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["otlp_points"]

_DELTA: Final = frozenset({1, "1", "AGGREGATION_TEMPORALITY_DELTA"})
_NO_VALUE: Final = 1  # DataPointFlags
_NS_PER_MS: Final = 1_000_000
_MOST: Final = float(1 << 53)


def otlp_points(document: Mapping[str, Any]) -> Iterator[Point]:
    """Yield the points of the sums in one ``resourceMetrics`` object; what is no sum, or has no value, is passed over.

    Raises:
        ValueError, TypeError, AttributeError, KeyError: the object is not shaped as OTLP metrics are.
    """
    for resource_metrics in document["resourceMetrics"]:
        resource = _attributes((resource_metrics.get("resource") or {}).get("attributes"))
        for scope_metrics in resource_metrics.get("scopeMetrics") or ():
            for metric in scope_metrics.get("metrics") or ():
                yield from _sum_points(metric, resource)


def _sum_points(metric: Mapping[str, Any], resource: Mapping[str, str]) -> Iterator[Point]:
    counted = metric.get("sum")
    if not counted:
        return
    delta = counted.get("aggregationTemporality") in _DELTA
    for point in counted.get("dataPoints") or ():
        value = _value(point)
        if value is not None:
            key = series(str(metric["name"]), _attributes(point.get("attributes")), resource)
            yield Point(key, value, _ms(point.get("startTimeUnixNano")), _ms(point.get("timeUnixNano")), delta)


def _value(point: Mapping[str, Any]) -> float | None:
    text = point.get("asInt", point.get("asDouble"))
    if text is None or int(point.get("flags") or 0) & _NO_VALUE:
        return None
    value = float(text)
    return value if math.isfinite(value) and 0 <= value <= _MOST else None


def _ms(text: Any) -> int | None:
    instant_ms = int(text or 0) // _NS_PER_MS
    return instant_ms if 0 < instant_ms <= LAST_MS else None


def _attributes(pairs: Any) -> dict[str, str]:
    found = {}
    for pair in pairs or ():
        value = pair.get("value") or {}
        if value:
            found[str(pair["key"])] = str(next(iter(value.values())))
    return found
