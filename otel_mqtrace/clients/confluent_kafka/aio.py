"""Trace asyncio clients: sends through ``AIOProducer``, polls and settlements of ``AIOConsumer``."""

from __future__ import annotations

import asyncio
import functools
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.batches import CarriedPartition
from otel_mqtrace.clients.confluent_kafka.client import active, registry
from otel_mqtrace.clients.confluent_kafka.commit import offsets_of_call, traced_settlement
from otel_mqtrace.clients.confluent_kafka.consumer import refused, returned, state_at_poll
from otel_mqtrace.clients.confluent_kafka.consumer_state import AnyConsumerState
from otel_mqtrace.clients.confluent_kafka.sending import ProducerState, Sending
from otel_mqtrace.clients.consumer_state import traced_async_close
from otel_mqtrace.clients.patching import observe_calls
from otel_mqtrace.clients.state import known_state
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.in_flight import TaskDeliveries
from otel_mqtrace.hooks.outcome import drain_deferred_ends, failure_of
from otel_mqtrace.hooks.tracing import ClientInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from otel_mqtrace.clients.patching import Observe, Wrapper, Wrappers


# -- producers ------------------------------------------------------------------------------------------------------
# AIOProducer gathers messages and sends them with produce_batch of a plain producer, in a pool thread. So the span
# opens in the coroutine that sends, travels with the message (CarriedPartition), and ends with the delivery report,
# whether or not the application awaits the future. Nothing of the coroutine's context stays in the pool.
_ORDER: Final = ("topic", "value", "key")
_UNASSIGNED: Final = -1
_PURGED: Final = ("_PURGE_QUEUE", "Local: Purged in queue")
"""librdkafka's error for a message that ``purge`` found in its own queue."""


