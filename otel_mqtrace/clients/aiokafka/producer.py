"""Sends, batches and transactions of an aiokafka producer: the call, its failure, the response that its future brings.

A send is over when its future is: with the broker's response or with an error. Where the application stops waiting, the
client still sends the message, and the response to its batch is waited for.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from asyncio import CancelledError
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokafka.errors import MessageSizeTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder

from otel_mqtrace import semconv
from otel_mqtrace.clients.aiokafka.client import (
    Cluster,
    active,
    describe_failure,
    header_pairs,
    info_of,
    settled_offsets,
)
from otel_mqtrace.clients.patching import call_after, call_finally, observe_calls
from otel_mqtrace.clients.settlement import find_creation_context, record_settlement, transaction_wrappers
from otel_mqtrace.clients.state import KafkaProducerState, known_state, take_all
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import defer_end, drain_deferred_ends, failure_of
from otel_mqtrace.hooks.propagation import index_headers
from otel_mqtrace.hooks.send import UNKNOWN_BODY, SendCall, SendHook
from otel_mqtrace.hooks.settle import SettleHook
from otel_mqtrace.records.message import header_text
from otel_mqtrace.records.sent import Sent

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable

    from otel_mqtrace.clients.patching import Observe
    from otel_mqtrace.records.message import Header


_SEND_ORDER: Final = ("topic", "value", "key", "partition", "timestamp_ms", "headers")
"""The positional parameters of ``AIOKafkaProducer.send``."""
Outcome = dict[str, Any]
"""Arguments of ``SendHook.after``."""
_NOT_AWAITED: Final[Outcome] = {"outcome": semconv.SEND_NOT_AWAITED}
_ABANDONED: Final[Outcome] = {
    "error": semconv.SEND_ABANDONED,
    "description": "the producer was stopped or collected before the broker answered",
    "outcome": semconv.SEND_ABANDONED,
}
_CANCELLED: Final = "the application stopped waiting for the broker's answer; the message may be stored"


def _outcome_of(future: Future[Any], cluster: Cluster, index: int) -> Outcome:
    """Return the outcome of the ``index``-th message that ``future``, which is done, stands for."""
    failure = failure_of(future)
    if isinstance(failure, CancelledError):
        return {
            **describe_failure(failure),
            "description": _CANCELLED,
            "exception": None,
            "outcome": semconv.SEND_NOT_AWAITED,
        }
    if failure is not None:
        return describe_failure(failure)
    metadata = future.result()
    if metadata is None:  # acks=0: the broker never responds
        return _NOT_AWAITED
    return {
        "partition": metadata.partition,
        "offset": metadata.offset + index if metadata.offset >= 0 else None,
        "store_host": cluster.of(metadata.topic, metadata.partition),
        "cluster_id": cluster.cluster_id,
    }


class ProducerState(KafkaProducerState):
    """What one producer needs to be traced."""

    def __init__(self, producer: Any) -> None:
        super().__init__(info_of(producer.client, group_name=None))
        self.cluster = Cluster(producer.client.cluster)
        self.calling: dict[int, Sending] = {}
        """Sends whose call has not returned: it waits for metadata, or for room in the buffer."""
        self.in_flight: dict[int, Sending] = {}
        accumulator = getattr(producer, "_message_accumulator", None)
        self._accumulator = None if accumulator is None else weakref.ref(accumulator)

    @guarded("ProducerState.batch_of")
    def batch_of(self, future: Future[Any]) -> tuple[Future[Any], int] | None:
        """Return the future of the batch that a message is in, and its place there, while that is on its way.

        Only for a message whose own future was cancelled: the client still sends it.
        """
        accumulator: Any = None if self._accumulator is None else self._accumulator()
        if accumulator is None:
            return None
        waiting = itertools.chain.from_iterable(accumulator._batches.values())  # noqa: SLF001 - no public way leads here
        for batch in itertools.chain(accumulator._pending_batches, waiting):  # noqa: SLF001
            for each, metadata in batch._msg_futures:  # noqa: SLF001
                if each is future:
                    return batch.future, metadata.offset
        return None

    @guarded("ProducerState.abandon")
    def abandon(self) -> None:
        """Defer the end, by name, of every span that can no longer get a response; the finaliser of the producer."""
        self._end_open(_ABANDONED)

    @guarded("ProducerState.switch_off")
    def switch_off(self) -> None:
        """Defer the end of every span that is open: the exporters will be gone when its response comes."""
        for sending in list(self.calling.values()):
            sending.leave(_NOT_AWAITED)
        self._end_open(_NOT_AWAITED)

    def _end_open(self, outcome: Outcome) -> None:
        for sending in take_all(self.in_flight):
            sending.leave(outcome)


class Sending:
    """One message between ``send`` or ``send_batch`` and its response; ``index`` is its place in the batch.

    ``opened`` is its call or, of a recorded message, the record: one that does not simply succeed gets a span.
    """

    __slots__ = ("_body_length", "_hook", "_index", "_opened", "_state", "future")

    def __init__(
        self,
        state: ProducerState,
        hook: SendHook,
        opened: SendCall | Sent,
        *,
        body_length: int | None = None,
        index: int = 0,
    ) -> None:
        self._state = state
        self._hook = hook
        self._opened = opened
        self._body_length = body_length
        self._index = index
        self.future: Future[Any] | None = None
        state.calling[id(self)] = self

    @property
    def _call(self) -> SendCall:
        if isinstance(self._opened, Sent):
            self._opened = self._hook.reopen(self._opened)
        return self._opened

    @guarded("send.serialized")
    def serialized(self, value: object) -> None:
        """The serialiser has made the body."""
        self._body_length = len(value) if isinstance(value, (bytes, bytearray, memoryview)) else None

    @guarded("send.headers")
    def withdraw_headers(self, headers: Any) -> None:
        """The client takes the message with the caller's own ``headers`` alone."""
        self._hook.withdraw_headers(self._call, header_pairs(headers))

    @guarded("send.raised")
    def raised(self, exception: BaseException) -> None:
        """The call itself failed: nothing was sent."""
        self._state.calling.pop(id(self), None)
        self._end(self._hook.after, describe_failure(exception))

    @guarded("send.returned")
    def returned(self, future: Future[Any]) -> None:
        """The message is in the client's buffer, and ``future`` will bring the response."""
        self._state.calling.pop(id(self), None)
        call = self._opened
        if isinstance(call, SendCall) and call.transaction_id is not None:
            self._state.transaction.joined(call)
        self._await(future)

    def _await(self, future: Future[Any]) -> None:
        self.future = future
        self._state.in_flight[id(self)] = self
        future.add_done_callback(self.answered)

    @guarded("send.answered")
    def answered(self, future: Future[Any]) -> None:
        """The future is done; if it was cancelled, the future of the batch has the outcome."""
        if self._state.in_flight.pop(id(self), None) is None:
            return  # stop() came before the loop called us
        if isinstance(self._opened, Sent):
            metadata = None if failure_of(future) is not None else future.result()
            if metadata is not None and metadata.offset >= 0:
                self._state.cluster.of(metadata.topic, metadata.partition)  # as of now: the client may be gone later
                self._hook.end_record(self._opened, metadata.partition, metadata.offset)
                return
            self._opened = self._hook.reopen(self._opened)
        batch = self._state.batch_of(future) if future.cancelled() else None
        if batch is not None:
            self._index = batch[1]
            self._await(batch[0])
            return
        self._end(self._hook.after, _outcome_of(future, self._state.cluster, self._index))

    @guarded("send.leave")
    def leave(self, unanswered: Outcome) -> None:
        """No response will come any more; without one the outcome is ``unanswered``."""
        if not self._call.is_open:
            return
        future, index, outcome = self.future, self._index, unanswered
        if future is not None and future.cancelled():
            future, index = self._state.batch_of(future) or (future, index)
        if future is not None and future.done():
            outcome = _outcome_of(future, self._state.cluster, index)
        self._end(functools.partial(defer_end, self._hook), outcome)

    def _end(self, end: Callable[..., object], outcome: Outcome) -> None:
        end(self._call, **{"body_length": self._body_length, **outcome})


