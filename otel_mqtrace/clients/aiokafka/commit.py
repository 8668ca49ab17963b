"""Commits of offsets, by a consumer or along with a producer's transaction, and ends of transactions.

What the client commits by itself (``enable_auto_commit``) happens in its background task and is not seen.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.aiokafka.client import active, describe_error, state_of
from otel_mqtrace.clients.aiokafka.consumer import ConsumerState
from otel_mqtrace.clients.aiokafka.producer import ProducerState
from otel_mqtrace.clients.patching import observed
from otel_mqtrace.clients.settlement import Settlement, begin_transaction, end_transaction, find_creation_context
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.settle import SettledOffset, SettleHook
from otel_mqtrace.model import TransactionState

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import SpanContext

    from otel_mqtrace.hooks.transaction import TransactionHook

__all__ = ["traced_abort", "traced_begin", "traced_commit", "traced_end", "traced_send_offsets"]

_SEND_OFFSETS: Final = "send_offsets"
"""As confluent-kafka's is called."""


@guarded("commit.before")
def _commit(consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Settlement | None:
    """Without ``offsets`` everything handed over is committed: the assigned partitions' positions as we saw them."""
    tracing = active.tracing
    if tracing is None or not tracing.settings.settle_spans:
        return None
    state: ConsumerState = state_of(consumer, ConsumerState)
    positions = state.positions
    state.bind(tracing)
    hook = positions.hook(tracing)
    call = hook.before("commit")
    if call is None:
        return None
    offsets = args[0] if args else kwargs.get("offsets")
    if offsets is None:
        offsets = {each: positions.next_offset(*each) for each in consumer.assignment()}
    return Settlement(hook, call, _settled(offsets, positions.creation_context), describe_error)


@guarded("send_offsets_to_transaction.before")
def _send_offsets(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Settlement | None:
    tracing = active.tracing
    given = {**dict(zip(("offsets", "group_id"), args, strict=False)), **kwargs}
    if tracing is None or not tracing.settings.settle_spans or not isinstance(given.get("group_id"), str):
        return None
    state: ProducerState = state_of(producer, ProducerState)
    info = replace(state.info, group_name=given["group_id"])
    hook = SettleHook(tracing=tracing, info=info)
    call = hook.before(_SEND_OFFSETS)
    if call is None:
        return None
    creation_of = functools.partial(find_creation_context, server=info.server, group_name=info.group_name)
    return Settlement(hook, call, _settled(given["offsets"], creation_of), describe_error)


def _settled(offsets: Any, creation_of: Callable[[str, int, int], SpanContext | None]) -> list[SettledOffset]:
    """Read ``TopicPartition → offset | (offset, metadata)``; a partition nothing was handed over of is left out.

    An offset is where to continue from; the message before it is the one that is settled last.
    """
    settled = []
    for (topic, partition), given in offsets.items():
        if given is not None:
            offset = given if isinstance(given, int) else given[0]
            settled.append(SettledOffset(topic, partition, offset, creation_of(topic, partition, offset - 1)))
    return settled


@guarded("transaction.of")
def _transaction_of(producer: Any) -> TransactionHook | None:
    tracing = active.tracing
    if tracing is None:
        return None
    state: ProducerState = state_of(producer, ProducerState)
    return state.transaction_of(tracing)


traced_commit: Final = observed(_commit, is_async=True)
traced_send_offsets: Final = observed(_send_offsets, is_async=True)
traced_begin: Final = observed(begin_transaction(_transaction_of), is_async=True)
traced_end: Final = observed(end_transaction(_transaction_of, TransactionState.COMMIT_MESSAGE), is_async=True)
traced_abort: Final = observed(end_transaction(_transaction_of, TransactionState.ROLLBACK_MESSAGE), is_async=True)
