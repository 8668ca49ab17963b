"""This module knows when offsets are settled: by a consumer's ``commit``, or along with a producer's transaction.

What the client commits by itself (``enable_auto_commit``) happens in its background task and is not seen.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from otel_mqtrace.clients.aiokafka.consumer import ConsumerState
from otel_mqtrace.clients.aiokafka.live import live, state_of
from otel_mqtrace.clients.aiokafka.messages import error_type
from otel_mqtrace.clients.aiokafka.producer import ProducerState
from otel_mqtrace.hooks._ending import text_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.settle import SettleCall, SettledOffset, SettleHook

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["traced_commit", "traced_send_offsets"]


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
    return _Settling(hook, call, _settled(offsets))


@guarded("send_offsets_to_transaction.before")
def _send_offsets(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Settling | None:
    tracing = live.tracing
    given = {**dict(zip(("offsets", "group_id"), args, strict=False)), **kwargs}
    if tracing is None or not isinstance(given.get("group_id"), str):
        return None
    state: ProducerState = state_of(producer, ProducerState)
    hook = SettleHook(tracing=tracing, facts=replace(state.facts, group_name=given["group_id"]))
    call = hook.before("commit")
    return None if call is None else _Settling(hook, call, _settled(given["offsets"]))


def _settled(offsets: Any) -> list[SettledOffset]:
    """Read ``TopicPartition → offset | (offset, metadata)``; a partition nothing was handed over of is left out."""
    return [
        SettledOffset(each.topic, each.partition, offset if isinstance(offset, int) else offset[0])
        for each, offset in offsets.items()
        if offset is not None
    ]


traced_commit = _traced(_commit)
traced_send_offsets = _traced(_send_offsets)
