"""This module knows the propagator in force: which headers it writes, and whether they carry a span's ids at all."""

from __future__ import annotations

import re
from binascii import unhexlify
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_mqtrace.hooks._headers import HEADER_GETTER, HEADER_SETTER, HeaderIndex, header_text

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span

__all__ = ["TRACEPARENT", "PropagatorInForce", "creation_of", "origin_of", "propagator_in_force", "traceparent"]

TRACEPARENT: Final = "traceparent"
_PLAIN: Final = re.compile("00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_PLAIN_BYTES: Final = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-(0[0-3])")
_NO_TRACE_ID, _NO_SPAN_ID = b"0" * 32, b"0" * 16
_BESIDE: Final = frozenset({"tracestate", "baggage"})
_NO_STATE: Final = trace.INVALID_SPAN_CONTEXT.trace_state
_W3C: Final = {TraceContextTextMapPropagator, W3CBaggagePropagator}
_PROBE: Final = SpanContext(
    0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED)
)


class PropagatorInForce:
    """One propagator and what was found out about it, once: asking costs more than writing a whole header.

    ``names`` are the headers it writes, in lower case; ``carries_spans`` says whether a receiver can learn from them
    which span sent a message (baggage alone does not tell); ``is_default`` that it writes a ``traceparent`` and, where
    there is more to be said, a ``tracestate`` or ``baggage``.
    """

    __slots__ = ("carries_spans", "is_default", "names", "propagator")

    def __init__(self, propagator: TextMapPropagator) -> None:
        self.propagator = propagator
        self.names = frozenset(name.lower() for name in propagator.fields)
        self.carries_spans = _carries_spans(propagator)
        self.is_default = _is_default(propagator)

    def headers_of(self, span: Span, ambient: Context) -> dict[str, str]:
        """Return the headers that carry ``span`` and what else travels in ``ambient``, baggage for one."""
        if self.is_default and not (ambient and baggage.get_all(ambient)):
            # By hand, and from the tuple that a span context is: an eighth of what asking costs.
            trace_id, span_id, _, flags, state, is_valid = span.get_span_context()
            if is_valid and (state is _NO_STATE or not state):
                return {TRACEPARENT: traceparent(trace_id, span_id, flags)}
        written: dict[str, str] = {}
        self.propagator.inject(written, trace.set_span_in_context(span, ambient), HEADER_SETTER)
        return written

    def extracted(self, found: HeaderIndex, base: Context) -> Context:
        """Return what travelled with a message, its span context and what else there is, on top of ``base``."""
        told = self.plain(found)
        if told is None:
            return self.propagator.extract(found, base, HEADER_GETTER)
        return trace.set_span_in_context(NonRecordingSpan(told), base) if told.is_valid else base

    def creation_of(self, found: HeaderIndex) -> SpanContext:
        """Return the span context a message carries; an invalid one when it carries none that can be read."""
        told = self.plain(found)
        if told is not None:
            return told
        if self.names.isdisjoint(map(str.lower, found)):
            return trace.INVALID_SPAN_CONTEXT
        return _span_context(self.propagator.extract(found, Context(), HEADER_GETTER))

    def plain(self, found: HeaderIndex) -> SpanContext | None:
        """Return what a plain ``traceparent`` says; ``None`` where there is more, or something else, to be read."""
        if not found:
            return trace.INVALID_SPAN_CONTEXT
        if not self.is_default or not _BESIDE.isdisjoint(found):
            return None
        text = header_text(found, TRACEPARENT)
        if text is None:
            return trace.INVALID_SPAN_CONTEXT
        plain = _PLAIN.fullmatch(text)
        if plain is None:
            return None
        trace_id, span_id, flags = plain.groups()
        return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=_flags(flags))


def origin_of(found: HeaderIndex) -> tuple[bytes | None, int] | None:
    """Return the ids (24 bytes) and flags of a plain ``traceparent``, no ids where there is none.

    ``None`` where there is more, or something else, to be read.
    """
    header = found.get(TRACEPARENT)
    if header is None:
        return None, 0
    plain = _PLAIN_BYTES.fullmatch(header) if type(header) is bytes else None
    if plain is None:
        return None
    trace_id, span_id, flags = plain.groups()
    if trace_id == _NO_TRACE_ID or span_id == _NO_SPAN_ID:
        return None
    return unhexlify(trace_id + span_id), int(flags, 16)


@lru_cache(maxsize=256)
def _flags(text: str) -> TraceFlags:
    return TraceFlags(int(text, 16))


def traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Return what W3C's header says of a span."""
    return "00-%032x-%016x-%02x" % (trace_id, span_id, flags)  # noqa: UP031 - two thirds of an f-string's time


def propagator_in_force() -> PropagatorInForce:
    """Return the global propagator, which an application may change at any time."""
    propagator, known = propagate.get_global_textmap(), _last.known
    if known.propagator is not propagator:
        known = _last.known = PropagatorInForce(propagator)
    return known


def creation_of(found: HeaderIndex) -> SpanContext:
    """Return the span context a message carries, as the propagator in force reads it."""
    return propagator_in_force().creation_of(found)


def _span_context(otel_ctx: Context) -> SpanContext:
    return trace.get_current_span(otel_ctx).get_span_context()


def _is_default(propagator: TextMapPropagator) -> bool:
    """Whether it writes a ``traceparent``, and for baggage and a trace state only something more."""
    parts = getattr(propagator, "_propagators", ()) if type(propagator) is CompositePropagator else (propagator,)
    kinds = [type(part) for part in parts]
    return kinds.count(TraceContextTextMapPropagator) == 1 and set(kinds) <= _W3C


def _carries_spans(propagator: TextMapPropagator) -> bool:
    """Ask it: there and back again. One that fails will fail when it matters, not here."""
    carrier: dict[str, str] = {}
    try:
        propagator.inject(carrier, trace.set_span_in_context(NonRecordingSpan(_PROBE), Context()), HEADER_SETTER)
        return _span_context(propagator.extract(carrier, Context(), HEADER_GETTER)).is_valid
    except Exception:  # noqa: BLE001 - the application's propagator: any failure
        return True


class _Last:
    known = PropagatorInForce(propagate.get_global_textmap())


_last: Final = _Last()
