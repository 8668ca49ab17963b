"""This module knows how a send ends: answered, refused, given up, or never heard of again."""

from __future__ import annotations

from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace import semconv
from otel_mqtrace.clients.aiokafka.futures import failure_of
from otel_mqtrace.clients.aiokafka.messages import error_type
from otel_mqtrace.hooks._ending import text_of

if TYPE_CHECKING:
    from asyncio import Future

    from otel_mqtrace.clients.aiokafka.live import Cluster
    from otel_mqtrace.hooks.send import SendCall, SendHook

__all__ = ["abandon", "fail", "settle"]

_ABANDONED: Final = "the producer was stopped or collected before the broker answered"
_NOT_AWAITED: Final = "the application stopped waiting for the broker's answer; the message may be stored"


def fail(hook: SendHook, call: SendCall, failure: BaseException, *, body_length: int | None) -> None:
    """End the span of a message that was not sent, or that the broker refused."""
    hook.after(
        call,
        body_length=body_length,
        error=error_type(failure),
        description=text_of(failure),
        exception=failure,
    )


def abandon(hook: SendHook, call: SendCall, *, body_length: int | None) -> None:
    """End the span of a message that nobody will answer for."""
    name = semconv.SEND_ABANDONED
    hook.after(call, body_length=body_length, error=name, description=_ABANDONED, outcome=name)


def settle(  # noqa: PLR0913 - one answer for many messages: each has its place in it
    hook: SendHook,
    call: SendCall,
    future: Future[Any],
    cluster: Cluster,
    *,
    body_length: int | None = None,
    index: int = 0,
) -> None:
    """End the span of the ``index``-th message that ``future`` answers for."""
    failure = failure_of(future)
    if isinstance(failure, CancelledError):
        name = semconv.SEND_NOT_AWAITED
        hook.after(call, body_length=body_length, error=error_type(failure), description=_NOT_AWAITED, outcome=name)
        return
    if failure is not None:
        fail(hook, call, failure, body_length=body_length)
        return
    answer = future.result()
    if answer is None:  # acks=0: the broker never says
        hook.after(call, body_length=body_length, outcome=semconv.SEND_NOT_AWAITED)
        return
    hook.after(
        call,
        partition=answer.partition,
        offset=answer.offset + index if answer.offset >= 0 else None,
        store_host=cluster.leader_of(answer.topic, answer.partition),
        cluster_id=cluster.cluster_id,
        body_length=body_length,
    )
