"""Facts of a RocketMQ client, its messages and its errors."""

from __future__ import annotations

import functools
import inspect
from concurrent.futures import CancelledError, Future
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from grpc import RpcError
from rocketmq.grpc_protocol import Code, definition_pb2
from rocketmq.v5.util import MessageIdCodec

from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.clients.patching import call_after
from otel_mqtrace.clients.state import ActiveTracing
from otel_mqtrace.hooks.attributes import IncomingMessage
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import text_of
from otel_mqtrace.hooks.propagation import creation_of
from otel_mqtrace.hooks.scope import BlockScope
from otel_mqtrace.hooks.tracing import ClientInfo
from otel_mqtrace.model import KEY_SEPARATOR, MessageType, TraceBean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext

    from otel_mqtrace.clients.patching import Wrapper, Wrappers
    from otel_mqtrace.hooks.scope import ProcessSpan
    from otel_mqtrace.hooks.send import SendCall, SendHook
    from otel_mqtrace.records.message import Headers


active: Final = ActiveTracing()
_SYSTEM: Final = "rocketmq"
_CLUSTERING: Final = "clustering"
"""How every consumer of this client shares the messages of its group; it has no broadcasting."""
_NAMES: Final[dict[int, str]] = {number: name for name, number in Code.items()}


def first_address(endpoints: object) -> str | None:
    """Return the first ``host:port`` of the client's endpoints, or ``None`` when they name none."""
    return str(endpoints).partition(",")[0] or None if endpoints is not None else None


def info_of(client: Any) -> ClientInfo:
    """Return what is true of every message of a client."""
    configuration = client.client_configuration
    group = getattr(client, "consumer_group", None) or getattr(client, "_consumer_group", None)
    info = ClientInfo.named(
        _SYSTEM, group_name=group, client_id=client.client_id, servers=first_address(configuration.rpc_endpoints)
    )
    return replace(
        info, namespace=configuration.namespace or None, consumption_model=None if group is None else _CLUSTERING
    )


def describe_failure(exception: BaseException) -> dict[str, Any]:
    """Return a hook's arguments of an error: its type is ``TOPIC_NOT_FOUND``, gRPC's ``UNAVAILABLE``, or the class."""
    code = getattr(exception, "code", None)
    if isinstance(code, int) and code in _NAMES:
        name = _NAMES[code]
    elif isinstance(exception, RpcError) and callable(code):
        name = str(code().name)
    else:
        name = type(exception).__qualname__
    return {"error": name, "description": text_of(exception), "exception": exception}


def observe_call(
    call: Callable[[], Any], observe: Callable[[Any, BaseException | None], object], callback_ctx: Context | None
) -> Any:
    """Call ``call`` and then ``observe(result, exception)``, which must not raise: now, or when a future is done.

    Return the result; in place of a future one that is done as that is, after ``observe``. Its callbacks run in
    ``callback_ctx`` where that is given.
    """
    try:
        result = call()
    except BaseException as exception:
        observe(None, exception)
        raise
    if not isinstance(result, Future):
        observe(result, None)
        return result
    completed: Future[Any] = Future()

    def pass_on(done: Future[Any]) -> None:
        exception = CancelledError() if done.cancelled() else done.exception()
        value = None if exception is not None else done.result()
        observe(value, exception)
        with nullcontext() if callback_ctx is None else BlockScope(callback_ctx):
            if done.cancelled() or not completed.set_running_or_notify_cancel():
                completed.cancel()
            elif exception is not None:
                completed.set_exception(exception)
            else:
                completed.set_result(value)

    result.add_done_callback(pass_on)
    return completed


def replace_argument(name: str, stand_in: Callable[[Any, Any], Any]) -> Wrapper:
    """Return the wrapper of a client's ``__init__`` that puts ``stand_in(given, client)`` for its argument ``name``."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes that method
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError:  # the client raises it itself
                original(self, *args, **kwargs)
                return
            if bound.arguments.get(name) is not None:
                bound.arguments[name] = stand_in(bound.arguments[name], self)
            original(*bound.args, **bound.kwargs)

        return __init__

    return wrap


_TYPES: Final[Mapping[int, MessageType]] = {
    definition_pb2.FIFO: MessageType.ORDER,
    definition_pb2.DELAY: MessageType.DELAY,
    definition_pb2.TRANSACTION: MessageType.TRANS_COMMIT,
}
"""What a consumer sees of each type: a transactional message is there because it was committed."""
_MS_PER_S: Final = 1_000


@dataclass(slots=True, eq=False)
class ReceivedMessage:
    """One delivery of one message: where it was stored, and the span it is handled in.

    ``properties`` and ``keys`` are what was sent with it: clients up to 5.0.9 keep them to themselves.
    ``holder`` is the consumer's side that handed it over, ``handled_in`` the context of its latest span, ``listening``
    whether a listener has it now; ``tries`` counts the calls of a listener for it, ``until_ns`` is when the broker will
    deliver it again, ``postponed_ns`` when the application last moved that. ``awaited`` is its number among those left
    to blocks.
    """

    msg_id: str | None = None
    properties: Mapping[str, str] | None = None
    keys: Sequence[str] | None = None
    queue_id: int | None = None
    store_host: str | None = None
    store_time_ms: int | None = None
    holder: Any = None
    call: ProcessSpan | None = None
    handled_in: Context | None = None
    listening: bool = False
    tries: int = 0
    until_ns: int = 0
    postponed_ns: int | None = None
    awaited: int | None = None

    def handle_in(self, call: ProcessSpan) -> None:
        """Remember the span it is handled in."""
        self.call, self.handled_in = call, call.otel_ctx


_received: Final[WeakKeyDictionary[Any, ReceivedMessage]] = WeakKeyDictionary()


def received_of(message: Any) -> ReceivedMessage:
    """Return what is known of ``message`` since it came in; next to nothing when it came untraced."""
    received = _received.get(message)
    if received is None:
        received = _received[message] = ReceivedMessage()
    return received


def incoming(message: Any) -> IncomingMessage:
    """Return what the hook needs of a message."""
    received = received_of(message)
    again = max((message.delivery_attempt or 1) - 1, 0)
    return IncomingMessage(
        topic=message.topic,
        partition=None if again else received.queue_id,  # a redelivered message lies in a retry topic's queue
        body_length=len(message.body or b""),
        headers=_headers(message),
        timestamp_ms=received.store_time_ms,
        store_host=received.store_host,
        msg_id=message.message_id,
        tags=message.tag,
        keys=_keys(message),
        msg_type=_TYPES.get(message.message_type, MessageType.NORMAL),
        retry_times=again + max(received.tries - 1, 0),
        message_group=message.message_group,
    )


def bean_of_message(message: Any) -> TraceBean:
    """Return the trace record's fields of a message that was not sent under tracing, or not by this process."""
    return TraceBean(
        topic=message.topic,
        msg_id=message.message_id,
        tags=message.tag,
        keys=KEY_SEPARATOR.join(_keys(message)) or None,
        body_length=len(message.body or b""),
        store_host=received_of(message).store_host,
    )


