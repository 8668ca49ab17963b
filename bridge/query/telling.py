"""This module knows how records become a story: each record one event, the halves of a consume one together.

The story depends on what the records say, never on the order they were read in, nor on how often.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bridge.query.consumes import consumed_by, said
from bridge.query.story import MessageStory, Outcome, Recall, Send, TransactionEnd
from otel_mqtrace.model import KEY_SEPARATOR, TraceType
from otel_mqtrace.wire.native import started_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from bridge.query.evidence import BadSighting, Sighting

__all__ = ["tell"]

_ENDED = {True: Outcome.SUCCESS, False: Outcome.FAILED, None: Outcome.UNKNOWN}


def tell(msg_id: str, sightings: Sequence[Sighting], bad: Iterable[BadSighting] = ()) -> MessageStory:
    """Return the story of the message ``msg_id`` from the sightings of its records, given in any order.

    ``bad`` are the bad records of all trace messages that were read; those that lie in one of this message's, or have
    its id in their text, become part of the story.
    """
    of_type: dict[TraceType, list[Sighting]] = {trace_type: [] for trace_type in TraceType}
    for sighting in sorted(sightings, key=_order):
        of_type[sighting.trace_ctx.trace_type].append(sighting)
    in_order = [sighting for of_one in of_type.values() for sighting in of_one]
    return MessageStory(
        msg_id=msg_id,
        topics=_different(sighting.bean.topic for sighting in in_order),
        tags=_different(sighting.bean.tags for sighting in in_order),
        keys=_different(key for sighting in in_order for key in (said(sighting.bean.keys) or "").split(KEY_SEPARATOR)),
        sends=tuple(map(_send, of_type[TraceType.PUB])),
        transaction_ends=tuple(map(_transaction_end, of_type[TraceType.END_TRANSACTION])),
        recalls=tuple(map(_recall, of_type[TraceType.RECALL])),
        groups=consumed_by([*of_type[TraceType.SUB_BEFORE], *of_type[TraceType.SUB_AFTER]]),
        bad=tuple(_near(msg_id, in_order, bad)),
        records=len(in_order),
        repeats=sum(sighting.seen - 1 for sighting in in_order),
    )


def _send(sighting: Sighting) -> Send:
    trace_ctx, bean = sighting.trace_ctx, sighting.bean
    begin_ms = started_ms(trace_ctx, sighting.dialect)
    known = begin_ms is not None and trace_ctx.cost_ms is not None
    return Send(
        begin_ms=begin_ms,
        end_ms=begin_ms + trace_ctx.cost_ms
        if known and begin_ms is not None and trace_ctx.cost_ms is not None
        else None,
        cost_ms=trace_ctx.cost_ms,
        outcome=_ENDED[trace_ctx.success],
        body_bytes=bean.body_length,
        msg_type=bean.msg_type,
        offset_msg_id=said(bean.offset_msg_id),
        of_batch=sighting.of_batch,
        **_texts(sighting, "topic", "tags", "keys", "store_host", "client_host"),
    )


def _transaction_end(sighting: Sighting) -> TransactionEnd:
    bean = sighting.bean
    return TransactionEnd(
        at_ms=sighting.trace_ctx.timestamp_ms,
        state=bean.transaction_state,
        from_check=bean.from_transaction_check,
        **_texts(sighting, "transaction_id", "topic", "tags", "keys", "store_host", "client_host"),
    )


def _recall(sighting: Sighting) -> Recall:
    return Recall(
        at_ms=sighting.trace_ctx.timestamp_ms,
        outcome=_ENDED[sighting.trace_ctx.success],
        **_texts(sighting, "topic"),
    )


def _texts(sighting: Sighting, *of_bean: str) -> dict[str, Any]:
    """Return what every event has, and the texts of the bean that this one has."""
    return {
        "group": said(sighting.trace_ctx.group_name),
        "region_id": said(sighting.trace_ctx.region_id),
        "evidence": (sighting,),
        **{name: said(getattr(sighting.bean, name)) for name in of_bean},
    }


def _near(msg_id: str, sightings: Sequence[Sighting], bad: Iterable[BadSighting]) -> Iterable[BadSighting]:
    held = {place.rank[:-1] for sighting in sightings for place in sighting.places}
    return (one for one in bad if one.rank[:-1] in held or msg_id in one.text)


def _different(texts: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in map(said, texts) if text is not None))


def _order(sighting: Sighting) -> tuple[float, str]:
    stamp_ms = started_ms(sighting.trace_ctx, sighting.dialect)
    return (math.inf if stamp_ms is None else stamp_ms, repr(sighting.trace_ctx))
