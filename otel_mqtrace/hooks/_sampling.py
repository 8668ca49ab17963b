"""This module knows which traces that begin here are recorded, topic by topic (the setting ``topic_sampling``).

A trace begins where no span is current. Its id decides, as OpenTelemetry's ratio sampler has it, so the same id gets
the same answer from both. One that is left out gets a span that records nothing and says "not sampled" on the wire,
which a parent-based sampler downstream obeys; one that is kept goes on to the SDK's own sampler, with that very id.
"""

from __future__ import annotations

from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, get_current_span

from otel_mqtrace.hooks._sdk import replace_ids

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from otel_mqtrace.config import Settings

__all__ = ["TopicSampling"]

_DECIDING_BITS: Final = (1 << 64) - 1
"""The part of a trace id the SDK's ``TraceIdRatioBased`` looks at."""
_TOPICS_REMEMBERED: Final = 1_024
_decided: Final[ContextVar[int | None]] = ContextVar("mqtrace-decided-trace-id", default=None)


class TopicSampling:
    """Leaves out traces that begin at a topic, by its share."""

    def __init__(self, settings: Settings) -> None:
        self._ratio = lru_cache(maxsize=_TOPICS_REMEMBERED)(settings.sampling_ratio)

    @classmethod
    def of(cls, settings: Settings) -> TopicSampling | None:
        """Return the sampling the settings ask for; ``None`` when they leave every topic to the SDK."""
        return cls(settings) if settings.topic_sampling else None

    def left_out(self, topic: str, parent: Context, tracer: Tracer) -> Span | None:
        """Return the silent span of a trace that begins here and is left out; ``None`` when the SDK shall decide."""
        ratio = self._ratio(topic)
        if ratio is None or get_current_span(parent).get_span_context().is_valid:
            return None
        ids = replace_ids(tracer, _of_ours)
        if not isinstance(ids, _DecidedIds):  # no SDK: nothing is recorded anyway
            return None
        trace_id = ids.draw()
        if trace_id & _DECIDING_BITS < round(ratio * (_DECIDING_BITS + 1)):
            _decided.set(trace_id)
            return None
        return NonRecordingSpan(
            SpanContext(trace_id, ids.generate_span_id(), is_remote=False, trace_flags=TraceFlags(TraceFlags.DEFAULT))
        )

    def forget(self) -> None:
        """The span has been started, or has failed to: what was decided is of no other."""
        _decided.set(None)


class _DecidedIds(IdGenerator):
    """The SDK's id generator, but for the trace id that has been decided on: the next trace gets it."""

    def __init__(self, inner: IdGenerator) -> None:
        self._inner = inner

    def draw(self) -> int:
        """Return the id of a new trace."""
        return self._inner.generate_trace_id()

    def generate_trace_id(self) -> int:
        """Return the id decided on, once; else a new one."""
        trace_id = _decided.get()
        if trace_id is None:
            return self._inner.generate_trace_id()
        _decided.set(None)
        return trace_id

    def generate_span_id(self) -> int:
        """Return a new one."""
        return self._inner.generate_span_id()

    def is_trace_id_random(self) -> bool:
        """Ask the SDK's; versions that do not ask have no answer."""
        return bool(getattr(self._inner, "is_trace_id_random", bool)())


def _of_ours(ids: IdGenerator) -> IdGenerator:
    return ids if isinstance(ids, _DecidedIds) else _DecidedIds(ids)
