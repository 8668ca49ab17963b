"""Decide on a span before it starts: topic sampling, the sampler's certain decisions, ids, the tracer's state.

The private names of OpenTelemetry's SDK that the hooks need stand here. Without such a part in an SDK the result is
"unknown", and the caller starts an ordinary span.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from operator import attrgetter
from struct import Struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import propagate
from opentelemetry.sdk.trace import (
    ConcurrentMultiSpanProcessor,
    SpanLimits,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    Tracer,
)
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, StaticSampler, TraceIdRatioBased
from opentelemetry.trace import NonRecordingSpan, SpanContext, get_current_span

from otel_mqtrace._workers import restart_in_child
from otel_mqtrace.hooks.propagation import propagator_in_force
from otel_mqtrace.spans.processor import MqTraceSpanProcessor

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import Span

    from otel_mqtrace.config import Settings


# -- topic sampling ---------------------------------------------------------------------------------------------
_RATIO_BITS: Final = (1 << 64) - 1  # the part of a trace id that the SDK's TraceIdRatioBased compares
MAX_TOPICS: Final = 4_096
"""Topics that one cache holds, at most 3 kB each; with more, librdkafka itself takes most of a send's time."""


class TopicSampling:
    """Leaves out a share of the traces that begin at a topic (the setting ``topic_sampling``).

    The trace id decides, as in OpenTelemetry's ratio sampler. A trace that is kept goes on to the SDK's sampler with
    that very id; one that is left out travels as "not sampled".
    """

    def __init__(self, settings: Settings) -> None:
        self._sampling_ratio = settings.sampling_ratio
        self._bound = lru_cache(maxsize=MAX_TOPICS)(self._bound_of)

    def _bound_of(self, topic: str) -> int | None:
        """Return below which value of a trace id's lower half a new trace is kept; ``None``: the SDK decides."""
        ratio = self._sampling_ratio(topic)
        return None if ratio is None else round(ratio * (_RATIO_BITS + 1))

    def decide(self, topic: str, parent_ctx: Context, tracer: trace.Tracer) -> tuple[Span | None, trace.Tracer]:
        """Return the unsampled span of a trace that begins here and is left out, if so, and what starts any other."""
        bound, actual = self._bound(topic), actual_tracer(tracer)
        if bound is None or get_current_span(parent_ctx).get_span_context().is_valid:
            return None, tracer
        if not isinstance(actual, Tracer):  # without an SDK nothing is recorded anyway
            return None, tracer
        ids = actual.id_generator
        trace_id = ids.generate_trace_id()
        if trace_id & _RATIO_BITS >= bound:
            return NonRecordingSpan(SpanContext(trace_id, ids.generate_span_id(), is_remote=False)), tracer
        drawn = SimpleNamespace(
            generate_trace_id=lambda: trace_id,
            generate_span_id=ids.generate_span_id,
            is_trace_id_random=getattr(ids, "is_trace_id_random", bool),  # that of an older SDK does not say
        )
        # the provider hands the same tracer to the application; copy() takes four times as long
        for_one_span: Tracer = object.__new__(actual.__class__)  # a proxy's own class makes no tracer
        for_one_span.__dict__ = {**vars(actual), "id_generator": drawn}
        return None, for_one_span


# -- the sampler's certain decisions ----------------------------------------------------------------------------
Certainties = tuple[Decision | None, ...]
"""By the parent: none, a remote one unsampled or sampled, a local one likewise; ``None``: call the sampler."""
_BY_PARENT: Final = (
    "_root",
    "_remote_parent_not_sampled",
    "_remote_parent_sampled",
    "_local_parent_not_sampled",
    "_local_parent_sampled",
)


def _certainties(sampler: Sampler) -> Certainties:
    """Return what ``sampler`` decides without looking at a span: the SDK's "always", "never" and "as the parent"."""
    if _is_the_sdks(sampler, ParentBased):
        return tuple(_static_decision(getattr(sampler, name, None)) for name in _BY_PARENT)
    return (_static_decision(sampler),) * len(_BY_PARENT)


def _static_decision(sampler: object) -> Decision | None:
    return getattr(sampler, "_decision", None) if _is_the_sdks(sampler, StaticSampler) else None


def _root_bound(sampler: object) -> int | None:
    """Return below which value of a trace id's lower half a new trace is sampled; ``None`` where that does not decide.

    The rule of the SDK's ``TraceIdRatioBased``, alone or as the root of ``ParentBased``.
    """
    root = getattr(sampler, "_root", None) if _is_the_sdks(sampler, ParentBased) else sampler
    return root.bound if isinstance(root, TraceIdRatioBased) and _is_the_sdks(root, TraceIdRatioBased) else None


