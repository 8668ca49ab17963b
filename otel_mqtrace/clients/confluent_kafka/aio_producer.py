"""Sends through an asyncio producer, and the messages in its own buffer.

``AIOProducer`` gathers messages and sends them with ``produce_batch`` of a plain producer, in a pool thread. So the
span opens in the coroutine that sends, travels with the message (:class:`CarriedPartition`), and ends with the delivery
report, whether or not the application awaits the future. Nothing of the coroutine's context stays in the pool.
"""

from __future__ import annotations

import asyncio
import functools
import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.batches import CarriedPartition
from otel_mqtrace.clients.confluent_kafka.client import active, state_of
from otel_mqtrace.clients.confluent_kafka.sending import ProducerState, Sending
from otel_mqtrace.clients.state import known_state
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import drain_deferred_ends

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from otel_mqtrace.clients.patching import Wrappers


_ORDER: Final = ("topic", "value", "key")
_UNASSIGNED: Final = -1
_PURGED: Final = ("_PURGE_QUEUE", "Local: Purged in queue")
"""librdkafka's error for a message that ``purge`` found in its own queue."""


def _traced_produce(original: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """``produce``: queued when its coroutine is done, delivered when the future it returns is."""

    @functools.wraps(original)
    async def produce(self: Any, *args: Any, **kwargs: Any) -> Any:
        tracing = active.tracing
        if tracing is None or tracing.settings.headerless_sends == "leave":
            return await original(self, *args, **kwargs)
        sending = _open(self, args, kwargs)
        if sending is None:
            return await original(self, *args, **kwargs)
        carried = _carried(self, sending, kwargs)
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
    given = {**dict(zip(_ORDER, args, strict=False)), **kwargs}
    topic = given.get("topic")
    if tracing is None or not isinstance(topic, str):
        return None
    inner: ProducerState | None = known_state(getattr(producer, "_producer", None))
    if inner is not None:
        inner.behind_asyncio = True
    state: ProducerState | None = inner or state_of(producer, ProducerState)
    if state is None:
        return None
    hook = state.bind(tracing)
    partition = given.get("partition")
    call = hook.before(
        topic,
        body=given.get("value"),
        key=given.get("key"),
        partition=partition if isinstance(partition, int) else None,
        transaction_id=state.transaction_id,
        carries_headers=inner is not None and tracing.settings.headerless_sends == "send_each",
    )
    if call is None or not (call.is_recorded or call.headers is not None):
        return None
    if state.leaders is not None:
        state.leaders.want(topic)
    sending = state.sending(state, hook, call, None)
    sending.await_answer()
    return sending


def _carried(producer: Any, sending: Sending, kwargs: Mapping[str, Any]) -> CarriedPartition | None:
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
    # Asking the future for its exception would count as the application's having seen it.
    exception = getattr(future, "_exception", None)
    if exception is None:
        sending(None, future.result())
    else:
        sending.raised(exception)


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


AIO_PRODUCER_METHODS: Final[Wrappers] = {
    "produce": _traced_produce,
    "purge": _traced_purge,
}
"""Method → how to wrap it, for ``confluent_kafka.aio.AIOProducer``; its subclasses send through it."""
