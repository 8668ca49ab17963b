"""The forwarder's own metrics, on the global meter provider."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.metrics import Meter, Observation, get_meter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions

    from bridge.forwarder.service import ForwardCounts
    from bridge.forwarder.span_delivery import SpanForwarding


_SCOPE: Final = "bridge.forwarder"
METRICS: Final = {
    "mqtrace.forwarder.messages": ("{message}", "Trace messages committed."),
    "mqtrace.forwarder.body.size": ("By", "Bytes of their bodies."),
    "mqtrace.forwarder.spans": ("{span}", "Spans that the receiver accepted."),
    "mqtrace.forwarder.records": ("{record}", "Trace records read."),
    "mqtrace.forwarder.bad_records": ("{record}", "Pieces of bodies that are not records."),
    "mqtrace.forwarder.halves": ("{span}", "Spans of one half of a listener call."),
    "mqtrace.forwarder.overflowed": ("{span}", "Halves not waited for because too many waited."),
    "mqtrace.forwarder.repeated": ("{record}", "Records that repeated others."),
    "mqtrace.forwarder.rejected": ("{span}", "Spans that the receiver took and threw away."),
    "mqtrace.forwarder.pending": ("{record}", "Records that wait for their other half now."),
}
"""Name → unit and description. All are counters but the last, a gauge."""
_PENDING: Final = "mqtrace.forwarder.pending"
_OF_SPANS: Final = ("records", "bad_records", "halves", "overflowed", "repeated", "rejected")


class Measures:
    """Counts after each pass what it moved. ``spans`` is ``None`` when only a landing is filled."""

    def __init__(self, spans: SpanForwarding | None = None, *, meter: Meter | None = None) -> None:
        meter = meter or get_meter(_SCOPE)
        self._spans = spans
        self._told = dict.fromkeys(_OF_SPANS, 0)
        self._counters = {
            name: meter.create_counter(name, unit=unit, description=description)
            for name, (unit, description) in METRICS.items()
            if name != _PENDING
        }
        unit, description = METRICS[_PENDING]
        meter.create_observable_gauge(_PENDING, [self._pending], unit=unit, description=description)

    def add(self, passed: ForwardCounts) -> None:
        """Add what one pass, or a whole run, has moved."""
        self._counters["mqtrace.forwarder.messages"].add(passed.messages)
        self._counters["mqtrace.forwarder.body.size"].add(passed.body_bytes)
        self._counters["mqtrace.forwarder.spans"].add(passed.spans)
        if self._spans is None:
            return
        now = self._spans.counts.as_dict()
        for name in _OF_SPANS:
            self._counters[f"mqtrace.forwarder.{name}"].add(now[name] - self._told[name])
            self._told[name] = now[name]

    def _pending(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(0 if self._spans is None else self._spans.counts.pending)]
