"""This module knows a message as it came in: what the client keeps of it, and what it drops that we want to know."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from rocketmq.grpc_protocol import definition_pb2

from otel_mqtrace.clients.rocketmq.live import live
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._headers import indexed
from otel_mqtrace.hooks._propagation import creation_of
from otel_mqtrace.hooks.incoming import IncomingMessage
from otel_mqtrace.hooks.settle import SettledOffset
from otel_mqtrace.model import KEY_SEPARATOR, MessageType, TraceBean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import SpanContext

    from otel_mqtrace.hooks._headers import Headers
    from otel_mqtrace.hooks.consume import ProcessCall

__all__ = [
    "MESSAGE_METHODS",
    "Delivery",
    "bean_of_message",
    "creation_of_message",
    "delivery_of",
    "incoming",
    "settled",
]

_TYPES: Final[Mapping[int, MessageType]] = {
    definition_pb2.FIFO: MessageType.ORDER,
    definition_pb2.DELAY: MessageType.DELAY,
    definition_pb2.TRANSACTION: MessageType.TRANS_COMMIT,
}
"""What a consumer sees of each type: a transactional message is there because it was committed."""
_NS_PER_MS: Final = 1_000_000
_MS_PER_SECOND: Final = 1_000


@dataclass(slots=True, eq=False)
class Delivery:
    """One delivery of one message: where it was stored, and the span it is handled in.

    ``properties`` and ``keys`` are what was sent with it: clients up to 5.0.9 keep them to themselves.
    ``holder`` is the consumer's side that handed it over, ``handled_in`` the context of its latest span, ``listening``
    whether a listener has it now; ``tries`` counts the calls of a listener for it, ``until_ns`` is when the broker will
    deliver it again, ``postponed_ns`` when the application last moved that.
    """

    msg_id: str | None = None
    properties: Mapping[str, str] | None = None
    keys: Sequence[str] | None = None
    queue_id: int | None = None
    store_host: str | None = None
    store_time_ms: int | None = None
    holder: Any = None
    call: ProcessCall | None = None
    handled_in: Context | None = None
    listening: bool = False
    tries: int = 0
    until_ns: int = 0
    postponed_ns: int | None = None

    def handle_in(self, call: ProcessCall) -> None:
        """Remember the span it is handled in."""
        self.call, self.handled_in = call, call.otel_ctx


_deliveries: Final[WeakKeyDictionary[Any, Delivery]] = WeakKeyDictionary()


def delivery_of(message: Any) -> Delivery:
    """Return what is known of ``message`` since it came in; next to nothing when it came untraced."""
    found = _deliveries.get(message)
    if found is None:
        found = _deliveries[message] = Delivery()
    return found


def incoming(message: Any) -> IncomingMessage:
    """Return what the hook needs of a message."""
    delivery = delivery_of(message)
    again = max((message.delivery_attempt or 1) - 1, 0)
    return IncomingMessage(
        topic=message.topic,
        partition=None if again else delivery.queue_id,  # a message that comes again lies in a retry topic's queue
        body_length=len(message.body or b""),
        headers=_headers(message),
        timestamp_ms=delivery.store_time_ms,
        store_host=delivery.store_host,
        msg_id=message.message_id,
        tags=message.tag,
        keys=_keys(message),
        msg_type=_TYPES.get(message.message_type, MessageType.NORMAL),
        retry_times=again + max(delivery.tries - 1, 0),
        message_group=message.message_group,
    )


def bean_of_message(message: Any) -> TraceBean:
    """Return what a trace record says of a message that was not sent under tracing, or not by this process."""
    return TraceBean(
        topic=message.topic,
        msg_id=message.message_id,
        tags=message.tag,
        keys=KEY_SEPARATOR.join(_keys(message)) or None,
        body_length=len(message.body or b""),
        store_host=delivery_of(message).store_host,
    )


def creation_of_message(message: Any) -> SpanContext:
    """Return the context of the span that sent ``message``; an invalid one when it carries none."""
    return creation_of(indexed(_headers(message)))


def settled(message: Any) -> SettledOffset:
    """Return what a settlement says of ``message``."""
    return SettledOffset(message.topic, creation=creation_of_message(message), msg_id=message.message_id)


def _headers(message: Any) -> Headers:
    properties = delivery_of(message).properties
    return list((message.properties if properties is None else properties).items())


def _keys(message: Any) -> Sequence[str]:
    keys = delivery_of(message).keys
    return sorted(message.keys if keys is None else keys)


def _traced_from_protobuf(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def fromProtobuf(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802 - the client's name
        result = original(self, message, *args, **kwargs)
        if live.tracing is not None:
            _note(self, message)
        return result

    return fromProtobuf


@guarded("rocketmq.received")
def _note(message: Any, came: Any) -> None:
    said = came.system_properties
    delivery = delivery_of(message)
    delivery.properties, delivery.keys = dict(came.user_properties), tuple(said.keys)
    delivery.msg_id, delivery.queue_id = said.message_id, said.queue_id
    delivery.store_host = said.store_host or None
    if said.HasField("store_timestamp"):
        stored = said.store_timestamp
        delivery.store_time_ms = stored.seconds * _MS_PER_SECOND + stored.nanos // _NS_PER_MS


MESSAGE_METHODS: Final[Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]] = {
    "fromProtobuf": _traced_from_protobuf,
}
"""Method of ``Message`` → how to wrap it."""
