"""This module knows the propagator in force: which headers it writes, and whether they carry a span's ids at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, TraceFlags

from otel_mqtrace.hooks._headers import HEADER_GETTER, HEADER_SETTER, HeaderIndex

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator

__all__ = ["carries_spans", "creation_of", "propagated_names", "trace_headers"]

_PROBE: Final = SpanContext(
    0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, is_remote=False, trace_flags=TraceFlags(1)
)


class _InForce:
    """What is known of the global propagator: making the set of names costs more than writing a whole header."""

    propagator: object = None
    names: frozenset[str] = frozenset()
    carries_spans: bool = True


_in_force: Final = _InForce()


def propagated_names() -> frozenset[str]:
    """Return the header names of the propagator in force, in lower case."""
    propagator = propagate.get_global_textmap()
    if _in_force.propagator is not propagator:
        _learn(propagator)
    return _in_force.names


def carries_spans() -> bool:
    """Whether a message sent with the propagator in force tells the receiver which span sent it."""
    propagator = propagate.get_global_textmap()
    if _in_force.propagator is not propagator:
        _learn(propagator)
    return _in_force.carries_spans


def trace_headers(span: Span, ambient: Context) -> dict[str, str]:
    """Return the headers that carry ``span`` and what else of ``ambient`` travels, baggage for one."""
    written: dict[str, str] = {}
    propagate.inject(written, context=trace.set_span_in_context(span, ambient), setter=HEADER_SETTER)
    return written


def creation_of(found: HeaderIndex) -> SpanContext:
    """Return the span context a message carries; an invalid one when it carries none that can be read."""
    if propagated_names().isdisjoint(map(str.lower, found)):
        return trace.INVALID_SPAN_CONTEXT
    return trace.get_current_span(propagate.extract(found, Context(), HEADER_GETTER)).get_span_context()


def _learn(propagator: TextMapPropagator) -> None:
    _in_force.names = frozenset(name.lower() for name in propagator.fields)
    _in_force.carries_spans = _carries(propagator)
    _in_force.propagator = propagator


def _carries(propagator: TextMapPropagator) -> bool:
    """Ask it: there and back again. One that fails will fail when it matters, not here."""
    carrier: dict[str, str] = {}
    try:
        propagator.inject(carrier, trace.set_span_in_context(NonRecordingSpan(_PROBE), Context()), HEADER_SETTER)
        return trace.get_current_span(propagator.extract(carrier, Context(), HEADER_GETTER)).get_span_context().is_valid
    except Exception:  # noqa: BLE001 - the application's propagator: any failure
        return True
