"""aiokafka's batches: messages appended before their topic is known, sent as one.

The records of a batch are encoded when they are appended, and only ``send_batch`` names their topic: trace headers,
which depend on it, come too late. So the setting ``headerless_sends`` decides, as for every send of that kind:
``correlate`` records one span for each message and leaves the bytes alone (their offsets count up from the one the
broker responds with), ``send_each`` sends the messages one by one, with headers, and ``leave`` does nothing.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer
from aiokafka.producer.message_accumulator import BatchBuilder

from otel_mqtrace import semconv
from otel_mqtrace.clients.aiokafka.client import active, header_pairs, state_of
from otel_mqtrace.clients.aiokafka.producer import ProducerState, Sending
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.propagation import header_text, index_headers
from otel_mqtrace.hooks.send import UNKNOWN_BODY

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from otel_mqtrace.hooks.transaction import TransactionHook

_LEAVE: Final = "leave"
_SEND_EACH: Final = "send_each"
_APPENDED: Final = "_mqtrace_appended"
"""The attribute of a batch that holds what was appended to it."""


class _Message(NamedTuple):
    key: Any
    value: Any
    timestamp_ms: int | None
    headers: Any
    body_length: int


class _Appended:
    """What was appended to one batch and not sent yet; a batch that could not be sent may be tried again.

    Set on the batch, it takes the place of the two methods that see a message. ``responses`` are the futures of what
    was sent alone.
    """

    def __init__(self, batch: BatchBuilder) -> None:
        self.unsent: list[_Message] = []
        self.responses: list[Future[Any]] = []
        self._is_sealed = False
        self._body_length = 0
        self._serialize, self._append = batch._serialize, batch.append  # noqa: SLF001 - where the body's size is known
        batch._serialize, batch.append = self.serialize, self.append  # noqa: SLF001
        setattr(batch, _APPENDED, self)

    def serialize(self, key: Any, value: Any) -> tuple[Any, Any]:
        serialized: tuple[Any, Any] = self._serialize(key, value)
        self._body_length = len(serialized[1]) if serialized[1] is not None else 0
        return serialized

    def append(self, *, timestamp: int | None, key: Any, value: Any, **more: Any) -> Any:
        """Append as the client does; a message that the batch took (the result is not ``None``) is remembered."""
        taken = self._append(timestamp=timestamp, key=key, value=value, **more)
        if taken is not None and not self._is_sealed:
            self.unsent.append(_Message(key, value, timestamp, more.get("headers"), self._body_length))
        return taken

    def seal(self) -> None:
        """The batch is sent. One that is not closed the client itself may add to: those are sends of their own."""
        self.unsent, self._is_sealed = [], True


def traced_create_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``create_batch``."""

    @functools.wraps(original)
    def create_batch(self: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(self, *args, **kwargs)
        if active.tracing is not None and active.tracing.settings.headerless_sends != _LEAVE:
            _watch(batch)
        return batch

    return create_batch


@guarded("create_batch")
def _watch(batch: Any) -> None:
    if type(batch) is BatchBuilder:
        _Appended(batch)


def traced_send_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``send_batch``."""

    @functools.wraps(original)
    async def send_batch(self: Any, batch: Any, topic: Any, *args: Any, **kwargs: Any) -> Any:
        tracing = active.tracing
        appended: _Appended | None = getattr(batch, _APPENDED, None)
        if tracing is None or appended is None or not isinstance(topic, str):
            return await original(self, batch, topic, *args, **kwargs)
        if tracing.settings.headerless_sends == _SEND_EACH and tracing.is_traced(topic) and appended.unsent:
            batch.close()
            return await _send_each(self, appended, topic, *args, **kwargs)
        sendings, transaction = _prepare(self, appended, topic, kwargs.get("partition")) or ([], None)
        try:
            future = await original(self, batch, topic, *args, **kwargs)
        except BaseException as exception:
            for sending in sendings:
                sending.raised(exception)
            raise
        appended.seal()
        for sending in sendings:
            sending.returned(future, transaction)
        return future

    return send_batch


@guarded("send_batch.before")
def _prepare(
    producer: Any, appended: _Appended, topic: str, partition: object
) -> tuple[list[Sending], TransactionHook | None] | None:
    """Open the span of each message in the batch."""
    tracing = active.tracing
    if tracing is None:
        return None
    state: ProducerState = state_of(producer, ProducerState)
    hook = state.bind(tracing)
    transaction = state.transaction_of(tracing)
    sendings = []
    for index, each in enumerate(appended.unsent):
        headers = index_headers(header_pairs(each.headers) or ())
        keys = header_text(headers, semconv.HEADER_KEYS)
        call = hook.before(
            topic,
            body=None if each.value is None else UNKNOWN_BODY,
            key=each.key,
            partition=partition if isinstance(partition, int) else None,
            transaction_id=None if transaction is None else transaction.transaction_id,
            msg_id=header_text(headers, semconv.HEADER_UNIQ_KEY),
            tags=header_text(headers, semconv.HEADER_TAGS),
            keys=None if keys is None else keys.split(),
            carries_headers=False,
        )
        if call is not None and call.is_recorded:
            sendings.append(Sending(state, hook, call, body_length=each.body_length, index=index))
    return sendings, transaction


async def _send_each(producer: Any, appended: _Appended, topic: str, *, partition: int) -> Future[Any]:
    """Send the messages one by one; the future is that of the first, and fails when any of them does."""
    while appended.unsent:
        each = appended.unsent[0]
        headers = each.headers or None
        appended.responses.append(
            await AIOKafkaProducer.send(producer, topic, each.value, each.key, partition, each.timestamp_ms, headers)
        )
        del appended.unsent[0]
    appended.seal()
    return asyncio.ensure_future(_first_of(appended.responses))


async def _first_of(responses: list[Future[Any]]) -> Any:
    return (await asyncio.shield(asyncio.gather(*responses)))[0]