def _traced_produce(original: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """``produce``: queued when its coroutine is done, delivered when the future it returns is."""

    @functools.wraps(original)
    async def produce(self: Any, *args: Any, **kwargs: Any) -> Any:
        sending = _open(self, args, kwargs)
        if sending is None:
            return await original(self, *args, **kwargs)
        carried = _carry(self, sending, kwargs)
        try:
            future = await original(self, *args, **(kwargs if carried is None else {**kwargs, "partition": carried}))
        except asyncio.CancelledError:
            if carried is None:
                sending.forgotten()
            raise  # only the sending of a full buffer can be cancelled: the message may be in the pool's hands already
        except:  # a KafkaError can be raised, but is not a BaseException
            if carried is None or not (carried.is_taken or _is_buffered(self, carried)):
                sending.raised(sys.exc_info()[1])
            raise
        if carried is None:
            _follow(future, sending)
        return future

    return produce


@guarded("AIOProducer.before")
def _open(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sending | None:
    """Open the span of one message; ``None`` when it needs none."""
    tracing = active.tracing
    if tracing is None or tracing.settings.headerless_sends == "leave":
        return None
    given = {**dict(zip(_ORDER, args, strict=False)), **kwargs}
    topic = given.get("topic")
    if not isinstance(topic, str):
        return None
    inner: ProducerState | None = known_state(getattr(producer, "_producer", None))
    if inner is not None:
        inner.behind_asyncio = True
    state = active.state_of(producer if inner is None else producer._producer, ProducerState)  # noqa: SLF001 - it has no public name
    if state is None:
        return None
    hook = state.hook
    partition = given.get("partition")
    call = hook.before(
        topic,
        body=given.get("value"),
        key=given.get("key"),
        partition=partition if isinstance(partition, int) else None,
        transaction_id=state.transaction.transaction_id,
        carries_headers=False,
    )
    if call is None or not call.is_recorded:
        return None
    if state.leaders is not None:
        state.leaders.want(topic)
    sending = state.sending(state, hook, call, None)
    sending.await_answer()
    return sending


def _carry(producer: Any, sending: Sending, kwargs: Mapping[str, Any]) -> CarriedPartition | None:
    """Return what to send instead of the partition; ``None`` when no delivery report could find it.

    That is: the asyncio producer is older than the patch, or its plain one is not ours for another reason.
    """
    partition = kwargs.get("partition", _UNASSIGNED)
    if known_state(getattr(producer, "_producer", None)) is None or not isinstance(partition, int):
        return None
    return CarriedPartition(partition, sending)


def _is_buffered(producer: Any, carried: CarriedPartition) -> bool:
    """Return whether the message waits in the buffer although the call failed while it sent others."""
    buffered = getattr(getattr(producer, "_batch_processor", None), "_message_buffer", ())
    return any(message.get("partition") is carried for message in buffered)


@guarded("AIOProducer.follow")
def _follow(future: asyncio.Future[Any], sending: Sending) -> None:
    """End the span when the future is done, where no delivery report can be seen."""
    sending.returned()
    future.add_done_callback(functools.partial(_answered, sending))


@guarded("AIOProducer.answered")
def _answered(sending: Sending, future: asyncio.Future[Any]) -> None:
    if future.cancelled():
        sending.forgotten()
        return
    failure = failure_of(future)
    if failure is None:
        sending(None, future.result())
    else:
        sending.raised(failure)


def _traced_purge(original: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """``purge``: what is dropped meanwhile was purged."""

    @functools.wraps(original)
    async def purge(self: Any, *args: Any, **kwargs: Any) -> Any:
        state: ProducerState | None = known_state(getattr(self, "_producer", None))
        if state is None:
            return await original(self, *args, **kwargs)
        before, state.dropping = state.dropping, _PURGED
        try:
            return await original(self, *args, **kwargs)
        finally:
            state.dropping = before
            drain_deferred_ends()  # what was purged left its span there

    return purge


AIO_PRODUCER_METHODS: Final[Wrappers] = {"produce": _traced_produce, "purge": _traced_purge}
"""Method → how to wrap it, for ``confluent_kafka.aio.AIOProducer``; its subclasses send through it."""


# -- consumers ------------------------------------------------------------------------------------------------------
# A message belongs to the task that received it until that task polls again or ends. The client polls in a pool
# thread; the span opens, and is current, in the coroutine that awaited the message, and the inner consumer records
# nothing. Where the poll is another task (create_task, gather; wait_for before Python 3.12) the span cannot become
# current in the awaiting task, and ends with the next poll of any task.
_polling: Final[ContextVar[object]] = ContextVar("mqtrace-polling", default=None)
"""The state whose poll is under way in this task: a subclass's poll awaits its parent's."""


class AioState(AnyConsumerState):
    """The state of an asyncio consumer, about the same as that of the one it wraps, which records nothing any more."""

    def __init__(self, consumer: Any) -> None:
        inner: AnyConsumerState | None = known_state(getattr(consumer, "_consumer", None))
        info = ClientInfo.of_kafka({}, group_name=None) if inner is None else inner.info
        super().__init__(info, registry, TaskDeliveries())
        if inner is not None:
            inner.silent, self.leaders = True, inner.leaders


@guarded("AIOConsumer.poll")
def _begin(consumer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], *, batch: bool) -> Observe | None:
    state = state_at_poll(consumer, AioState)
    if state is None or _polling.get() is state:
        return None
    state.next_turn()
    start_ns = state.hook.poll_begins()
    _polling.set(state)
    return functools.partial(_polled, state, start_ns=start_ns, batch=batch)


def _polled(state: AioState, result: Any, raised: Any, *, start_ns: int | None, batch: bool) -> None:
    """Hand over what was returned: what is set in an awaited coroutine stays set in the task that awaits it."""
    _polling.set(None)  # not by a token: a coroutine may be closed in another context
    if state.tracing is not active.tracing:  # switched off while it waited
        return
    if raised is not None:
        refused(state, raised, start_ns=start_ns, batch=batch)
    elif result is not None or start_ns is not None:
        returned(state, result, start_ns=start_ns, batch=batch)


_traced_poll: Final = observe_calls(functools.partial(_begin, batch=False), is_async=True)
_traced_consume: Final = observe_calls(functools.partial(_begin, batch=True), is_async=True)


def _traced_settlement(operation: str) -> Wrapper:
    state_of = functools.partial(active.state_of, kind=AioState)
    return traced_settlement(operation, offsets_of_call, state_of=state_of, is_async=True)


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
