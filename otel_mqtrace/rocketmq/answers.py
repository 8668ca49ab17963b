"""The responses of brokers: pulled messages, offsets, the position of a sent message. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from otel_mqtrace import semconv
from otel_mqtrace.model import KEY_SEPARATOR
from otel_mqtrace.rocketmq.commands import ResponseCode
from otel_mqtrace.rocketmq.frames import ProtocolError
from otel_mqtrace.rocketmq.messages import decode_messages

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.rocketmq.frames import Command
    from otel_mqtrace.rocketmq.messages import StoredMessage
    from otel_mqtrace.rocketmq.routes import Queue

__all__ = ["Outgoing", "Pulled", "Sent", "has_key", "offset_of", "pulled", "sent"]


@dataclass(frozen=True, slots=True)
class Pulled:
    """What one pull brought: the messages, where to go on, and what the queue then held, ``[min, max)``.

    ``moved``: the offset asked for is outside of that.
    """

    messages: list[StoredMessage]
    next_offset: int
    min_offset: int
    max_offset: int
    moved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send, to the queue it is for; ``properties`` beside ``KEYS`` and ``UNIQ_KEY``."""

    queue: Queue
    body: bytes
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a message lies now: its queue, its offset there and the broker's physical id, as far as it said so."""

    queue: Queue
    offset: int | None
    offset_msg_id: str | None


def _number(answer: Command, name: str) -> int:
    try:
        return int(answer.fields[name])
    except (KeyError, ValueError):
        raise ProtocolError(f"an answer has no number {name}") from None


def offset_of(answer: Command) -> int:
    """Return the offset that was asked for."""
    return _number(answer, "offset")


def pulled(answer: Command) -> Pulled:
    """Return what the answer to a pull brought."""
    return Pulled(
        decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else [],
        next_offset=_number(answer, "nextBeginOffset"),
        min_offset=_number(answer, "minOffset"),
        max_offset=_number(answer, "maxOffset"),
        moved=answer.code == ResponseCode.PULL_OFFSET_MOVED,
    )


def sent(message: Outgoing, answer: Command) -> Sent:
    """Return where a message lies by the answer to its send."""
    try:
        offset: int | None = _number(answer, "queueOffset")
    except ProtocolError:  # it has the message all the same
        offset = None
    return Sent(message.queue, offset, answer.fields.get("msgId"))


def has_key(message: StoredMessage, topic: str, key: str) -> bool:
    """Whether ``message`` was rightly found: the index holds hashes of topic and key."""
    known = message.properties
    return message.topic == topic and (
        key in known.get(semconv.HEADER_KEYS, "").split(KEY_SEPARATOR) or key == known.get(semconv.HEADER_UNIQ_KEY)
    )
