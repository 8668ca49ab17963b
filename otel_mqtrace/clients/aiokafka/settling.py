"""This module knows when offsets are settled: by a consumer's ``commit``, or along with a producer's transaction.

What the client commits by itself (``enable_auto_commit``) happens in its background task and is not seen.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.aiokafka.consumer import ConsumerState
from otel_mqtrace.clients.aiokafka.live import live, state_of
from otel_mqtrace.clients.aiokafka.messages import error_type
from otel_mqtrace.clients.aiokafka.producer import ProducerState
from otel_mqtrace.clients.creations import remembered
from otel_mqtrace.hooks._ending import text_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.settle import SettleCall, SettledOffset, SettleHook

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import SpanContext

__all__ = ["traced_commit", "traced_send_offsets"]

_SEND_OFFSETS: Final = "send_offsets"
"""As confluent-kafka's is called."""


class _Settling:
    """One settlement under way."""

    __slots__ = ("_call", "_hook", "_settled")

    def __init__(self, hook: SettleHook, call: SettleCall, settled: list[SettledOffset]) -> None:
        self._hook = hook
        self._call = call
        self._settled = settled

    def done(self) -> None:
        """The broker has taken the offsets."""
        self._hook.after(self._call, self._settled)

    def failed(self, exception: BaseException) -> None:
        """It has not, or nobody waited for its word."""
        self._hook.after(
            self._call,
            self._settled,
            error=error_type(exception),
            description=text_of(exception),
            exception=exception,
        )


def _traced(
    prepare: Callable[[Any, tuple[Any, ...], dict[str, Any]], _Settling | None],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def settle(self: Any, *args: Any, **kwargs: Any) -> Any:
            tracing = live.tracing
            if tracing is None or not tracing.settings.settle_spans:
                return await original(self, *args, **kwargs)
            settling = prepare(self, args, kwargs)
            try:
                result = await original(self, *args, **kwargs)
            except BaseException as exception:
                if settling is not None:
                    settling.failed(exception)
                raise
            if settling is not None:
                settling.done()
            return result

        return settle

    return wrap


@guarded("commit.before")
def _commit(consumer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Settling | None:
    """Without ``offsets`` everything handed over is committed: the assigned partitions' positions as we saw them."""
    tracing = live.tracing
    if tracing is None:
        return None
    state: ConsumerState = state_of(consumer, ConsumerState)
    hook = state.settlement_of(tracing)
    call = None if hook is None else hook.before("commit")
    if hook is None or call is None:
        return None
    offsets = args[0] if args else kwargs.get("offsets")
    if offsets is None:
        offsets = {each: state.positions.get(tuple(each)) for each in consumer.assignment()}
    return _Settling(hook, call, _settled(offsets, state.creations.of))


@guarded("send_offsets_to_transaction.before")
def _send_offsets(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Settling | None:
    tracing = live.tracing
    given = {**dict(zip(("offsets", "group_id"), args, strict=False)), **kwargs}
    if tracing is None or not isinstance(given.get("group_id"), str):
        return None
    state: ProducerState = state_of(producer, ProducerState)
    facts = replace(state.facts, group_name=given["group_id"])
    hook = SettleHook(tracing=tracing, facts=facts)
    call = hook.before(_SEND_OFFSETS)
    if call is None:
        return None
    creation_of = functools.partial(remembered, server=facts.server, group_name=facts.group_name)
    return _Settling(hook, call, _settled(given["offsets"], creation_of))


def _settled(offsets: Any, creation_of: Callable[[str, int, int], SpanContext | None]) -> list[SettledOffset]:
    """Read ``TopicPartition → offset | (offset, metadata)``; a partition nothing was handed over of is left out.

    An offset is where to go on from; the message before it is the one that is settled last.
    """
    settled = []
    for (topic, partition), said in offsets.items():
        if said is not None:
            offset = said if isinstance(said, int) else said[0]
            settled.append(SettledOffset(topic, partition, offset, creation_of(topic, partition, offset - 1)))
    return settled


traced_commit = _traced(_commit)
traced_send_offsets = _traced(_send_offsets)
