"""This module knows when a producer's transaction begins, takes a consumer's offsets along, and ends."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from otel_mqtrace.clients.confluent_kafka.live import live
from otel_mqtrace.clients.confluent_kafka.messages import error_text, error_type
from otel_mqtrace.clients.confluent_kafka.produce.sending import ProducerState, producer_state
from otel_mqtrace.clients.creations import remembered
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.settle import SettleCall, SettledOffset

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.transaction import TransactionHook
    from otel_mqtrace.model import TransactionState

__all__ = ["traced_begin", "traced_end", "traced_offsets"]

_SEND_OFFSETS = "send_offsets"


def traced_begin(original: Callable[..., Any]) -> Callable[..., Any]:
    """``begin_transaction``: what is sent from now on belongs to a transaction."""

    @functools.wraps(original)
    def begin_transaction(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        transaction = _transaction_of(self)
        if transaction is not None:
            transaction.begin()
        return result

    return begin_transaction


def traced_end(end: TransactionState) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``commit_transaction`` and ``abort_transaction``: one that raises has not ended it, and may be tried again."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def end_transaction(self: Any, *args: Any, **kwargs: Any) -> Any:
            transaction = _transaction_of(self)
            start_ns = 0 if transaction is None else transaction.now_ns()
            result = original(self, *args, **kwargs)
            if transaction is not None:
                transaction.ended(end, start_ns=start_ns)
            return result

        return end_transaction

    return wrap


def traced_offsets(original: Callable[..., Any]) -> Callable[..., Any]:
    """``send_offsets_to_transaction``: a consumer's offsets are settled by the producer."""

    @functools.wraps(original)
    def send_offsets_to_transaction(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = _bound(self)
        call = None if state is None or state.settle is None else state.settle.before(_SEND_OFFSETS)
        if state is None or call is None:
            return original(self, *args, **kwargs)
        offsets = args[0] if args else kwargs.get("positions")
        try:
            result = original(self, *args, **kwargs)
        except:  # a KafkaError can be raised, and is no BaseException
            _settled(state, call, offsets, sys.exc_info()[1])
            raise
        _settled(state, call, offsets, None)
        return result

    return send_offsets_to_transaction


@guarded("Producer.offsets")
def _settled(state: ProducerState, call: SettleCall, offsets: Any, failure: Any) -> None:
    if state.settle is not None:
        state.settle.after(
            call,
            [_settled_offset(each, state.facts.server) for each in offsets or ()],
            error=None if failure is None else error_type(failure),
            description=None if failure is None else error_text(failure),
            exception=failure if isinstance(failure, BaseException) else None,
        )


def _settled_offset(place: Any, server: str | None) -> SettledOffset:
    """Return an offset to go on from; the message before it, if a consumer of this process had it, is settled last."""
    topic, partition, offset = place.topic, place.partition, place.offset
    return SettledOffset(topic, partition, offset, remembered(topic, partition, offset - 1, server=server))


def _transaction_of(producer: Any) -> TransactionHook | None:
    state = _bound(producer)
    return None if state is None else state.transaction


@guarded("Producer.transaction")
def _bound(producer: Any) -> ProducerState | None:
    """Return the producer's state, bound to the Tracing in force; ``None`` while nothing is traced."""
    if live.tracing is None:
        return None
    state = producer_state(producer)
    if state is not None:
        state.bind(live.tracing)
    return state
