"""Any other event: its attributes as they were set, of which the first write builds an SDK span."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace.records.span import LOCAL_PARENT, REMOTE_PARENT, WritableRecordSpan
from otel_mqtrace.wire.otlp.sdk_spans import encode_attributes, encode_links

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.trace import Link, SpanContext, TraceState

    from otel_mqtrace.records.span import SpanShape


class Event(NamedTuple):
    """An event that has begun. ``ids`` are trace id and span id, 24 bytes; the links are valid ones."""

    plan: SpanShape
    ids: bytes
    parent: SpanContext | None
    flags: int
    trace_state: TraceState | None
    start_ns: int
    attributes: Mapping[str, Any]
    links: Sequence[Link]


class EventSpan(WritableRecordSpan):
    """The span of one event, open until :meth:`end_with`."""

    record: Event
    _outcome: Mapping[str, Any] = {}

    def __init__(self, record: Event) -> None:
        super().__init__(record)
        self.is_record = semconv.MQTRACE_TRACE_TYPE in record.attributes  # else not every exporter of ours wants it

    def end_with(self, attributes: Mapping[str, Any], end_ns: int) -> bool:
        """End it with what was learned since its start; ``False`` where the SDK span has to end instead."""
        self._outcome = attributes
        return self.end_as_record(end_ns)

    def make_attributes(self) -> dict[str, Any]:
        """Return all attributes."""
        return {**self.record.attributes, **self._outcome}

    def make_links(self) -> Sequence[Link]:
        """Return the links."""
        return self.record.links

    def raw_attribute(self, name: str) -> Any:
        """Return one attribute without making the others."""
        if self.written is not None:
            return self.attributes.get(name)
        return self._outcome.get(name, self.record.attributes.get(name))

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message in pieces; ``None`` where the span must be read instead."""
        if not self.is_untouched or self.written is not None:
            return None
        record, parent = self.record, self.record.parent
        parts = self.otlp_head(None if parent is None else parent.span_id.to_bytes(8, "big"))
        parts += (encode_attributes({**record.attributes, **self._outcome}), encode_links(record.links))
        parts.append(LOCAL_PARENT if parent is None or not parent.is_remote else REMOTE_PARENT)
        return parts
