"""This module knows which counters count lost spans, under every name they go by, and what each calls the cause.

Sources: OpenTelemetry's conventions for SDK metrics (1.44); the counters of OpenTelemetry's Java SDK before them; the
Collector's own telemetry. All of them count spans of the OTLP side.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_jobs.drops import CountedDrop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.sources.counters import Increment

__all__ = ["LOSS_COUNTERS", "LossCounter", "drops_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCounter:
    """One counter by its name with underscores.

    Its label ``told_by`` makes a loss of a reading, being there or being ``told``; without one every reading is a loss
    by ``cause``. ``names_service`` is false where the resource is the Collector's and not that of the spans.
    """

    name: str
    told_by: str | None = None
    told: str | None = None
    cause: str | None = None
    component: tuple[str, ...]
    names_service: bool = True


_ERROR: Final = ("error_type", "error.type")
_SDK_COMPONENT: Final = ("otel_component_name", "otel_component_type")


def _collector(name: str, component: str, cause: str) -> LossCounter:
    return LossCounter(name=f"otelcol_{name}_spans", component=(component,), cause=cause, names_service=False)


LOSS_COUNTERS: Final = (
    LossCounter(name="otel_sdk_processor_span_processed", told_by="error_type", component=_SDK_COMPONENT),
    LossCounter(name="otel_sdk_exporter_span_exported", told_by="error_type", component=_SDK_COMPONENT),
    LossCounter(
        name="processedSpans", told_by="dropped", told="true", cause="queue_full", component=("processorType",)
    ),
    _collector("receiver_refused", "receiver", "receiver_refused"),
    _collector("processor_refused", "processor", "processor_refused"),
    _collector("processor_dropped", "processor", "processor_dropped"),
    _collector("exporter_enqueue_failed", "exporter", "enqueue_failed"),
    _collector("exporter_send_failed", "exporter", "send_failed"),
)
"""Every counter that is read; the others of a dump are passed over."""

_BY_NAME: Final = {counter.name: counter for counter in LOSS_COUNTERS}
_UNIT: Final = re.compile(r"_+spans?$")  # some writers put the unit behind the name, some with its braces
_OWN: Final = ("otel_mqtrace.", "bridge.")


def drops_of(found: Iterable[Increment]) -> tuple[list[CountedDrop], int]:
    """Return the counted losses among increments, and how many were left out for being of mqtrace's own processor.

    Those are per lane without saying which side the lane writes; its ledger file says it, and would count twice.
    """
    drops, own = [], 0
    for increment in found:
        name, labels, resource = increment.series
        counter = _BY_NAME.get(_canonical(name))
        said = {_underscored(key): value for key, value in labels}
        if counter is None or not _is_loss(counter, said):
            continue
        if any(value.startswith(_OWN) for _, value in labels):
            own += 1
            continue
        drops.append(_drop(counter, increment, said, {_underscored(key): value for key, value in resource}))
    return drops, own


def _canonical(name: str) -> str:
    plain = _underscored(name)
    untotalled = plain.removesuffix("_total").rstrip("_")
    return next((name for name in (plain, untotalled, _UNIT.sub("", untotalled)) if name in _BY_NAME), plain)


def _underscored(name: str) -> str:
    return name.replace(".", "_")


def _is_loss(counter: LossCounter, labels: Mapping[str, str]) -> bool:
    if counter.told_by is None:
        return True
    value = labels.get(counter.told_by)
    return bool(value) if counter.told is None else value == counter.told


def _drop(
    counter: LossCounter, increment: Increment, labels: Mapping[str, str], resource: Mapping[str, str]
) -> CountedDrop:
    def either(name: str) -> str | None:
        return resource.get(name) or labels.get(name) or None

    timed = increment.start_ms is not None and increment.end_ms is not None and increment.end_ms > increment.start_ms
    return CountedDrop(
        side="otlp",
        component=next((labels[name] for name in counter.component if labels.get(name)), counter.component[-1]),
        cause=counter.cause or labels["error_type"],
        count=increment.count,
        service=either("service_name") if counter.names_service else None,
        instance=either("service_instance_id"),
        bucket_start_ms=increment.start_ms if timed else None,
        bucket_ms=increment.end_ms - increment.start_ms if timed else None,  # type: ignore[operator]
    )
