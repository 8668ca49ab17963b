"""This module knows when a span will certainly not be recorded, so that nobody need put its attributes together.

Certain is only what the SDK's own samplers decide without looking at the span: "never", and "as the parent" under a
parent that was not sampled. Any other sampler may look at the attributes, and gets them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, StaticSampler
from opentelemetry.trace import NoOpTracer, SpanContext, Tracer

__all__ = ["never_recorded"]

_SAMPLERS_REMEMBERED: Final = 16


def never_recorded(tracer: Tracer, parent: SpanContext) -> bool:
    """Whether a span that ``tracer`` starts under ``parent`` will not be recorded, whatever it says."""
    actual: Any = getattr(tracer, "_tracer", tracer)  # the API's stand-in for a provider that comes late
    sampler = getattr(actual, "sampler", None)
    if sampler is None:
        return isinstance(actual, NoOpTracer)
    never, at_a_root, under_unsampled = _certainties(sampler)
    if never or not (at_a_root or under_unsampled):
        return never
    if parent.trace_flags.sampled:
        return False
    return under_unsampled if parent.is_valid else at_a_root


@lru_cache(maxsize=_SAMPLERS_REMEMBERED)
def _certainties(sampler: Sampler) -> tuple[bool, bool, bool]:
    """Return when ``sampler`` drops without looking: always, at a root, under a parent that was not sampled."""
    if _drops(sampler):
        return True, True, True
    if getattr(type(sampler), "should_sample", None) is not ParentBased.should_sample:
        return False, False, False
    unsampled = [getattr(sampler, name, None) for name in ("_remote_parent_not_sampled", "_local_parent_not_sampled")]
    return False, _drops(getattr(sampler, "_root", None)), all(map(_drops, unsampled))


def _drops(sampler: object) -> bool:
    return type(sampler) is StaticSampler and getattr(sampler, "_decision", None) is Decision.DROP
