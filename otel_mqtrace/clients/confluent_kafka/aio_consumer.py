"""asyncio consumers: a message belongs to the task that received it until that task polls again or ends.

The client polls in a pool thread; the span opens, and is current, in the coroutine that awaited the message, and the
inner consumer records nothing. Where the poll is another task (``create_task``, ``gather``; ``wait_for`` before Python
3.12) the span cannot become current in the awaiting task, and ends with the next poll of any task.
"""

from __future__ import annotations

import functools
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.client import active, registry
from otel_mqtrace.clients.confluent_kafka.commit import offsets_of_call, traced_settlement
from otel_mqtrace.clients.confluent_kafka.consumer import Turn, refused, returned
from otel_mqtrace.clients.confluent_kafka.consumer_state import AnyConsumerState
from otel_mqtrace.clients.consumer_state import TaskConsumerState, traced_async_close
from otel_mqtrace.clients.state import attach_state, known_state
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.tracing import ClientInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.clients.patching import Wrapper, Wrappers


_polling: Final[ContextVar[object]] = ContextVar("mqtrace-polling", default=None)
"""The state whose poll is under way in this task: a subclass's poll awaits its parent's."""


class AioState(AnyConsumerState, TaskConsumerState):
    """The state of an asyncio consumer, which is about the same as ``inner``, that of the consumer it wraps."""

    def __init__(self, inner: AnyConsumerState | None) -> None:
        super().__init__(ClientInfo.of_kafka({}, group_name=None) if inner is None else inner.info, registry)
        if inner is not None:
            self.leaders = inner.leaders


def _state_of(consumer: Any) -> AioState | None:
    state: AioState | None = known_state(consumer)
    if state is None and hasattr(consumer, "__dict__"):
        inner: AnyConsumerState | None = known_state(getattr(consumer, "_consumer", None))
        if inner is not None:
            inner.silent = True
        state = AioState(inner)
        attach_state(consumer, state)
    return state


@guarded("AIOConsumer.poll")
def _turn(consumer: Any) -> Turn | None:
    tracing = active.tracing
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
            except:  # a KafkaError can be raised, but is not a BaseException
                refused(state, tracing, sys.exc_info()[1], start_ns=start_ns, batch=batch)
                raise
            finally:
                _polling.set(None)  # not by a token: a coroutine may be closed in another context
            if result is not None or start_ns is not None:
                returned(state, tracing, result, start_ns=start_ns, batch=batch)
            return result

        return receive

    return wrap


def _traced_settlement(operation: str) -> Wrapper:
    return traced_settlement(operation, offsets_of_call, state_of=_state_of, is_async=True)


AIO_CONSUMER_METHODS: Final[Wrappers] = {
    "poll": _traced_receive(batch=False),
    "consume": _traced_receive(batch=True),
    "commit": _traced_settlement("commit"),
    "store_offsets": _traced_settlement("store"),
    "close": traced_async_close,
    "__aexit__": traced_async_close,
}
"""Method of ``AIOConsumer`` → how to wrap it."""

ASYNC_DESERIALIZING_CONSUMER_METHODS: Final[Wrappers] = {
    name: AIO_CONSUMER_METHODS[name] for name in ("poll", "consume", "close")
}
"""The same for ``AsyncDeserializingConsumer``: what it overrides, to see which message a deserialiser refused."""
