"""This module knows which two halves are one consume: same request id, and nothing else that speaks against it.

A redelivery has a request id of its own, so attempts are told apart by it. Clients that write no group into
``SubAfter`` (4.4.0-4.7.1, 4.9.1, every CLOUD since 4.9.5) are known by their ``SubBefore`` alone.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bridge.query.story import Consume, GroupStory, Half, Outcome
from otel_mqtrace.model import TraceType
from otel_mqtrace.wire.native import absent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bridge.query.evidence import Sighting

__all__ = ["consumed_by", "said"]


def said(text: str | None) -> str | None:
    """Return a text of a record, ``None`` for what stands for nothing."""
    return None if absent(text) else text


def consumed_by(halves: Iterable[Sighting]) -> tuple[GroupStory, ...]:
    """Return every group that consumed, in the order of their first deliveries, each with all of its attempts."""
    by_request: dict[str | None, list[Sighting]] = {}
    for half in halves:
        by_request.setdefault(said(half.trace_ctx.request_id), []).append(half)
    by_group: dict[str | None, list[Consume]] = {}
    for request_id, of_request in by_request.items():
        for before, after in _pairs(of_request, joined=request_id is not None):
            by_group.setdefault(_group(before, after), []).append(_consume(before, after))
    groups = (GroupStory(group=group, attempts=tuple(sorted(them, key=_order))) for group, them in by_group.items())
    return tuple(sorted(groups, key=lambda group: (_order(group.attempts[0]), group.group or "")))


def _pairs(halves: Sequence[Sighting], *, joined: bool) -> list[tuple[Sighting | None, Sighting | None]]:
    """Return (begin, end) pairs; without a request id every half stands alone."""
    befores = sorted((half for half in halves if half.trace_ctx.trace_type is TraceType.SUB_BEFORE), key=_time_order)
    afters = sorted((half for half in halves if half.trace_ctx.trace_type is TraceType.SUB_AFTER), key=_time_order)
    pairs: list[tuple[Sighting | None, Sighting | None]] = []
    for before in befores:
        after = next((one for one in afters if joined and _fit(before, one)), None)
        if after is not None:
            afters.remove(after)
        pairs.append((before, after))
    return [*pairs, *((None, after) for after in afters)]


def _fit(before: Sighting, after: Sighting) -> bool:
    groups = {said(half.trace_ctx.group_name) for half in (before, after)} - {None}
    return len(groups) <= 1


def _group(before: Sighting | None, after: Sighting | None) -> str | None:
    named = (said(half.trace_ctx.group_name) for half in (before, after) if half is not None)
    return next((name for name in named if name is not None), None)


def _consume(before: Sighting | None, after: Sighting | None) -> Consume:
    halves = tuple(half for half in (before, after) if half is not None)
    first = halves[0]
    begin_ms = None if before is None else before.trace_ctx.timestamp_ms
    end_ms = None if after is None else after.trace_ctx.timestamp_ms
    cost_ms = None if after is None else after.trace_ctx.cost_ms
    estimated = after is not None and end_ms is None and begin_ms is not None and cost_ms is not None
    return Consume(
        begin_ms=begin_ms,
        end_ms=begin_ms + cost_ms if estimated and begin_ms is not None and cost_ms is not None else end_ms,
        end_estimated=estimated,
        cost_ms=cost_ms,
        outcome=_outcome(after),
        context_code=None if after is None else after.trace_ctx.context_code,
        retry_times=None if before is None else before.bean.retry_times,
        request_id=said(first.trace_ctx.request_id),
        region_id=said(first.trace_ctx.region_id),
        topic=next((said(half.bean.topic) for half in halves if said(half.bean.topic)), None),
        keys=next((said(half.bean.keys) for half in halves if said(half.bean.keys)), None),
        client_host=next((said(half.bean.client_host) for half in halves if said(half.bean.client_host)), None),
        missing=Half.BEGIN if before is None else Half.END if after is None else None,
        evidence=halves,
    )


def _outcome(after: Sighting | None) -> Outcome:
    if after is None:
        return Outcome.UNFINISHED
    return {True: Outcome.SUCCESS, False: Outcome.FAILED, None: Outcome.UNKNOWN}[after.trace_ctx.success]


def _time_order(half: Sighting) -> tuple[float, str]:
    stamp_ms = half.trace_ctx.timestamp_ms
    return (math.inf if stamp_ms is None else stamp_ms, repr(half.trace_ctx))


def _order(consume: Consume) -> tuple[float, float, float, str]:
    def last(value: int | None) -> float:
        return math.inf if value is None else value

    return (last(consume.from_ms), last(consume.retry_times), last(consume.end_ms), repr(consume.evidence[0].trace_ctx))