def _decides_by_ids(sampler: object) -> bool:
    """Return whether ``sampler`` is one of the SDK's own, none of which reads the attributes of a span."""
    if _is_the_sdks(sampler, ParentBased):
        return all(_decides_by_ids(getattr(sampler, name, None)) for name in _BY_PARENT)
    return _is_the_sdks(sampler, StaticSampler) or _is_the_sdks(sampler, TraceIdRatioBased)


def _is_the_sdks(sampler: object, kind: type[Sampler]) -> bool:
    """Return whether the SDK defines this ``kind`` of sampler: a subclass of the application may decide otherwise.

    ``OTEL_TRACES_SAMPLER`` names subclasses of the SDK that are private.
    """
    return isinstance(sampler, kind) and type(sampler).__module__ == kind.__module__


# -- ids --------------------------------------------------------------------------------------------------------
_AT_ONCE: Final = Struct("24s" * 32)


class IdPool:
    """Ids as ``generator`` would draw them: 16 bytes of trace id and 8 of span id.

    Those of the SDK's random generator are drawn many at once. A forked child empties its pools.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        is_the_sdks = type(generator) is RandomIdGenerator and not vars(generator)  # no method was put on it
        self._is_random = is_the_sdks and "uwsgi" not in sys.modules  # it forks without hooks, and seeds the generator
        self._pool: list[bytes] = []
        self.pop = self._pool.pop
        """:meth:`take` without a call of Python's; ``IndexError`` means: call :meth:`draw`."""
        restart_in_child(self)

    def draw(self) -> bytes:
        """Return the first of newly drawn ids, and keep the others."""
        if not self._is_random:
            trace_id: int = self._generator.generate_trace_id()
            span_id: int = self._generator.generate_span_id()
            return trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big")
        first, *others = _AT_ONCE.unpack(os.urandom(_AT_ONCE.size))
        self._pool.extend(others)  # one atomic step: several threads may refill
        ids: bytes = first
        return ids

    def take(self) -> bytes:
        """Return ids that no other caller gets."""
        try:
            return self.pop()
        except IndexError:
            return self.draw()

    def after_fork(self) -> None:
        """Forget the ids that the parent will use."""
        self._pool.clear()


# -- the state of a tracer --------------------------------------------------------------------------------------
_IDLE: Final = (SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor)
_IDLE_AT_START: Final = frozenset({MqTraceSpanProcessor.on_start, *(each.on_start for each in _IDLE)})
_IDLE_BEFORE_END: Final = frozenset(getattr(each, "_on_ending", None) for each in _IDLE)
_OWN_METHODS: Final = frozenset({"on_start", "_on_ending"})
_MULTI: Final = frozenset({SynchronousMultiSpanProcessor, ConcurrentMultiSpanProcessor})
_START_SPAN: Final = Tracer.start_span
_ENOUGH_ATTRIBUTES: Final = 64  # more attributes than a span of ours has
_RANDOM: Final = 2 if hasattr(IdGenerator, "is_trace_id_random") else 0  # W3C's flag of a random trace id
FlaggedDecision = tuple[Decision | None, int]
"""What is decided about a span (``None``: the SDK has to start it), and the trace flags that it gets then."""
_CHANGEABLE: Final = ("sampler", "id_generator", "span_processor._span_processors", "__class__.start_span")


