"""This module knows when an aiokafka producer's transaction begins and ends."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from otel_mqtrace.clients.aiokafka.live import live, state_of
from otel_mqtrace.clients.aiokafka.producer import ProducerState
from otel_mqtrace.hooks._guard import guarded

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.transaction import TransactionHook
    from otel_mqtrace.model import TransactionState

__all__ = ["traced_begin", "traced_end"]


def traced_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    """``begin_transaction``, which ``async with producer.transaction()`` calls."""

    @functools.wraps(original)
    async def begin_transaction(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = await original(self, *args, **kwargs)
        transaction = _transaction_of(self)
        if transaction is not None:
            transaction.begin()
        return result

    return begin_transaction


def traced_end(end: TransactionState) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``commit_transaction`` and ``abort_transaction``; one that failed may be tried again, and is not recorded."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def end_transaction(self: Any, *args: Any, **kwargs: Any) -> Any:
            transaction = _transaction_of(self)
            start_ns = 0 if transaction is None else transaction.now_ns()
            result = await original(self, *args, **kwargs)
            if transaction is not None:
                transaction.ended(end, start_ns=start_ns)
            return result

        return end_transaction

    return wrap


@guarded("transaction.of")
def _transaction_of(producer: Any) -> TransactionHook | None:
    tracing = live.tracing
    if tracing is None:
        return None
    state: ProducerState = state_of(producer, ProducerState)
    return state.transaction_of(tracing)
