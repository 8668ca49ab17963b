"""Message headers and the propagator in force: what travels with a message, read and written.

Headers are pairs or a mapping; the last value of a name counts, and the caller's object is never changed. Names are
case-sensitive, values are bytes, text or ``None``. A name that is not text is read as confluent-kafka writes it
(``b"TAGS"`` reaches the broker as ``b'TAGS'``) and is sent on unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

from opentelemetry import baggage, propagate, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import NonRecordingSpan, SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from otel_mqtrace import semconv
from otel_mqtrace.hooks.scope import OWN_KEYS
from otel_mqtrace.records.message import HeaderIndex, header_text, read_traceparent
from otel_mqtrace.records.span import context_of

if TYPE_CHECKING:
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Span

    from otel_mqtrace.records.message import Header, Headers


TRACEPARENT: Final = "traceparent"
BESIDE: Final = frozenset({"tracestate", "baggage"})
"""Headers of the default propagator beside ``traceparent``."""
SPECIAL_HEADERS: Final = frozenset(
    {semconv.HEADER_UNIQ_KEY.lower(), semconv.HEADER_DELAY.lower(), TRACEPARENT, *BESIDE}
)
"""In lower case, headers that carry a trace, name a message or delay it."""


# -- headers ----------------------------------------------------------------------------------------------------
def pairs_of(headers: object) -> list[Header] | None:
    """Return a copy of ``headers`` as pairs, or ``None`` for what the client will refuse."""
    if headers is None:
        return []
    if isinstance(headers, (list, tuple)):
        are_pairs = all(isinstance(pair, tuple) and len(pair) == 2 for pair in headers)  # noqa: PLR2004 - a pair
        return list(headers) if are_pairs else None
    return list(headers.items()) if isinstance(headers, Mapping) else None


def each_header(headers: Headers | HeaderIndex) -> Iterable[Header]:
    """Return ``headers``, which may be a mapping, as pairs."""
    return headers.items() if isinstance(headers, Mapping) else headers


def index_headers(headers: Headers | HeaderIndex) -> HeaderIndex:
    """Return the last value of each name that is not ``None``."""
    if not headers:
        return {}
    pairs = each_header(headers)
    return {name if isinstance(name, str) else header_name(name): value for name, value in pairs if value is not None}


def header_name(name: object) -> str:
    """Return the name of a header as it reaches the broker; an empty one for what cannot be printed."""
    if isinstance(name, str):
        return name
    try:
        return str(name)
    except Exception:  # noqa: BLE001 - the client raises the error itself
        return ""


def replace_headers(headers: Headers, replaced: Mapping[str, str], dropped: frozenset[str]) -> list[Header]:
    """Return a new list that has each name of ``replaced`` once and no name of ``dropped`` (lower case)."""
    written: list[Header] = [(name, value.encode()) for name, value in replaced.items()]
    if not headers:
        return written
    gone = dropped if replaced.keys() <= dropped else dropped.union(name.lower() for name in replaced)
    return [pair for pair in headers if header_name(pair[0]).lower() not in gone] + written


class _HeaderGetter(Getter[HeaderIndex]):
    def get(self, carrier: HeaderIndex, key: str) -> list[str] | None:
        text = header_text(carrier, key)
        return None if text is None else [text]

    def keys(self, carrier: HeaderIndex) -> list[str]:
        return list(carrier)


HEADER_GETTER: Final = _HeaderGetter()

# -- propagators ------------------------------------------------------------------------------------------------
_NO_STATE: Final = trace.INVALID_SPAN_CONTEXT.trace_state
_W3C: Final = {TraceContextTextMapPropagator, W3CBaggagePropagator}


class PropagatorInForce:
    """One propagator and its headers, cached because finding out costs more than writing a header.

    ``names`` are its headers in lower case. ``is_default``: it writes a ``traceparent``, and ``tracestate`` or
    ``baggage`` where there are any.
    """

    __slots__ = ("is_default", "names", "propagator")

    def __init__(self, propagator: TextMapPropagator) -> None:
        self.propagator = propagator
        self.names = frozenset(name.lower() for name in propagator.fields)
        self.is_default = _is_default(propagator)

    def headers_of(self, span: Span, current_ctx: Context) -> dict[str, str]:
        """Return the headers that carry ``span`` and what else of ``current_ctx`` travels, such as baggage."""
        if self.is_default and not (current_ctx and baggage.get_all(current_ctx)):
            # by hand: an eighth of the time of the propagator
            trace_id, span_id, _, flags, state, is_valid = span.get_span_context()
            if is_valid and (state is _NO_STATE or not state):
                return {TRACEPARENT: traceparent(trace_id, span_id, flags)}
        written: dict[str, str] = {}
        self.propagator.inject(written, trace.set_span_in_context(span, current_ctx))
        return written

    def extract(self, headers: HeaderIndex, base: Context) -> Context:
        """Return ``base`` with what travelled with a message: its span context, baggage."""
        creation = self.plain_creation(headers)
        if creation is None:
            return self.propagator.extract(headers, base, HEADER_GETTER)
        return trace.set_span_in_context(NonRecordingSpan(creation), base) if creation.is_valid else base

    def creation_of(self, headers: HeaderIndex) -> SpanContext:
        """Return the span context a message carries; an invalid one where it carries none that can be read."""
        creation = self.plain_creation(headers)
        if creation is not None:
            return creation
        if self.names.isdisjoint(map(str.lower, headers)):
            return trace.INVALID_SPAN_CONTEXT
        extracted = self.propagator.extract(headers, Context(), HEADER_GETTER)
        return trace.get_current_span(extracted).get_span_context()

    def plain_creation(self, headers: HeaderIndex) -> SpanContext | None:
        """Return the span context of a plain ``traceparent``; ``None`` where the propagator has to read more."""
        if not headers:
            return trace.INVALID_SPAN_CONTEXT
        if not self.is_default or not BESIDE.isdisjoint(headers):
            return None
        header = headers.get(TRACEPARENT)
        if header is None:
            return trace.INVALID_SPAN_CONTEXT
        plain = read_traceparent(header.encode("utf-8", "replace") if isinstance(header, str) else header)
        return None if plain is None else context_of(*plain, remote=True)


def traceparent(trace_id: int, span_id: int, flags: int) -> str:
    """Return W3C's header for a span."""
    return "00-%032x-%016x-%02x" % (trace_id, span_id, flags)  # noqa: UP031 - two thirds of an f-string's time