_Call = tuple["Sending | None", tuple[Any, ...], dict[str, Any]]
"""What follows a send, if it is recorded, and the arguments to call the client with."""
_serializing: Final[ContextVar[Sending | None]] = ContextVar("mqtrace-serializing", default=None)
"""The send of this task whose body a serialiser is about to make."""


@guarded("send.before")
def _prepare(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call | None:
    """Record one ``send``, or open its span, and return the arguments to call it with."""
    given = {**dict(zip(_SEND_ORDER, args)), **kwargs} if args else kwargs  # noqa: B905 - this is every send's
    topic, value, key, headers = given.get("topic"), given.get("value"), given.get("key"), given.get("headers")
    state = active.state_of(producer, ProducerState) if isinstance(topic, str) else None
    if state is None or not isinstance(topic, str):
        return None
    hook, transaction_id = state.hook, state.transaction.transaction_id
    chosen = given["partition"] if isinstance(given.get("partition"), int) else None
    pairs = header_pairs(headers)
    is_named = len(args) + len(kwargs) == len(given)  # else the client refuses it
    if is_named and pairs is not None and transaction_id is None and _is_ordinary(producer, topic, value, key, headers):
        recorded = hook.record(topic, value, key, pairs, state.cluster, chosen)
        if recorded is not None:
            sent, written = recorded
            sending = None if sent is None else Sending(state, hook, sent)
            return sending, (), _with_headers(given, written)
    call = hook.before(
        topic,
        body=value if value is None or _serializer_of(producer) is None else UNKNOWN_BODY,
        key=key,
        headers=pairs,
        partition=chosen,
        transaction_id=transaction_id,
        carries_headers=pairs is not None,
    )
    if call is None:
        return None
    sending = Sending(state, hook, call) if call.is_recorded else None
    if call.headers is None or not is_named:
        return sending, args, kwargs
    return sending, (), _with_headers(given, call.headers)


def _with_headers(given: dict[str, Any], headers: list[Header]) -> dict[str, Any]:
    # A tuple stays one: whether the client refuses it is the client's business. An empty one is a list to it.
    is_tuple = given.get("headers") and isinstance(given["headers"], tuple)
    return {**given, "headers": tuple(headers) if is_tuple else headers}


def _is_ordinary(producer: Any, topic: object, value: object, key: object, headers: object) -> bool:
    is_text = type(topic) is str and (key is None or type(key) in {bytes, str})
    is_raw = _serializer_of(producer) is None and (value is None or type(value) is bytes)
    return is_text and is_raw and (headers is None or type(headers) in {list, tuple})


def _serializer_of(producer: Any) -> Any:
    return getattr(producer, "_value_serializer", None)


def traced_send(original: Callable[..., Any]) -> Callable[..., Any]:
    """``send``; ``send_and_wait`` calls it."""

    @functools.wraps(original)
    async def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = _prepare(self, args, kwargs)
        if prepared is None:
            return await original(self, *args, **kwargs)
        sending = prepared[0]
        token = None if sending is None or _serializer_of(self) is None else _serializing.set(sending)
        try:
            future = await _send(original, self, prepared, args, kwargs)
        except BaseException as exception:
            if sending is not None:
                sending.raised(exception)
            raise
        finally:
            if token is not None:
                _serializing.reset(token)
        if sending is not None:
            sending.returned(future)
        return future

    return send


async def _send(
    original: Callable[..., Any], producer: Any, prepared: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Send as ``prepared`` or, where our headers alone make the message too large, as the caller gave it."""
    sending, own_args, own_kwargs = prepared
    try:
        return await original(producer, *own_args, **own_kwargs)
    except MessageSizeTooLargeError:
        if own_args is args and own_kwargs is kwargs:
            raise
    if sending is not None:
        sending.withdraw_headers({**dict(zip(_SEND_ORDER, args, strict=False)), **kwargs}.get("headers"))
    return await original(producer, *args, **kwargs)


def traced_serialize(original: Callable[..., Any]) -> Callable[..., Any]:
    """The client's own step that calls the serialisers: nowhere else can the size of the body be seen."""

    @functools.wraps(original)
    def _serialize(self: Any, *args: Any, **kwargs: Any) -> Any:
        serialized = original(self, *args, **kwargs)
        sending = _serializing.get()
        if sending is not None:
            sending.serialized(serialized[1])
        return serialized

    return _serialize


def _stopped(producer: Any) -> None:
    """What has no response when ``stop`` is over will get none."""
    state: ProducerState | None = known_state(producer)
    if state is not None:
        state.abandon()
    drain_deferred_ends()


traced_stop: Final = call_finally(_stopped, is_async=True)


# -- transactions --------------------------------------------------------------------------------------------------
@guarded("send_offsets_to_transaction.before")
def _send_offsets(producer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Observe | None:
    given = {**dict(zip(("offsets", "group_id"), args, strict=False)), **kwargs}
    state = active.state_of(producer, ProducerState)
    if state is None or not isinstance(given.get("group_id"), str):
        return None
    info = replace(state.info, group_name=given["group_id"])
    hook = SettleHook(tracing=state.tracing, info=info)
    call = hook.before("send_offsets")
    if call is None:
        return None
    find_creation = functools.partial(find_creation_context, server=info.server, group_name=info.group_name)
    settled = settled_offsets(given["offsets"], find_creation)
    return functools.partial(record_settlement, hook, call, settled, describe_failure)


traced_send_offsets: Final = observe_calls(_send_offsets, is_async=True)
TRANSACTION_METHODS: Final = transaction_wrappers(active, ProducerState, is_async=True)


# -- batches -------------------------------------------------------------------------------------------------------
# The records of a batch are encoded when they are appended, and only ``send_batch`` names their topic: trace headers,
# which depend on it, come too late. Their offsets count up from the one the broker responds with.
_APPENDED: Final = "_mqtrace_appended"
"""The attribute of a batch that holds what was appended to it."""


class _Message(NamedTuple):
    key: Any
    is_tombstone: bool
    headers: Any
    body_length: int


class _Appended:
    """What was appended to one batch, which may be sent again: after a failure, or to another topic.

    Set on the batch, it takes the place of the two methods that see a message. What the client itself adds once the
    batch ``is_sent`` are sends of their own.
    """

    def __init__(self, batch: BatchBuilder) -> None:
        self.messages: list[_Message] = []
        self.is_sent = False
        self._body_length = 0
        self._append, batch.append = batch.append, self.append
        if hasattr(batch, "_serialize"):  # where the body's size is known; aiokafka 0.10 appends bytes alone
            self._serialize, batch._serialize = batch._serialize, self.serialize  # noqa: SLF001
        setattr(batch, _APPENDED, self)

    def serialize(self, key: Any, value: Any) -> tuple[Any, Any]:
        serialized: tuple[Any, Any] = self._serialize(key, value)
        self._body_length = len(serialized[1]) if serialized[1] is not None else 0
        return serialized

    def append(self, *, timestamp: int | None, key: Any, value: Any, **more: Any) -> Any:
        """Append as the client does; a message that the batch took (the result is not ``None``) is remembered."""
        self._body_length = len(value) if isinstance(value, (bytes, bytearray, memoryview)) else 0
        taken = self._append(timestamp=timestamp, key=key, value=value, **more)
        if taken is not None and not self.is_sent:
            self.messages.append(_Message(key, value is None, more.get("headers"), self._body_length))
        return taken


@guarded("create_batch")
def _watch(_producer: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any], batch: Any) -> None:
    tracing = active.tracing
    if tracing is not None and tracing.settings.headerless_sends != "leave" and type(batch) is BatchBuilder:
        _Appended(batch)


traced_create_batch: Final = call_after(_watch)


def traced_send_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    """``send_batch``."""

    @functools.wraps(original)
    async def send_batch(self: Any, batch: Any, topic: Any, *args: Any, **kwargs: Any) -> Any:
        appended: _Appended | None = getattr(batch, _APPENDED, None)
        if active.tracing is None or appended is None or not isinstance(topic, str):
            return await original(self, batch, topic, *args, **kwargs)
        sendings = _prepare_batch(self, appended, topic, kwargs.get("partition")) or []
        try:
            future = await original(self, batch, topic, *args, **kwargs)
        except BaseException as exception:
            for sending in sendings:
                sending.raised(exception)
            raise
        appended.is_sent = True
        for sending in sendings:
            sending.returned(future)
        return future

    return send_batch


@guarded("send_batch.before")
def _prepare_batch(producer: Any, appended: _Appended, topic: str, partition: object) -> list[Sending] | None:
    """Open the span of each message in the batch."""
    state = active.state_of(producer, ProducerState)
    if state is None:
        return None
    hook = state.hook
    sendings = []
    for index, each in enumerate(appended.messages):
        headers = index_headers(header_pairs(each.headers) or ())
        keys = header_text(headers, semconv.HEADER_KEYS)
        call = hook.before(
            topic,
            body=None if each.is_tombstone else UNKNOWN_BODY,
            key=each.key,
            partition=partition if isinstance(partition, int) else None,
            transaction_id=state.transaction.transaction_id,
            msg_id=header_text(headers, semconv.HEADER_UNIQ_KEY),
            tags=header_text(headers, semconv.HEADER_TAGS),
            keys=None if keys is None else keys.split(),
            carries_headers=False,
        )
        if call is not None and call.is_recorded:
            sendings.append(Sending(state, hook, call, body_length=each.body_length, index=index))
    return sendings
