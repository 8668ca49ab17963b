"""This module knows what of OpenTelemetry's SDK can be learned in no public way.

Its private names stand here, but for those that a span and its start are made of (``_unread.py``, ``_start.py``). Every
answer allows for an SDK that has no such part: then nothing is known, and the caller does what is always right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from opentelemetry.metrics import NoOpCounter
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, StaticSampler, TraceIdRatioBased
from opentelemetry.trace import NoOpTracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Counter
    from opentelemetry.trace import Tracer

__all__ = [
    "NEVER",
    "actual_tracer",
    "counts_of",
    "decides_by_ids",
    "is_collected",
    "is_unlimited",
    "links_kept",
    "parent_based_on",
    "processors_at",
    "processors_of",
    "replace_ids",
    "sampler_of",
    "static_decision",
    "take_off",
]

_ROOM_FOR_OURS: Final = 64
"""More attributes than a span of ours has."""
NEVER: Final = StaticSampler(Decision.DROP)
"""What stands for the sampler of a tracer that records nothing at all."""
_BY_PARENT: Final = (
    "_root",
    "_remote_parent_not_sampled",
    "_remote_parent_sampled",
    "_local_parent_not_sampled",
    "_local_parent_sampled",
)


def actual_tracer(tracer: Tracer) -> Any:
    """Return what stands behind the API's stand-in for a provider that comes late."""
    return getattr(tracer, "_tracer", tracer)


def sampler_of(tracer: Tracer) -> Sampler | None:
    """Return what decides which spans of ``tracer`` are recorded; ``None`` when that cannot be known."""
    actual = actual_tracer(tracer)
    sampler: Sampler | None = getattr(actual, "sampler", None)
    return NEVER if sampler is None and isinstance(actual, NoOpTracer) else sampler


def static_decision(sampler: object) -> Decision | None:
    """Return what the SDK's "always" or "never" decides; ``None`` for any other ``sampler``."""
    return getattr(sampler, "_decision", None) if type(sampler) is StaticSampler else None


def parent_based_on(sampler: object) -> tuple[object, ...] | None:
    """Return what the SDK's own parent-based ``sampler`` asks, by the parent.

    At a root, under a remote parent that was not sampled, or was, under a local one likewise. ``None`` for any other
    sampler, a subclass that decides by itself among them.
    """
    if getattr(type(sampler), "should_sample", None) is not ParentBased.should_sample:
        return None
    return tuple(getattr(sampler, name, None) for name in _BY_PARENT)


def links_kept(tracer: Tracer) -> int | None:
    """Return how many links a span of ``tracer`` keeps; ``None`` when there is no such limit, or it is not known."""
    limits = getattr(actual_tracer(tracer), "_span_limits", None)
    return limits.max_links if isinstance(limits, SpanLimits) else None


def is_unlimited(tracer: Any) -> bool:
    """Whether the span limits of ``tracer`` take nothing from a span of ours: no bound of lengths, room for all.

    A span of ours never has more links than its provider keeps.
    """
    limits = getattr(tracer, "_span_limits", None)
    if not isinstance(limits, SpanLimits):
        return False
    lengths = (limits.max_attribute_length, limits.max_span_attribute_length)
    counts = (limits.max_span_attributes, limits.max_link_attributes, limits.max_links)
    return lengths == (None, None) and all(most is None or most >= _ROOM_FOR_OURS for most in counts)


def replace_ids(tracer: Tracer, make: Callable[[IdGenerator], IdGenerator]) -> IdGenerator | None:
    """Give ``tracer`` the id generator that ``make`` makes of its own, and return it; ``None`` without an SDK."""
    actual = actual_tracer(tracer)
    ids = getattr(actual, "id_generator", None)
    if not isinstance(ids, IdGenerator):
        return None
    made = make(ids)
    if made is not ids:
        actual.id_generator = made
    return made


def is_collected(counter: Counter) -> bool:
    """Whether anybody collects what ``counter`` counts: not before there is a MeterProvider, nor with a no-op one."""
    instrument = getattr(counter, "_real_instrument", counter)
    return instrument is not None and not isinstance(instrument, NoOpCounter)


def decides_by_ids(sampler: object) -> bool:
    """Whether ``sampler`` is one of the SDK's own, none of which looks at the attributes of a span."""
    if type(sampler) is ParentBased:
        return all(map(decides_by_ids, parent_based_on(sampler) or (None,)))
    return type(sampler) in {StaticSampler, TraceIdRatioBased}


def processors_at(tracer: Tracer) -> tuple[object, ...] | None:
    """Return the span processors of ``tracer``, the same object as long as they are the same; ``None`` if unknown."""
    every = getattr(getattr(actual_tracer(tracer), "span_processor", None), "_span_processors", None)
    return every if isinstance(every, tuple) else None


def counts_of(tracer: Tracer) -> Any:
    """Return what counts the spans of ``tracer`` as they start, for the SDK's own metrics; ``None`` if nothing does."""
    counts = getattr(tracer, "_tracer_metrics", None)
    return None if type(counts).__name__ == "NoOpTracerMetrics" else counts


def processors_of(provider: object) -> tuple[object, ...]:
    """Return the span processors of ``provider``; none of one that is not the SDK's."""
    return tuple(getattr(getattr(provider, "_active_span_processor", None), "_span_processors", ()))


def take_off(provider: object, processor: object) -> None:
    """Take a span processor off ``provider`` again: there is a public way to add one only."""
    active: Any = getattr(provider, "_active_span_processor", None)
    if hasattr(active, "_span_processors"):
        active._span_processors = tuple(each for each in processors_of(provider) if each is not processor)  # noqa: SLF001 - see above
