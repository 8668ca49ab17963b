"""This module knows when a span will certainly not be recorded, so that nobody need put its attributes together.

Certain is only what the SDK's own samplers decide without looking at the span: "never", and "as the parent" under a
parent that was not sampled. Any other sampler may look at the attributes, and gets them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from otel_mqtrace.hooks._sdk import drops_all, parent_based_on, sampler_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.sampling import Sampler
    from opentelemetry.trace import SpanContext, Tracer

__all__ = ["never_recorded"]

_SAMPLERS_REMEMBERED: Final = 16


def never_recorded(tracer: Tracer, parent: SpanContext) -> bool:
    """Whether a span that ``tracer`` starts under ``parent`` will not be recorded, whatever it says."""
    sampler = sampler_of(tracer)
    if sampler is None:
        return False
    never, at_a_root, under_unsampled = _certainties(sampler)
    if never or not (at_a_root or under_unsampled):
        return never
    if parent.trace_flags & 1:  # sampled: the property of that name costs a call for every message
        return False
    return under_unsampled if parent.is_valid else at_a_root


@lru_cache(maxsize=_SAMPLERS_REMEMBERED)
def _certainties(sampler: Sampler) -> tuple[bool, bool, bool]:
    """Return when ``sampler`` drops without looking: always, at a root, under a parent that was not sampled."""
    if drops_all(sampler):
        return True, True, True
    asked = parent_based_on(sampler)
    if asked is None:
        return False, False, False
    at_a_root, under_unsampled = asked
    return False, drops_all(at_a_root), all(map(drops_all, under_unsampled))
