"""This module knows how a planned fault is done to a record and to a span, at the last step before they leave.

Both sides ask the same plan by the event's identity, so one fault hits the same event whatever batch it travels in.
"""

from __future__ import annotations

import io
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, Final

from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from bridge.demo.events import event_of
from bridge.demo.faults import FaultKind
from otel_mqtrace import semconv
from otel_mqtrace.model import AccessChannel, ContextCode, TraceType
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.wire.native import encode_context
from otel_mqtrace.wire.native.layout import DEFAULT_DIALECT, FIELD_SEPARATOR, FIELDS, FieldKind, form_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bridge.demo.faults import Fault, FaultPlan
    from otel_mqtrace.model import TraceContext
    from otel_mqtrace.wire.native import EncodedContext

__all__ = ["FaultyEncoder", "FaultySpanExporter"]

_ALTERED_LENGTH: Final = 424242
_ALTERED_HOST: Final = "203.0.113.7:9092"  # TEST-NET-3: nobody's address
_ALTERED_WORD: Final = "被改"

# field of a verdict → (the attribute that says it, the altered attribute, the altered field of the model)
_ALTERATIONS: Final[dict[str, tuple[str, Any, Any]]] = {
    "body_length": (semconv.MESSAGING_MESSAGE_BODY_SIZE, _ALTERED_LENGTH, _ALTERED_LENGTH),
    "store_host": (semconv.MQTRACE_STORE_HOST, _ALTERED_HOST, _ALTERED_HOST),
    "tags": (semconv.MQTRACE_TAGS, _ALTERED_WORD, _ALTERED_WORD),
    "keys": (semconv.MQTRACE_KEYS, (_ALTERED_WORD,), _ALTERED_WORD),
    "context_code": (semconv.MQTRACE_CONTEXT_CODE, ContextCode.TIME_OUT.name, ContextCode.TIME_OUT),
}
_OF_CONTEXT: Final = frozenset({"context_code"})
_NUMBERS: Final = (FieldKind.LONG, FieldKind.INT)
_NO_NUMBER: Final = b"damaged"
_CUT_CHARACTERS: Final = 4  # closing brackets: no JSON any more, every id still legible


class FaultyEncoder:
    """The native encoder with the plan's faults: what ``NativeKafkaSpanExporter`` is given as ``encode``."""

    def __init__(self, plan: FaultPlan) -> None:
        self._plan = plan

    def __call__(
        self,
        trace_ctx: TraceContext,
        dialect: str = DEFAULT_DIALECT,
        *,
        access_channel: AccessChannel = AccessChannel.LOCAL,
    ) -> EncodedContext:
        """Encode as ``encode_context`` does; the body is empty, doubled, damaged or altered where the plan says so."""
        event = event_of(trace_ctx)
        fault = None if event is None else self._plan.get(event)
        if fault is not None and fault.kind is FaultKind.ALTERED_NATIVE:
            trace_ctx = _altered_context(trace_ctx, fault)
        encoded = encode_context(trace_ctx, dialect, access_channel=access_channel)
        if fault is None or fault.kind not in _BODIES:
            return encoded
        return replace(encoded, body=_BODIES[fault.kind](encoded.body, trace_ctx.trace_type))


def _altered_context(trace_ctx: TraceContext, fault: Fault) -> TraceContext:
    field = fault.field or ""
    change = {field: _ALTERATIONS[field][2]}
    if field in _OF_CONTEXT:
        # The half that starts carries no outcome: altering it there would be no fault at all.
        return replace(trace_ctx, **change) if trace_ctx.trace_type is TraceType.SUB_AFTER else trace_ctx
    return replace(trace_ctx, beans=tuple(replace(bean, **change) for bean in trace_ctx.beans))


def _nothing(_body: bytes, _trace_type: TraceType) -> bytes:
    return b""


def _doubled(body: bytes, _trace_type: TraceType) -> bytes:
    return body * 2


def _damaged(body: bytes, trace_type: TraceType) -> bytes:
    """Write a word where the record's first number stands; the message id stays legible."""
    separator = FIELD_SEPARATOR.encode()
    parts = body.split(separator)
    form = form_for(trace_type, len(parts))
    names = form.fields if form is not None else ()
    parts[next(place for place, name in enumerate(names, start=1) if FIELDS[name] in _NUMBERS)] = _NO_NUMBER
    return separator.join(parts)


def _only(lost: TraceType) -> Callable[[bytes, TraceType], bytes]:
    return lambda body, trace_type: b"" if trace_type is lost else body


_BODIES: Final[dict[FaultKind, Callable[[bytes, TraceType], bytes]]] = {
    FaultKind.DROPPED_NATIVE: _nothing,
    FaultKind.DUPLICATED_NATIVE: _doubled,
    FaultKind.MALFORMED_NATIVE: _damaged,
    FaultKind.AFTER_LOST: _only(TraceType.SUB_AFTER),
    FaultKind.BEFORE_LOST: _only(TraceType.SUB_BEFORE),
}


class FaultySpanExporter(SpanExporter):
    """OpenTelemetry's own JSON-lines exporter with the plan's faults in front of it."""

    def __init__(self, path: Path, plan: FaultPlan) -> None:
        self._plan = plan
        self._stream: IO[str] = path.open("a", encoding="utf-8")
        self._exporter = FileSpanExporter(stream=self._stream)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Write the spans as one line; a span whose line is to be damaged gets a line of its own."""
        kept: list[ReadableSpan] = []
        damaged: list[ReadableSpan] = []
        for span in spans:
            fault = self._fault_of(span)
            kind = None if fault is None else fault.kind
            if fault is not None and kind is FaultKind.ALTERED_OTLP:
                kept.append(_altered_span(span, fault))
            elif kind is FaultKind.MALFORMED_OTLP:
                damaged.append(span)
            else:
                kept.extend([span] * _COPIES.get(kind, 1))
        result = self._exporter.export(kept) if kept else SpanExportResult.SUCCESS
        for span in damaged:
            self._stream.write(_damaged_line(span))
        return result

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Hand what was written to the operating system."""
        del timeout_millis  # a local file does not wait
        self._stream.flush()
        return True

    def shutdown(self) -> None:
        """Close the file."""
        with suppress(ValueError):
            self._stream.close()

    def _fault_of(self, span: ReadableSpan) -> Fault | None:
        trace_ctx = trace_context_of(span)
        event = None if trace_ctx is None else event_of(trace_ctx)
        return None if event is None else self._plan.get(event)


_COPIES: Final[dict[FaultKind | None, int]] = {FaultKind.DROPPED_OTLP: 0, FaultKind.DUPLICATED_OTLP: 2}


def _altered_span(span: ReadableSpan, fault: Fault) -> ReadableSpan:
    attribute, value, _ = _ALTERATIONS[fault.field or ""]
    return ReadableSpan(
        name=span.name,
        context=span.get_span_context(),
        parent=span.parent,
        resource=span.resource,
        attributes={**(span.attributes or {}), attribute: value},
        events=span.events,
        links=span.links,
        kind=span.kind,
        status=span.status,
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=span.instrumentation_scope,
    )


def _damaged_line(span: ReadableSpan) -> str:
    line = io.StringIO()
    FileSpanExporter(stream=line).export([span])
    return line.getvalue().rstrip("\n")[:-_CUT_CHARACTERS] + "\n"
