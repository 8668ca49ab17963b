"""This module knows how a span starts: unread, where nobody looks at one that has just started, else the SDK's way.

Nobody looks where the sampler is one of the SDK's own, which decide by ids alone, and every span processor that does
anything when a span starts is ours, which can be told a moment later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import ConcurrentMultiSpanProcessor, SpanProcessor, SynchronousMultiSpanProcessor, Tracer
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    ProxyTracer,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from otel_mqtrace.hooks._recording import certainties, decided, never_recorded
from otel_mqtrace.hooks._sdk import actual_tracer, counts_of, decides_by_ids, is_unlimited, processors_at
from otel_mqtrace.hooks._unread import UnreadSpan, all_of
from otel_mqtrace.records.ids import id_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, SpanKind
    from opentelemetry.util.types import AttributeValue

    from otel_mqtrace.hooks._unread import Later

__all__ = ["Ground", "SpanStart", "under"]

_IDLE: Final = (SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor)
_HEARD: Final = frozenset({"on_start", "_on_ending"})
_IDLE_AT_START: Final = frozenset(each.on_start for each in _IDLE)
_IDLE_BEFORE_END: Final = frozenset(getattr(each, "_on_ending", None) for each in _IDLE)
_MULTI: Final = frozenset({SynchronousMultiSpanProcessor, ConcurrentMultiSpanProcessor})
_START_SPAN: Final = Tracer.start_span
_DROP: Final = Decision.DROP
_SAMPLED: Final = Decision.RECORD_AND_SAMPLE
_MOST_UNLOOKED: Final = 2
"""A poll asks twice before its span starts, a send once. What is excluded or left out starts none."""
_FLAGS: Final = tuple(map(TraceFlags, range(4)))
_RANDOM: Final = 2 if hasattr(IdGenerator, "is_trace_id_random") else 0
"""The flag of a trace id that was drawn at random, in versions of the SDK that set it."""


class SpanStart:
    """Starts the spans of one tracer, whose provider may come late and may be changed at any time.

    That nothing will be recorded opens a shorter way and is found out anew each time. That something may be is said of
    the ground as it was last, a few times: the whole way is right on any ground, and most often looks for itself.
    """

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._last: Ground | None = None
        self._unlooked = 0  # answers since somebody looked; threads may lose count

    def ground(self) -> Ground | None:
        """Return what unread spans start from; ``None`` where somebody looks, or nothing is known of the tracer."""
        self._unlooked = 0
        tracer: Any = actual_tracer(self._tracer) if type(self._tracer) is ProxyTracer else self._tracer
        ground = self._last
        if ground is None or not ground.is_of(tracer):
            ground = self._last = Ground(tracer)
        return ground if ground.nobody_looks and ground.is_enabled() else None

    def never_records(self, parent: SpanContext) -> bool:
        """Whether a span that starts under ``parent`` will not be recorded, whatever it says."""
        last = self._last
        if self._unlooked < _MOST_UNLOOKED and last is not None and last.nobody_looks:
            self._unlooked += 1
            if last.decided(parent) is not _DROP:
                return False
        ground = self.ground()
        return never_recorded(self._tracer, parent) if ground is None else ground.decided(parent) is _DROP

    @property
    def records_nothing(self) -> bool:
        """Whether no span will be recorded, nor counted, whatever it says and whatever its parent is."""
        last = self._last
        if self._unlooked < _MOST_UNLOOKED and last is not None and not last.records_nothing:
            self._unlooked += 1
            return False
        ground = self.ground()
        return ground is not None and ground.records_nothing

    def silent_ground(self) -> Ground | None:
        """Return what draws the ids of a trace that begins and is certainly not recorded; ``None`` where it may be.

        What counts spans has to hear of them one by one.
        """
        last = self._last
        if self._unlooked < _MOST_UNLOOKED and last is not None and not last.roots_are_silent:
            self._unlooked += 1
            return None
        ground = self.ground()
        return ground if ground is not None and ground.roots_are_silent else None

    def start(  # noqa: PLR0913, PLR0917 - every span's: no keywords
        self,
        name: str,
        otel_ctx: Context,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        links: Sequence[Link],
        later: Later | None,
        start_ns: int,
        above: SpanContext | None = None,
    ) -> trace.Span:
        """Start a span; only ``later`` may add to ``attributes`` from now on: it returns them, more, and the links.

        ``above`` is its parent where that has not been put into ``otel_ctx``. One that is not sampled records nothing.
        """
        ground = self.ground()
        if ground is None:
            if later is not None:
                attributes, links = all_of(later)
            return self._tracer.start_span(name, under(above, otel_ctx), kind, attributes, links, start_ns)
        span_ctx, parent, decision = ground.place(name, otel_ctx, kind, links, above)
        ended = None if ground.counts is None else ground.counts.start_span(parent, decision)
        if decision is _DROP:
            return NonRecordingSpan(span_ctx)
        own = (ground.tracer, ground.processors, ground.tracer.resource)
        span = UnreadSpan((*own, name, span_ctx, parent, kind, attributes, links, later, start_ns))
        if ended is not None:
            span._record_end_metrics = ended  # noqa: SLF001 - where the SDK's class has it
        for processor in ground.told:
            processor.on_deferred_start(span)
        return span


class Ground:
    """What all spans of one tracer have in common, found out once: asking costs more than a span does.

    ``processors`` are those of ``tracer`` now, ``told`` the ones of ours that want to hear of a start; ``counts`` is
    what counts spans for the SDK, if anything does.
    """

    __slots__ = (
        "_ids",
        "_is_known",
        "_random",
        "_sampler",
        "can_record",
        "certain",
        "counts",
        "draw",
        "draw_silent",
        "is_enabled",
        "nobody_looks",
        "processors",
        "random_mask",
        "records_nothing",
        "root_flags",
        "roots_are_recorded",
        "roots_are_silent",
        "told",
        "tracer",
    )

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self.is_enabled: Callable[[], bool] = getattr(tracer, "_is_enabled", _always)  # not before SDK 1.40
        self.processors: Any = processors_at(tracer)
        self._is_known = _is_the_sdks(tracer) and self.processors is not None
        self._sampler: Any = getattr(tracer, "sampler", None)
        self._ids: Any = getattr(tracer, "id_generator", None)
        every: list[Any] = list(self.processors or ())
        self.nobody_looks = self._is_known and decides_by_ids(self._sampler) and all(map(_lets_be, every))
        self.told = [each for each in every if _can_be_told(each) and each.exports_starts]
        self.records_nothing = self.roots_are_silent = self.can_record = self.roots_are_recorded = False
        if self.nobody_looks:
            self.certain = certainties(self._sampler)
            self.counts = counts_of(tracer)
            self.records_nothing = self.counts is None and all(each is _DROP for each in self.certain)
            self.roots_are_silent = self.certain[0] is _DROP and self.counts is None
            self._random = _random_flag(self._ids)
            self.can_record = self.counts is None and is_unlimited(tracer) and all(map(_is_deaf_to_sends, self.told))
            self.roots_are_recorded = self.certain[0] is _SAMPLED
            self.root_flags, self.random_mask = self._random + 1, _RANDOM
            self.draw = id_source(self._ids, self.root_flags)
            self.draw_silent = id_source(self._ids, self._random)

    def is_of(self, tracer: Any) -> bool:
        """Whether this is about ``tracer`` as it is now."""
        if tracer is not self.tracer or not self._is_known:
            return tracer is self.tracer
        return (
            tracer.sampler is self._sampler
            and tracer.id_generator is self._ids
            and tracer.span_processor._span_processors is self.processors  # noqa: SLF001 - see processors_at()
            and Tracer.start_span is _START_SPAN
        )

    def decided(self, parent: SpanContext) -> Decision | None:
        """Return what is decided about a span under ``parent`` whatever its id; ``None`` when that is open."""
        return decided(self.certain, parent)

    def place(
        self, name: str, otel_ctx: Context, kind: SpanKind, links: Sequence[Link], above: SpanContext | None = None
    ) -> tuple[SpanContext, SpanContext | None, Decision]:
        """Return the ids of a span that starts in ``otel_ctx``, its parent's if it has one, and what becomes of it.

        They are drawn and decided as the SDK's tracer does. ``above`` as for :meth:`SpanStart.start`.
        """
        parent = state = None
        over = above
        if over is None:
            over = get_current_span(otel_ctx).get_span_context() if otel_ctx else INVALID_SPAN_CONTEXT
        if over.is_valid:
            parent, trace_id, state, random = over, over.trace_id, over.trace_state, over.trace_flags & _RANDOM
        else:
            trace_id, random = self._ids.generate_trace_id(), self._random
        decision = self.decided(over)
        if decision is None:
            within = under(above, otel_ctx)
            decision = self._sampler.should_sample(within, trace_id, name, kind, None, links).decision
        flags = _FLAGS[random + (decision is _SAMPLED)]
        return SpanContext(trace_id, self._ids.generate_span_id(), False, flags, state), parent, decision  # noqa: FBT003


def _always() -> bool:
    return True


def under(above: SpanContext | None, otel_ctx: Context) -> Context:
    """Return ``otel_ctx`` with the span of ``above`` current in it, if there is one."""
    return otel_ctx if above is None or not above.is_valid else set_span_in_context(NonRecordingSpan(above), otel_ctx)


def _is_the_sdks(tracer: Any) -> bool:
    """Whether ``tracer`` starts its spans as the SDK's does, and hands them to its processors as the SDK does."""
    if type(tracer) is not Tracer or "start_span" in vars(tracer) or Tracer.start_span is not _START_SPAN:
        return False
    return type(tracer.span_processor) in _MULTI


def _is_deaf_to_sends(processor: Any) -> bool:
    """Whether none of its lanes would export the start of a send."""
    return bool(processor.exports_only_known_starts)


def _random_flag(ids: Any) -> int:
    return _RANDOM if _RANDOM and ids.is_trace_id_random() else 0


def _lets_be(processor: object) -> bool:
    """Whether ``processor`` does nothing with a span before it has ended, or is ours."""
    kind = type(processor)
    if not _HEARD.isdisjoint(getattr(processor, "__dict__", ())):
        return False  # somebody has put a method of theirs on this very one
    if getattr(kind, "_on_ending", None) not in _IDLE_BEFORE_END:
        return False
    return getattr(kind, "on_start", None) in _IDLE_AT_START or _can_be_told(processor)


def _can_be_told(processor: Any) -> bool:
    """Whether it is ours, and does at a start what ours does: a subclass may look for itself."""
    on_start = getattr(type(processor), "on_start", None)
    return getattr(on_start, "supports_deferred_start", False) is True