def propagator_in_force() -> PropagatorInForce:
    """Return the global propagator, which an application may change at any time."""
    propagator, known = propagate.get_global_textmap(), _last[0]
    if known.propagator is not propagator:
        known = _last[0] = PropagatorInForce(propagator)
    return known


def headers_under(parent: SpanContext | None, ids: bytes, flags: int, current_ctx: Context) -> list[Header]:
    """Return the headers for a span with these ids, and for the baggage and the trace state around it."""
    trace_state = None if parent is None else parent.trace_state
    if not trace_state and current_ctx.keys() <= OWN_KEYS:
        header = traceparent(int.from_bytes(ids[:16], "big"), int.from_bytes(ids[16:], "big"), flags)
        return [(TRACEPARENT, header.encode())]
    span = NonRecordingSpan(context_of(ids, flags, trace_state, remote=False))
    return [(name, value.encode()) for name, value in propagator_in_force().headers_of(span, current_ctx).items()]


def creation_of(headers: Headers | HeaderIndex) -> SpanContext:
    """Return the span context a message carries, as the propagator in force reads it."""
    return propagator_in_force().creation_of(index_headers(headers))


def _is_default(propagator: TextMapPropagator) -> bool:
    parts = getattr(propagator, "_propagators", ()) if type(propagator) is CompositePropagator else (propagator,)
    kinds = [type(part) for part in parts]
    return kinds.count(TraceContextTextMapPropagator) == 1 and set(kinds) <= _W3C


_last: Final = [PropagatorInForce(propagate.get_global_textmap())]