def creation_of_message(message: Any) -> SpanContext:
    """Return the context of the span that sent ``message``; an invalid one when it carries none."""
    return creation_of(_headers(message))


def _headers(message: Any) -> Headers:
    properties = received_of(message).properties
    return list((message.properties if properties is None else properties).items())


def _keys(message: Any) -> Sequence[str]:
    keys = received_of(message).keys
    return sorted(message.keys if keys is None else keys)


@guarded("rocketmq.received")
def _record_received(message: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _result: Any) -> None:
    if active.tracing is None:
        return
    protobuf = args[0] if args else kwargs["message"]
    system = protobuf.system_properties
    received = received_of(message)
    received.properties, received.keys = dict(protobuf.user_properties), tuple(system.keys)
    received.msg_id, received.queue_id = system.message_id, system.queue_id
    received.store_host = system.store_host or None
    if system.HasField("store_timestamp"):
        stored = system.store_timestamp
        received.store_time_ms = stored.seconds * _MS_PER_S + stored.nanos // NS_PER_MS


MESSAGE_METHODS: Final[Wrappers] = {"fromProtobuf": call_after(_record_received)}
"""Method of ``Message`` → how to wrap it."""


class OutgoingMessage:
    """The caller's message as the client is to send it, with an id and properties of its own: a mixin of its class.

    The id and the type that the client sets are set on the caller's message too, whose properties stay as they are.
    ``call`` is the send it was opened for; the client keeps this object for the end of a transaction.
    """

    def __init__(self, message: Any, call: SendCall, message_id: str) -> None:
        self.__dict__.update(vars(message))  # the class keeps its fields under private names
        self.call = call
        self._message = message
        self._sent_id, self._is_named = message_id, False
        self._sent_properties = message.properties if call.headers is None else _texts(call.headers)

    @property
    def properties(self) -> Mapping[str, str]:
        """The caller's properties and the trace headers."""
        return self._sent_properties

    @property
    def message_id(self) -> str:
        """The id in the span; the first one that the client makes is replaced by it."""
        return self._sent_id

    @message_id.setter
    def message_id(self, value: str) -> None:
        self._sent_id = value if self._is_named else self._sent_id
        self._is_named = True
        self._message.message_id = self._sent_id

    @property
    def message_type(self) -> Any:
        """The type, which the client decides."""
        return self._message.message_type

    @message_type.setter
    def message_type(self, value: Any) -> None:
        self._message.message_type = value


@guarded("rocketmq.send")
def open_send(hook: SendHook, message: Any, *, transactional: bool) -> OutgoingMessage | None:
    """Open the span of one send and return the message to send; ``None`` when its topic is not traced now."""
    if not isinstance(getattr(message, "topic", None), str):  # the client itself refuses anything but a message
        return None
    message_id = MessageIdCodec().next_message_id()
    delivery = getattr(message, "delivery_timestamp", None)
    call = hook.before(
        message.topic,
        body=message.body,
        headers=message.properties,
        msg_id=message_id,
        tags=message.tag,
        keys=sorted(message.keys),
        msg_type=_type_of(message, transactional=transactional),
        message_group=message.message_group,
        # The client sends it as seconds.
        delivery_timestamp_ms=delivery * _MS_PER_S if isinstance(delivery, int) else None,
    )
    if call is None:
        return None
    outgoing = _outgoing_class(type(message))  # type: ignore[arg-type]  # a class is hashable
    return outgoing(message, call, message_id)


@functools.lru_cache(maxsize=64)
def _outgoing_class(kind: Any) -> type[OutgoingMessage]:
    """Return the class of messages whose other properties are those of ``kind``, the caller's own subclass."""
    return type(kind.__name__, (OutgoingMessage, kind), {})


def _type_of(message: Any, *, transactional: bool) -> MessageType:
    if transactional:
        return MessageType.TRANS_HALF
    if message.message_group:
        return MessageType.ORDER
    return MessageType.DELAY if getattr(message, "delivery_timestamp", None) else MessageType.NORMAL


def _texts(headers: Headers) -> dict[str, str]:
    return {
        name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for name, value in headers
        if value is not None
    }
