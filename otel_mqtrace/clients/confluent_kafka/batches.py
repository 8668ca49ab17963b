"""Trace ``produce_batch``, whose messages cannot carry headers.

Each message is a send, ended by its delivery report, whose physical id the consumer sees too. As in the C code, of a
message only its ``callback`` counts, a refused one gets an ``_error`` and no call, and a full queue refuses the rest of
the batch unseen.
"""

from __future__ import annotations

import functools
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace._errors import is_from_signal_handler
from otel_mqtrace.clients.confluent_kafka.client import active
from otel_mqtrace.clients.confluent_kafka.sending import ProducerState, Sending
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.scope import BlockScope

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.send import SendCall, SendHook


_ORDER: Final = ("topic", "messages", "partition", "callback", "on_delivery")
_ERROR: Final = "_error"


class CarriedPartition(int):
    """A partition number on its way through an asyncio producer's buffer, with the message's :class:`Sending`.

    The buffer passes only the number on untouched, whatever the body. When it drops the message, this object goes last.
    """

    sending: Sending
    is_taken: bool

    def __new__(cls, partition: int, sending: Sending) -> CarriedPartition:  # noqa: PYI034 - Self is of Python 3.11
        """Carry ``sending`` along with ``partition``."""
        carried = super().__new__(cls, partition)
        carried.sending = sending
        carried.is_taken = False
        return carried

    @property
    def is_over(self) -> bool:
        """Whether the span ended in the buffer, when tracing was switched off."""
        return not (self.is_taken or self.sending.call.is_open)

    def take(self) -> bool:
        """Take the message out of the buffer; ``False`` when an earlier attempt has ended its span."""
        self.is_taken = True
        return self.sending.call.is_open

    def __del__(self) -> None:
        """No message holds the number any more: one that was never sent never will be."""
        if not self.is_taken:
            self.sending.dropped()


@dataclass(slots=True)
class _Item:
    """One message as the caller gave it, its span if it has one, and what the client is to call for it."""

    given: dict[str, Any]
    sending: Sending | None = None
    callback: Any = None


class _Batch(NamedTuple):
    """What the messages of one call have in common; ``callback`` is for those without one."""

    state: ProducerState
    hook: SendHook
    topic: str
    partition: Any
    callback: Any


def traced_batch(original: Callable[..., Any]) -> Callable[..., Any] | None:
    """``produce_batch`` of the C code; ``None`` for a subclass's own, which may send other messages."""
    if not isinstance(original, MethodDescriptorType):
        return None

    @functools.wraps(original)
    def produce_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        items = _open_all(self, args, kwargs)
        return _send(items, original, (self, *args), kwargs) if items else original(self, *args, **kwargs)

    return produce_batch


@guarded("produce_batch.plan")
def _open_all(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[_Item] | None:
    """Open a span for each message, before any is sent; ``None`` leaves the call to the client."""
    tracing = active.tracing
    if tracing is None or tracing.settings.headerless_sends == "leave":
        return None
    given = _read(args, kwargs)
    state = active.state_of(producer, ProducerState)
    if state is None or given is None or not tracing.is_traced(given["topic"]):
        return None
    if state.leaders is not None:
        state.leaders.want(given["topic"])
    # An explicit callback=None hides on_delivery in the C code (it tests for NULL, not for None): so do we.
    callback = given["callback"] if "callback" in given else given.get("on_delivery")
    batch = _Batch(state, state.hook, given["topic"], given.get("partition", -1), callback)
    messages = given["messages"]
    items = [_open(batch, message) for message in messages]
    return [item or _Item(message) for item, message in zip(items, messages, strict=True)] if any(items) else None


@guarded("produce_batch.read")
def _read(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments by name; ``None`` for a call that sends nothing, or that the client will refuse."""
    given = {**dict(zip(_ORDER, args, strict=False)), **kwargs}
    topic, messages = given.get("topic"), given.get("messages")
    if not isinstance(topic, str) or not isinstance(messages, list) or not given.keys() <= set(_ORDER):
        return None
    return given if messages and all(isinstance(each, dict) for each in messages) else None


@guarded("produce_batch.open")
def _open(batch: _Batch, message: dict[str, Any]) -> _Item | None:
    """Open the span of one message, or take over the one it brings along; ``None`` when it needs none."""
    state = batch.state
    user, carried = message.get("callback"), message.get("partition")
    is_over = carried.is_over if isinstance(carried, CarriedPartition) else state.behind_asyncio
    if is_over:
        return None
    given_callback = batch.callback if user is None else user
    callback = state.default_callback if given_callback is None else given_callback
    if isinstance(carried, CarriedPartition) and carried.take():
        sending = carried.sending
        sending.user = callback
    else:
        call = _before(batch, message)
        if call is None or not (call.is_recorded or (callback is not None and call.current_ctx)):
            return None
        sending = state.sending(state, batch.hook, call, callback)
    if (given_callback is None and not state.default_is_known) or (callback is None and not sending.call.is_recorded):
        return _Item(message, sending, given_callback)
    sending.await_answer()
    return _Item(message, sending, sending)


def _before(batch: _Batch, message: dict[str, Any]) -> SendCall | None:
    """Call the hook; for a message that was refused before, in the context of its first attempt."""
    carried = message.get("partition")
    first_ctx = carried.sending.call.current_ctx if isinstance(carried, CarriedPartition) else None
    with nullcontext() if first_ctx is None else BlockScope(first_ctx):
        return batch.hook.before(
            batch.topic,
            body=message.get("value"),
            key=message.get("key"),
            partition=batch.partition if isinstance(batch.partition, int) else None,
            transaction_id=batch.state.transaction.transaction_id,
            carries_headers=False,
        )


def _send(items: list[_Item], original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    messages = [_message_to_send(item) for item in items]
    if len(args) > 2:  # noqa: PLR2004 - producer, topic and messages by position
        args = (*args[:2], messages, *args[3:])
    else:
        kwargs = {**kwargs, "messages": messages}
    try:
        queued = original(*args, **kwargs)
    except:  # a KafkaError can be raised, but is not a BaseException
        failure = sys.exc_info()[1]
        if is_from_signal_handler():  # the handler runs once the batch is queued
            _settle(items, messages)
            raise
        for item in items:
            if item.sending is not None:
                item.sending.raised(failure)
        raise
    _settle(items, messages)
    return queued


def _settle(items: list[_Item], sent: list[dict[str, Any]]) -> None:
    for item, message in zip(items, sent, strict=True):
        error = message.get(_ERROR)
        if item.sending is None:  # the message is the caller's own dict
            continue
        if error is None:
            item.sending.returned()
        else:
            dict.__setitem__(item.given, _ERROR, error)
            item.sending.raised(error)


def _message_to_send(item: _Item) -> dict[str, Any]:
    """Return the dict to send: the caller's own, or one like it without the ``_error`` of an earlier attempt."""
    if item.sending is None:
        return item.given
    sent = dict.copy(item.given)  # as the client's C code reads it, whatever a subclass makes of it
    sent.pop(_ERROR, None)
    sent["callback"] = item.callback
    return sent
