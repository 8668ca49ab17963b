"""This module knows what the SDK's own samplers decide without looking at a span, so that nobody need put one together.

Certain is "always", "never", and what "as the parent" makes of them, by what the parent is. Any other sampler decides
by itself, and one that is not the SDK's may look at the attributes, and gets them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.trace.sampling import Decision

from otel_mqtrace.hooks._sdk import parent_based_on, sampler_of, static_decision

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import SpanContext, Tracer

__all__ = ["certainties", "decided", "never_recorded"]

_SAMPLERS_REMEMBERED: Final = 16
Certainties = tuple[Decision | None, ...]
"""By what is above a span, see :func:`decided`: nothing, a remote parent unsampled or sampled, a local one likewise."""


def never_recorded(tracer: Tracer, parent: SpanContext) -> bool:
    """Whether a span that ``tracer`` starts under ``parent`` will not be recorded, whatever it says."""
    sampler = sampler_of(tracer)
    if sampler is None or getattr(type(sampler), "__hash__", None) is None:  # none of the SDK's
        return False
    return decided(certainties(sampler), parent) is Decision.DROP


def decided(known: Certainties, parent: SpanContext) -> Decision | None:
    """Return what is decided about a span under ``parent``; ``None`` when the sampler must be asked."""
    if not parent.is_valid:
        return known[0]
    return known[(1 if parent.is_remote else 3) + (parent.trace_flags & 1)]  # the property `sampled` costs a call


@lru_cache(maxsize=_SAMPLERS_REMEMBERED)
def certainties(sampler: Sampler) -> Certainties:
    """Return what ``sampler`` decides without looking."""
    by_parent = parent_based_on(sampler)
    if by_parent is None:
        return (static_decision(sampler),) * 5
    return tuple(map(static_decision, by_parent))
