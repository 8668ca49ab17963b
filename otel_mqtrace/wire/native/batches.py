"""This module knows how one ``Pub`` for a batch is taken apart: ``msgId`` and ``offsetMsgId`` are lists then.

Java's client joins the ids of a batch by commas, one of each per message, in the order of the batch (seen of 4.9.8 and
5.5.0). What is said once for the batch, size and cost above all, is not divided: nobody says how.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_mqtrace.model import TraceType

if TYPE_CHECKING:
    from otel_mqtrace.model import TraceContext

__all__ = ["BATCH_SEPARATOR", "explode"]

BATCH_SEPARATOR: Final = ","


def explode(trace_ctx: TraceContext) -> tuple[TraceContext, ...]:
    """Return one context for each message of a batch's ``Pub``, ``(trace_ctx,)`` for everything else.

    Offset ids go by their place; where there are fewer or more of them than ids, none can be told and each is ``None``.
    """
    bean = trace_ctx.beans[0] if trace_ctx.beans else None
    if bean is None or trace_ctx.trace_type is not TraceType.PUB or BATCH_SEPARATOR not in (bean.msg_id or ""):
        return (trace_ctx,)
    ids = (bean.msg_id or "").split(BATCH_SEPARATOR)
    offsets: list[str | None] = [*(bean.offset_msg_id or "").split(BATCH_SEPARATOR)]
    if len(offsets) != len(ids):
        offsets = [None] * len(ids)
    return tuple(
        replace(trace_ctx, beans=(replace(bean, msg_id=msg_id, offset_msg_id=offset),))
        for msg_id, offset in zip(ids, offsets, strict=True)
    )
