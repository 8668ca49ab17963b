"""This module knows aiokafka's batches: messages appended before their topic is known, sent as one.

The records of a batch are encoded when they are appended, and only ``send_batch`` says which topic they are for: trace
headers, which depend on it, come too late. So the setting ``headerless_sends`` decides, as for every send of that kind:
``correlate`` records one span for each message and leaves the bytes alone (their offsets count up from the one the
broker answers with), ``send_each`` sends the messages one by one, with headers, and ``leave`` does nothing.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder

from otel_mqtrace import semconv
from otel_mqtrace.clients.aiokafka.answers import abandoned, answered, refused
from otel_mqtrace.clients.aiokafka.live import live, state_of
from otel_mqtrace.clients.aiokafka.messages import pairs_for_client
from otel_mqtrace.clients.aiokafka.producer import ProducerState
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._headers import header_text, indexed
from otel_mqtrace.hooks._left_behind import leave
from otel_mqtrace.hooks.send import UNKNOWN_BODY, SendCall, SendHook

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from otel_mqtrace.hooks.transaction import TransactionHook

__all__ = ["traced_create_batch", "traced_send_batch"]

_LEAVE: Final = "leave"
_SEND_EACH: Final = "send_each"


class _Appended(NamedTuple):
    key: Any
    value: Any
    timestamp_ms: int | None
    headers: Any
    body_length: int


class _WatchedBatch(BatchBuilder):  # type: ignore[misc]  # the client is untyped
    """A batch that remembers what was appended to it until it is sent; one that could not be may be tried again.

    ``unsent`` is what was appended and not sent yet, ``answers`` are the futures of what was sent alone.
    """

    unsent: list[_Appended]
    answers: list[Future[Any]]
    _is_sealed: bool
    _body_length: int

    def watch(self) -> None:
        """Begin to remember; the client's own constructor has run already."""
        self.unsent, self.answers, self._is_sealed = [], [], False

    def _serialize(self, key: Any, value: Any) -> tuple[Any, Any]:
        serialized: tuple[Any, Any] = super()._serialize(key, value)
        self._body_length = len(serialized[1]) if serialized[1] is not None else 0
        return serialized

    def append(self, *, timestamp: int | None, key: Any, value: Any, **more: Any) -> Any:
        """Append as the client does; a message that the batch took (the answer is not ``None``) is remembered."""
        taken = super().append(timestamp=timestamp, key=key, value=value, **more)
        if taken is not None and not self._is_sealed:
            self.unsent.append(_Appended(key, value, timestamp, more.get("headers"), self._body_length))
        return taken

    def seal(self) -> None:
        """The batch is sent. One that is not closed the client itself may add to: those are sends of their own."""
        self.unsent, self._is_sealed = [], True


class _SendingBatch:
    """The messages of one batch between ``send_batch`` and the broker's answer; each has its own span."""

    __slots__ = ("_calls", "_hook", "_state", "future")

    future: Future[Any]

    def __init__(self, state: ProducerState, hook: SendHook, calls: list[tuple[int, int, SendCall]]) -> None:
        self._state = state
        self._hook = hook
        self._calls = calls

    @guarded("send_batch.raised")
    def raised(self, exception: BaseException) -> None:
        """The call itself failed: nothing was sent."""
        for _, body_length, call in self._calls:
            self._hook.after(call, body_length=body_length, **refused(exception))

    @guarded("send_batch.returned")
    def returned(self, future: Future[Any], transaction: TransactionHook | None) -> None:
        """The batch waits for its turn, and ``future`` will bring the answer."""
        if transaction is not None:
            for _, _, call in self._calls:
                transaction.joined(call)
        self.future = future
        self._state.in_flight[id(self)] = self
        future.add_done_callback(self.answered)

    @guarded("send_batch.answered")
    def answered(self, future: Future[Any]) -> None:
        """The future is done."""
        self._state.in_flight.pop(id(self), None)
        for index, body_length, call in self._calls:
            self._hook.after(call, body_length=body_length, **answered(future, self._state.cluster, index=index))

    @guarded("send_batch.leave")
    def leave(self) -> None:
        """Nobody will tell any more."""
        done = self.future.done()
        for index, body_length, call in self._calls:
            ended = answered(self.future, self._state.cluster, index=index) if done else abandoned()
            leave(self._hook, call, body_length=body_length, **ended)


def traced_create_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``create_batch``."""

    @functools.wraps(original)
    def create_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(self, *args, **kwargs)
        if live.tracing is not None and live.tracing.settings.headerless_sends != _LEAVE:
            _watch(batch)
        return batch

    return create_batch


@guarded("create_batch")
def _watch(batch: Any) -> None:
    if type(batch) is BatchBuilder:
        batch.__class__ = _WatchedBatch
        batch.watch()


def traced_send_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``send_batch``."""

    @functools.wraps(original)
    async def send_batch(self: Any, batch: Any, topic: Any, *args: Any, **kwargs: Any) -> Any:
        tracing = live.tracing
        if tracing is None or not isinstance(batch, _WatchedBatch) or not isinstance(topic, str):
            return await original(self, batch, topic, *args, **kwargs)
        if tracing.settings.headerless_sends == _SEND_EACH and tracing.traces(topic) and batch.unsent:
            return await _send_each(self, batch, topic, *args, **kwargs)
        sending, transaction = _prepare(self, batch, topic, kwargs.get("partition")) or (None, None)
        try:
            future = await original(self, batch, topic, *args, **kwargs)
        except BaseException as exception:
            if sending is not None:
                sending.raised(exception)
            raise
        batch.seal()
        if sending is not None:
            sending.returned(future, transaction)
        return future

    return send_batch


@guarded("send_batch.before")
def _prepare(
    producer: Any, batch: _WatchedBatch, topic: str, partition: object
) -> tuple[_SendingBatch | None, TransactionHook | None] | None:
    """Open the span of each message in the batch."""
    tracing = live.tracing
    if tracing is None:
        return None
    state: ProducerState = state_of(producer, ProducerState)
    hook = state.bind(tracing)
    transaction = state.transaction_of(tracing)
    calls = []
    for index, each in enumerate(batch.unsent):
        found = indexed(pairs_for_client(each.headers) or ())
        keys = header_text(found, semconv.HEADER_KEYS)
        call = hook.before(
            topic,
            body=None if each.value is None else UNKNOWN_BODY,
            key=each.key,
            partition=partition if isinstance(partition, int) else None,
            transaction_id=None if transaction is None else transaction.transaction_id,
            msg_id=header_text(found, semconv.HEADER_UNIQ_KEY),
            tags=header_text(found, semconv.HEADER_TAGS),
            keys=None if keys is None else keys.split(),
            carries_headers=False,
        )
        if call is not None and call.recorded:
            calls.append((index, each.body_length, call))
    return (_SendingBatch(state, hook, calls), transaction) if calls else None


async def _send_each(producer: Any, batch: _WatchedBatch, topic: str, *, partition: int) -> Future[Any]:
    """Send the messages one by one; the future is that of the first, and fails when any of them does.

    After a call that raised, the next one goes on with what is left.
    """
    batch.close()
    while batch.unsent:
        each = batch.unsent[0]
        headers = each.headers or None
        batch.answers.append(
            await AIOKafkaProducer.send(producer, topic, each.value, each.key, partition, each.timestamp_ms, headers)
        )
        del batch.unsent[0]
    batch.seal()
    return asyncio.ensure_future(_first_of(batch.answers))


async def _first_of(answers: list[Future[Any]]) -> Any:
    return (await asyncio.shield(asyncio.gather(*answers)))[0]
