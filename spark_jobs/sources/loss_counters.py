"""This module knows which counters count lost spans, under every name they go by, and what each calls the cause.

Sources: OpenTelemetry's conventions for SDK metrics (1.44); the counters of OpenTelemetry's Java SDK before them; the
Collector's own telemetry. All of them count spans of the OTLP side.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_jobs.drops import CountedDrop

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spark_jobs.sources.counters import Increment

__all__ = ["LOSS_COUNTERS", "Counted", "LossCounter", "drops_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCounter:
    """One counter by its name with underscores.

    Its label ``told_by`` makes a loss of a reading, being there or being ``told``; without one every reading is a loss
    by ``cause``. ``names_service`` is false where the resource is the Collector's and not that of the spans. Of a
    Collector's counters ``depth`` says how far down its pipeline they stand: a failure is answered upwards, and counted
    once more at every lesser depth.
    """

    name: str
    told_by: str | None = None
    told: str | None = None
    cause: str | None = None
    component: tuple[str, ...]
    names_service: bool = True
    depth: int | None = None


_ERROR: Final = ("error_type", "error.type")
_SDK_COMPONENT: Final = ("otel_component_name", "otel_component_type")


def _collector(name: str, component: str, cause: str, depth: int | None = None) -> LossCounter:
    return LossCounter(
        name=f"otelcol_{name}_spans", component=(component,), cause=cause, names_service=False, depth=depth
    )


LOSS_COUNTERS: Final = (
    LossCounter(name="otel_sdk_processor_span_processed", told_by="error_type", component=_SDK_COMPONENT),
    LossCounter(name="otel_sdk_exporter_span_exported", told_by="error_type", component=_SDK_COMPONENT),
    LossCounter(
        name="processedSpans", told_by="dropped", told="true", cause="queue_full", component=("processorType",)
    ),
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


@dataclass(frozen=True, slots=True)
class Counted:
    """The losses; how many counters of mqtrace's own processor were left out; losses counted again further up."""

    drops: tuple[CountedDrop, ...]
    own: int = 0
    again: int = 0


def drops_of(found: Iterable[Increment]) -> Counted:
    """Return the counted losses among increments, but for those of mqtrace's own processor.

    Those are per lane without saying which side the lane writes; its ledger file says it, and would count twice.
    """
    drops, own = [], 0
    of_collectors: defaultdict[tuple[object, ...], list[tuple[int, CountedDrop]]] = defaultdict(list)
    for increment in found:
        name, labels, resource = increment.series
        counter = _BY_NAME.get(_canonical(name))
        said = {_underscored(key): value for key, value in labels}
        if counter is None or not _is_loss(counter, said):
            continue
        if any(value.startswith(_OWN) for _, value in labels):
            own += 1
            continue
        drop = _drop(counter, increment, said, {_underscored(key): value for key, value in resource})
        if counter.depth is None:
            drops.append(drop)
        else:
            of_collectors[resource, drop.instance, increment.end_ms].append((counter.depth, drop))
    once = [drop for answered in of_collectors.values() for drop in _once(answered)]
    whole = sum(drop.count for answered in of_collectors.values() for _, drop in answered)
    return Counted((*drops, *once), own, whole - sum(drop.count for drop in once))


def _once(answered: Iterable[tuple[int, CountedDrop]]) -> list[CountedDrop]:
    """Return what one Collector lost between two readings: lesser depths tell only what is more than the deeper ones.

    What it lost at two depths for two reasons, a queue between them, is told too low then; the stricter word.
    """
    drops, told, taken, last = [], 0, 0, None
    for depth, drop in sorted(answered, key=lambda each: -each[0]):
        if depth != last:
            last, taken = depth, told  # what this depth may have counted again
        again = min(drop.count, taken)
        taken -= again
        told += drop.count - again
        if drop.count > again:
            drops.append(replace(drop, count=drop.count - again))
    return drops


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
        before=increment.before,
    )
