"""This module knows the client's message on its way out: what it says of itself, and how ours is added unseen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rocketmq.v5.util import MessageIdCodec

from otel_mqtrace.model import MessageType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.hooks._headers import Headers
    from otel_mqtrace.hooks.send import SendCall, SendHook

__all__ = ["OutgoingMessage", "opened"]

_MS: Final = 1_000


class OutgoingMessage:
    """The caller's message as the client is to send it: its own in everything but its id and its properties.

    What the client writes on it (id, type) it writes on the caller's message, as ever; the properties of that one stay
    as they are. ``call`` is the send it was opened for; the client keeps this object for the end of a transaction.
    """

    __slots__ = ("_message", "_named", "call", "message_id", "properties")

    call: SendCall
    message_id: str
    properties: Mapping[str, str]

    def __init__(self, message: Any, call: SendCall, message_id: str) -> None:
        mine = {
            "_message": message,
            "_named": False,
            "call": call,
            "message_id": message_id,
            "properties": message.properties if call.headers is None else _texts(call.headers),
        }
        for name, value in mine.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Answer as the caller's message does."""
        return getattr(self._message, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Write on the caller's message; the first id the client makes is replaced by the one in the span."""
        if name == "message_id":
            if not self._named:
                object.__setattr__(self, "_named", True)
                value = self.message_id
            object.__setattr__(self, name, value)
        setattr(self._message, name, value)

    def __str__(self) -> str:
        return str(self._message)


def opened(hook: SendHook, message: Any, *, transactional: bool) -> OutgoingMessage | None:
    """Open the span of one send and return the message to send; ``None`` when its topic is not traced now."""
    if not isinstance(getattr(message, "topic", None), str):  # what is no message the client refuses by itself
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
        delivery_timestamp_ms=delivery * _MS if isinstance(delivery, int) else None,  # the client sends it as seconds
    )
    return None if call is None else OutgoingMessage(message, call, message_id)


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
