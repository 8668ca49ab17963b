"""This module knows the asyncio consumers: what a task was handed is the task's until it polls again, or ends.

The client polls in a pool thread; the span opens where the message arrives, in the coroutine that awaited it, and is
current there. The consumer inside, which does the work in the pool, is silent. Several tasks may share one consumer:
each holds its own messages. Where the poll is a task of its own (``create_task``, ``gather``; ``wait_for`` before
Python 3.12) the span cannot become current in whoever awaits it, and ends with the next poll of any task.
"""

from __future__ import annotations

import functools
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.consume.consumer import Turn, refused, returned
from otel_mqtrace.clients.confluent_kafka.consume.consumer_state import ConsumerState
from otel_mqtrace.clients.confluent_kafka.consume.settling import Settles, begun, offsets_asked
from otel_mqtrace.clients.confluent_kafka.live import STATE, known_state, live
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._holding import TaskHoldings, leaving_with
from otel_mqtrace.hooks._left_behind import when_collected

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.clients.change import Wrappers
    from otel_mqtrace.hooks._holding import Held
    from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
    from otel_mqtrace.hooks.process import Responsibility
    from otel_mqtrace.model import ContextCode

__all__ = ["AIO_CONSUMER_METHODS", "ASYNC_DESERIALIZING_CONSUMER_METHODS", "AioState"]

_polling: Final[ContextVar[object]] = ContextVar("mqtrace-polling", default=None)
"""The state whose poll is under way in this task: a subclass's poll awaits its parent's."""


class AioState(ConsumerState):
    """The state of an asyncio consumer, which is about the same as ``inner``, that of the consumer it wraps."""

    def __init__(self, inner: ConsumerState | None) -> None:
        super().__init__(None, like=inner)
        self._tasks = TaskHoldings()

    def next_turn(self) -> None:
        """The current task polls again; what tasks left behind that did nothing but poll is done with as well."""
        self._tasks.finish_mine()

    def done(self, code: ContextCode, exception: BaseException | None) -> None:
        """The current task is done with what it has; how it goes in the others they will say."""
        self._tasks.finish_mine(code, exception)

    def hold(self, hook: ConsumeHook, calls: list[ProcessCall], handed: object) -> Held:
        """Keep what the current task is handed."""
        return self._tasks.hold(hook, calls, handed) if calls else self._held

    def taken(self, call: ProcessCall) -> Responsibility | None:
        """Give the span of a message that a task holds to a block."""
        return self._tasks.take(call)

    @guarded("AioState.abandon")
    def abandon(self) -> None:
        """The consumer is gone, or tracing is."""
        self._tasks.abandon()


def _state_of(consumer: Any) -> AioState | None:
    """Return the consumer's state, making it, and silencing the consumer inside, at its first use."""
    state: AioState | None = known_state(consumer)
    if state is None and hasattr(consumer, "__dict__"):
        inner: ConsumerState | None = known_state(getattr(consumer, "_consumer", None))
        if inner is not None:
            inner.silent = True
        state = AioState(inner)
        consumer.__dict__[STATE] = state
        when_collected(consumer, state.abandon)
    return state


@guarded("AIOConsumer.poll")
def _turn(consumer: Any) -> Turn | None:
    tracing = live.tracing
    state: AioState | None
    if tracing is None:
        state = known_state(consumer)
        if state is not None:
            state.abandon()
        return None
    state = _state_of(consumer)
    if state is None or _polling.get() is state:
        return None
    state.next_turn()
    return state, tracing, state.bind(tracing).poll_begins()


def _traced_receive(*, batch: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``poll`` and ``consume``: what is set in an awaited coroutine stays set in the task that awaits it."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
            turn = _turn(self)
            if turn is None:
                return await original(self, *args, **kwargs)
            state, tracing, start_ns = turn
            _polling.set(state)
            try:
                result = await original(self, *args, **kwargs)
            except:  # a KafkaError can be raised, and is no BaseException
                refused(state, tracing, sys.exc_info()[1], start_ns=start_ns, batch=batch)
                raise
            finally:
                _polling.set(None)  # not by a token: a coroutine may be closed in another context
            if result is not None or start_ns is not None:
                returned(state, tracing, result, start_ns=start_ns, batch=batch)
            return result

        return receive

    return wrap


def _traced_close(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        state: AioState | None = known_state(self)
        if state is not None:
            state.closing(leaving_with(args))
        return await original(self, *args, **kwargs)

    return close


def _traced_settlement(operation: str, settles: Settles) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def settle(self: Any, *args: Any, **kwargs: Any) -> Any:
            settlement = begun(_state_of, self, operation, settles, (args, kwargs))
            if settlement is None:
                return await original(self, *args, **kwargs)
            try:
                result = await original(self, *args, **kwargs)
            except:  # as above
                settlement.failed(sys.exc_info()[1])
                raise
            settlement.done(result)
            return result

        return settle

    return wrap


AIO_CONSUMER_METHODS: Final[Wrappers] = {
    "poll": _traced_receive(batch=False),
    "consume": _traced_receive(batch=True),
    "commit": _traced_settlement("commit", offsets_asked),
    "store_offsets": _traced_settlement("store", offsets_asked),
    "close": _traced_close,
    "__aexit__": _traced_close,
}
"""Method of ``AIOConsumer`` → how to wrap it."""

ASYNC_DESERIALIZING_CONSUMER_METHODS: Final[Wrappers] = {
    name: AIO_CONSUMER_METHODS[name] for name in ("poll", "consume", "close")
}
"""The same for ``AsyncDeserializingConsumer``: what it overrides, to see which message a deserialiser refused."""
