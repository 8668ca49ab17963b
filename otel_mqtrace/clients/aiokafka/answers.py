"""This module knows how a send ends: answered, refused, given up, or never heard of again.

What it returns are the arguments of ``SendHook.after``: whoever ends the span, now or later, says that.
"""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace import semconv
from otel_mqtrace.clients.aiokafka.messages import error_type
from otel_mqtrace.hooks._ending import text_of
from otel_mqtrace.hooks._futures import failure_of

if TYPE_CHECKING:
    from asyncio import Future

    from otel_mqtrace.clients.aiokafka.live import Cluster

__all__ = ["Ended", "abandoned", "answered", "refused"]

Ended = dict[str, Any]
"""What ``SendHook.after`` is told."""

_ABANDONED: Final[Ended] = {
    "error": semconv.SEND_ABANDONED,
    "description": "the producer was stopped or collected before the broker answered",
    "outcome": semconv.SEND_ABANDONED,
}
_NOT_AWAITED: Final = "the application stopped waiting for the broker's answer; the message may be stored"


def refused(failure: BaseException) -> Ended:
    """The message was not sent, or the broker refused it."""
    return {"error": error_type(failure), "description": text_of(failure), "exception": failure}


def abandoned() -> Ended:
    """Nobody will answer for the message."""
    return _ABANDONED


def answered(future: Future[Any], cluster: Cluster, *, index: int = 0) -> Ended:
    """What ``future``, which is done, says of the ``index``-th message that it answers for."""
    failure = failure_of(future)
    if isinstance(failure, CancelledError):
        return {"error": error_type(failure), "description": _NOT_AWAITED, "outcome": semconv.SEND_NOT_AWAITED}
    if failure is not None:
        return refused(failure)
    answer = future.result()
    if answer is None:  # acks=0: the broker never says
        return {"outcome": semconv.SEND_NOT_AWAITED}
    return {
        "partition": answer.partition,
        "offset": answer.offset + index if answer.offset >= 0 else None,
        "store_host": cluster.leader_of(answer.topic, answer.partition),
        "cluster_id": cluster.cluster_id,
    }
