"""This module knows what one message says of itself, on either side: its headers, its place, its key, its kind.

The names are those of the mapping's table; a TraceBean in between would cost more than the rest of a send.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace.hooks._headers import HeaderIndex, header_text
from otel_mqtrace.model import MessageType
from otel_mqtrace.spans.mapping import Attributes, keys_attribute

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["forget_kafka", "key_text", "place_attributes", "say_given", "say_headers", "say_rocketmq"]

_DELAY: Final = MessageType.DELAY.value
_REGISTRY_TYPES: Final[Mapping[object, str]] = {
    MessageType.NORMAL.value: "normal",
    MessageType.ORDER.value: "fifo",
    MessageType.DELAY.value: "delay",
    MessageType.TRANS_HALF.value: "transaction",
    MessageType.TRANS_COMMIT.value: "transaction",
}
"""What the registry's ``messaging.rocketmq.message.type`` calls RocketMQ's message types."""
_SAID_AGAIN: Final[Mapping[str, str]] = {
    semconv.MQTRACE_TAGS: semconv.MESSAGING_ROCKETMQ_MESSAGE_TAG,
    semconv.MQTRACE_KEYS: semconv.MESSAGING_ROCKETMQ_MESSAGE_KEYS,
}
_ONLY_KAFKA: Final = (
    semconv.MESSAGING_KAFKA_OFFSET,
    semconv.MESSAGING_KAFKA_MESSAGE_KEY,
    semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
    semconv.MESSAGING_KAFKA_CLUSTER_ID,
)
_LEVEL_DIGITS: Final = 2
"""RocketMQ has eighteen delay levels."""


def say_headers(said: Attributes, found: HeaderIndex) -> None:
    """Add what RocketMQ's own headers say of a message: tags, keys, delay."""
    if (tags := header_text(found, semconv.HEADER_TAGS)) is not None:
        said[semconv.MQTRACE_TAGS] = tags
    keys = header_text(found, semconv.HEADER_KEYS)
    if keys is not None and (split := keys_attribute(keys)) is not None:
        said[semconv.MQTRACE_KEYS] = split
    if semconv.HEADER_DELAY in found:
        said[semconv.MQTRACE_MSG_TYPE] = _DELAY


def say_given(
    said: Attributes, *, tags: str | None = None, keys: Sequence[str] | None = None, msg_type: MessageType | None = None
) -> None:
    """Add what the client itself knows of a message; that wins over what its headers say."""
    if tags is not None:
        said[semconv.MQTRACE_TAGS] = tags
    if keys:
        said[semconv.MQTRACE_KEYS] = tuple(keys)
    if msg_type is not None:
        said[semconv.MQTRACE_MSG_TYPE] = msg_type.value


def say_rocketmq(
    said: Attributes,
    found: HeaderIndex,
    *,
    message_group: str | None = None,
    delivery_timestamp_ms: int | None = None,
) -> None:
    """Turn what ``said`` holds of one message into the registry's ``messaging.rocketmq.*``; Kafka's own names go."""
    for ours, registered in _SAID_AGAIN.items():
        if ours in said:
            said[registered] = said[ours]
    forget_kafka(said)
    if (kind := _REGISTRY_TYPES.get(said.get(semconv.MQTRACE_MSG_TYPE))) is not None:
        said[semconv.MESSAGING_ROCKETMQ_MESSAGE_TYPE] = kind
    if message_group is not None:
        said[semconv.MESSAGING_ROCKETMQ_MESSAGE_GROUP] = message_group
    if delivery_timestamp_ms is not None:
        said[semconv.MESSAGING_ROCKETMQ_MESSAGE_DELIVERY_TIMESTAMP] = delivery_timestamp_ms
    level = header_text(found, semconv.HEADER_DELAY)
    if level is not None and level.isascii() and level.isdigit() and len(level) <= _LEVEL_DIGITS:
        said[semconv.MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL] = int(level)


def forget_kafka(said: Attributes) -> None:
    """Remove the names that only Kafka's messages have."""
    for name in _ONLY_KAFKA:
        said.pop(name, None)


def place_attributes(topic: str, partition: int | None, offset: int | None) -> Attributes:
    """Return where a message lies: partition, offset and ``{topic}-{partition}@{offset}``, as far as known."""
    place: Attributes = {}
    if offset is not None and offset >= 0:
        place[semconv.MESSAGING_KAFKA_OFFSET] = offset
    if partition is not None and partition >= 0:
        place[semconv.MESSAGING_DESTINATION_PARTITION_ID] = str(partition)
        if offset is not None and offset >= 0:
            place[semconv.MQTRACE_OFFSET_MSG_ID] = f"{topic}-{partition}@{offset}"
    return place


def key_text(key: object) -> str | None:
    """Return a key as text when it has a canonical one (text, UTF-8 bytes); else ``None``, as the conventions ask."""
    if isinstance(key, str):
        return key
    if isinstance(key, (bytes, bytearray)):
        try:
            return key.decode()
        except UnicodeDecodeError:
            return None
    return None
