"""asyncio consumers: a message belongs to the task that received it until that task polls again or ends.

The client polls in a pool thread; the span opens, and is current, in the coroutine that awaited the message, and the
inner consumer records nothing. Where the poll is another task (``create_task``, ``gather``; ``wait_for`` before Python
3.12) the span cannot become current in the awaiting task, and ends with the next poll of any task.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.client import active, registry
from otel_mqtrace.clients.confluent_kafka.commit import offsets_of_call, traced_settlement
from otel_mqtrace.clients.confluent_kafka.consumer import refused, returned
from otel_mqtrace.clients.confluent_kafka.consumer_state import AnyConsumerState
from otel_mqtrace.clients.consumer_state import TaskConsumerState, traced_async_close
from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.state import attach_state, known_state
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.tracing import ClientInfo

if TYPE_CHECKING:
    from otel_mqtrace.clients.patching import Wrapper, Wrappers
    from otel_mqtrace.hooks.tracing import Tracing


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


@dataclass(slots=True)
class _Poll:
    """A ``poll`` or, as a ``batch``, a ``consume`` under way; ``start_ns`` is set where polls are recorded."""

    state: AioState
    tracing: Tracing
    start_ns: int | None
    batch: bool

    def failed(self, raised: Any) -> None:
        """Record what was raised."""
        _polling.set(None)  # not by a token: a coroutine may be closed in another context
        refused(self.state, self.tracing, raised, start_ns=self.start_ns, batch=self.batch)

    def succeeded(self, result: Any) -> None:
        """Hand over what was returned: what is set in an awaited coroutine stays set in the task that awaits it."""
        _polling.set(None)
        if result is not None or self.start_ns is not None:
            returned(self.state, self.tracing, result, start_ns=self.start_ns, batch=self.batch)


@guarded("AIOConsumer.poll")
def _begin(consumer: Any, *, batch: bool) -> _Poll | None:
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
    poll = _Poll(state, tracing, state.bind(tracing).poll_begins(), batch)
    _polling.set(state)
    return poll


_traced_poll: Final = observe_calls(lambda consumer, _args, _kwargs: _begin(consumer, batch=False), is_async=True)
_traced_consume: Final = observe_calls(lambda consumer, _args, _kwargs: _begin(consumer, batch=True), is_async=True)


def _traced_settlement(operation: str) -> Wrapper:
    return traced_settlement(operation, offsets_of_call, state_of=_state_of, is_async=True)


AIO_CONSUMER_METHODS: Final[Wrappers] = {
    "poll": _traced_poll,
    "consume": _traced_consume,
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