class TracerState:
    """The decisions of one tracer about its spans, cached because finding out costs more than a record.

    ``identity`` is the result of ``read(tracer)``; while it is the same and ``propagator`` is the global one, the state
    holds. ``can_record``: an event may be recorded without a span, because the sampler is the SDK's own, no processor
    reads a span before its end, and no limit would cut it; ``can_drop``: an unsampled one needs no span. ``starts`` are
    our processors that export starts, ``ids`` those to draw from. ``as_root`` and, by the flags of a remote parent,
    ``under_remote`` are read for each message. Unless ``root_bound`` is ``None``, :meth:`decision_on` decides what
    ``as_root`` leaves open.
    """

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self.propagator = propagate.get_global_textmap()
        self.can_record = self.can_drop = False
        self.root_bound: int | None = None
        self.starts: tuple[MqTraceSpanProcessor, ...] = ()
        self._certain: Certainties = (None,) * len(_BY_PARENT)
        self.as_root: FlaggedDecision = (None, 0)
        self.under_remote: tuple[FlaggedDecision, ...] = (self.as_root,) * 4
        self.ids: IdPool
        self.read: Callable[[Any], Any] = lambda _tracer: None
        self.identity: Any = None
        if not _is_the_sdks_tracer(tracer):
            return
        is_configured = hasattr(tracer, "_tracer_config")  # not before SDK 1.40
        self.read = attrgetter(*_CHANGEABLE, *(("_tracer_config.is_enabled",) if is_configured else ()))
        self.identity = self.read(tracer)
        if is_configured and not tracer._tracer_config.is_enabled:  # noqa: SLF001 - see the module
            return
        generator, processors = tracer.id_generator, tracer.span_processor._span_processors  # noqa: SLF001 - see the module
        random = _RANDOM if _RANDOM and generator.is_trace_id_random() else 0
        self.ids = IdPool(generator)
        self.starts = tuple(each for each in processors if _exports_starts(each))
        # the SDK's own metrics count spans as they start
        counts_none = type(getattr(tracer, "_tracer_metrics", None)).__name__ in {"NoneType", "NoOpTracerMetrics"}
        self.can_drop = propagator_in_force().is_default and _decides_by_ids(tracer.sampler) and counts_none
        if self.can_drop:
            self._certain = _certainties(tracer.sampler)
            self.can_record = (
                _is_unlimited(tracer)
                and all(map(_ignores_starts, processors))
                and all(each.exports_only_known_starts for each in self.starts)
            )
        self.as_root = self._with_flags(self._certain[0], random)
        self.root_bound = _root_bound(tracer.sampler) if self.can_record else None
        self._by_ratio = (Decision.DROP, random), (Decision.RECORD_AND_SAMPLE, random + 1)
        self.under_remote = tuple(
            self._with_flags(self._certain[1 + (flags & 1)], flags & _RANDOM) for flags in range(4)
        )

    def decision_on(self, ids: bytes) -> FlaggedDecision:
        """Return what the ratio sampler decides about a new trace; ``ids`` are its id and that of its first span."""
        return self._by_ratio[int.from_bytes(ids[8:16], "big") < (self.root_bound or 0)]

    def decision_under(self, parent: SpanContext) -> FlaggedDecision:
        """Return what is decided about a span under ``parent``, which may be none."""
        if not parent.is_valid:
            return self.as_root
        flags = parent.trace_flags  # the property `sampled` costs a call
        return self._with_flags(self._certain[(1 if parent.is_remote else 3) + (flags & 1)], flags & _RANDOM)

    def _with_flags(self, decision: Decision | None, random: int) -> FlaggedDecision:
        if decision is Decision.RECORD_AND_SAMPLE:
            return (decision if self.can_record else None), random + 1
        return decision, random

    def is_current(self) -> bool:
        """Return whether it still describes the tracer."""
        return (
            self.read(self.tracer) == self.identity
            and self.identity is not None
            and propagate.get_global_textmap() is self.propagator
        )


def _is_the_sdks_tracer(tracer: Any) -> bool:
    """Return whether ``tracer`` starts its spans, and hands them to its processors, as the SDK does."""
    if type(tracer) is not Tracer or "start_span" in vars(tracer) or Tracer.start_span is not _START_SPAN:
        return False
    every = getattr(tracer.span_processor, "_span_processors", None)
    return type(tracer.span_processor) in _MULTI and isinstance(every, tuple)


def _is_unlimited(tracer: Any) -> bool:
    limits = getattr(tracer, "_span_limits", None)
    if not isinstance(limits, SpanLimits):
        return False
    lengths = (limits.max_attribute_length, limits.max_span_attribute_length)
    counts = (limits.max_span_attributes, limits.max_link_attributes, limits.max_links)
    return lengths == (None, None) and all(most is None or most >= _ENOUGH_ATTRIBUTES for most in counts)


def _ignores_starts(processor: object) -> bool:
    """Return whether ``processor`` does nothing with a span before it has ended, or is ours."""
    kind = type(processor)
    if not _OWN_METHODS.isdisjoint(getattr(processor, "__dict__", ())):
        return False  # a method was put on this very object
    is_idle = getattr(kind, "_on_ending", None) in _IDLE_BEFORE_END
    return is_idle and getattr(kind, "on_start", None) in _IDLE_AT_START


def _exports_starts(processor: object) -> bool:
    is_ours = getattr(type(processor), "on_start", None) is MqTraceSpanProcessor.on_start
    return isinstance(processor, MqTraceSpanProcessor) and is_ours and processor.exports_starts


# -- other facts of the SDK that have no public name ------------------------------------------------------------
def actual_tracer(tracer: Any) -> Any:
    """Return the tracer behind the API's proxy for a provider that comes late."""
    return getattr(tracer, "_tracer", tracer)


def max_links(tracer: Any) -> int | None:
    """Return how many links a span of ``tracer`` keeps; ``None`` if unlimited or unknown."""
    limits = getattr(actual_tracer(tracer), "_span_limits", None)
    return limits.max_links if isinstance(limits, SpanLimits) else None


def processors_of(provider: object) -> tuple[object, ...]:
    """Return the span processors of ``provider``; none of one that is not the SDK's."""
    return tuple(getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ()))


def remove_processor(provider: object, processor: object) -> None:
    """Remove a span processor from ``provider``; the SDK has a public way to add one only."""
    active: Any = getattr(provider, "_active_span_processor", None)
    if hasattr(active, "_span_processors"):
        active._span_processors = tuple(each for each in processors_of(provider) if each is not processor)  # noqa: SLF001 - see above
