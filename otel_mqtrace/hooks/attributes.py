"""The attributes of one message, on either side: from headers, position, key and the client.

Also the captured headers and the attribute names before conventions 1.25, where configured.
"""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Link

from otel_mqtrace import semconv
from otel_mqtrace.config import matches_any
from otel_mqtrace.hooks.propagation import each_header, header_name, propagator_in_force
from otel_mqtrace.model import KEY_SEPARATOR, MessageType
from otel_mqtrace.records.message import header_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.util.types import AttributeValue

    from otel_mqtrace.records.message import HeaderIndex, Headers, HeaderValue
    from otel_mqtrace.spans.mapping import Attributes, Operation


_REGISTRY_TYPES: Final[Mapping[object, str]] = {
    MessageType.NORMAL.value: "normal",
    MessageType.ORDER.value: "fifo",
    MessageType.DELAY.value: "delay",
    MessageType.TRANS_HALF.value: "transaction",
    MessageType.TRANS_COMMIT.value: "transaction",
}
"""RocketMQ's message type → the registry's ``messaging.rocketmq.message.type``."""
_REGISTRY_NAMES: Final[Mapping[str, str]] = {
    semconv.MQTRACE_TAGS: semconv.MESSAGING_ROCKETMQ_MESSAGE_TAG,
    semconv.MQTRACE_KEYS: semconv.MESSAGING_ROCKETMQ_MESSAGE_KEYS,
}
_ONLY_KAFKA: Final = (
    semconv.MESSAGING_KAFKA_OFFSET,
    semconv.MESSAGING_KAFKA_MESSAGE_KEY,
    semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
    semconv.MESSAGING_KAFKA_CLUSTER_ID,
)
_MAX_LEVEL_DIGITS: Final = 2  # RocketMQ has eighteen delay levels


# -- fields of a message ----------------------------------------------------------------------------------------
def add_known_fields(
    attributes: Attributes,
    *,
    tags: str | None = None,
    keys: Sequence[str] | None = None,
    msg_type: MessageType | None = None,
) -> None:
    """Add the client's own fields of a message, which win over the headers; ``keys`` may be one text, as there."""
    if tags is not None:
        attributes[semconv.MQTRACE_TAGS] = tags
    if keys:
        attributes[semconv.MQTRACE_KEYS] = tuple(keys.split(KEY_SEPARATOR) if isinstance(keys, str) else keys)
    if msg_type is not None:
        attributes[semconv.MQTRACE_MSG_TYPE] = msg_type.value


def add_rocketmq_fields(
    attributes: Attributes,
    headers: HeaderIndex,
    *,
    message_group: str | None = None,
    delivery_timestamp_ms: int | None = None,
) -> None:
    """Add the registry's ``messaging.rocketmq.*`` to a message's attributes and remove Kafka's own names."""
    for ours, registered in _REGISTRY_NAMES.items():
        if ours in attributes:
            attributes[registered] = attributes[ours]
    remove_kafka_fields(attributes)
    if (kind := _REGISTRY_TYPES.get(attributes.get(semconv.MQTRACE_MSG_TYPE))) is not None:
        attributes[semconv.MESSAGING_ROCKETMQ_MESSAGE_TYPE] = kind
    if message_group is not None:
        attributes[semconv.MESSAGING_ROCKETMQ_MESSAGE_GROUP] = message_group
    if delivery_timestamp_ms is not None:
        attributes[semconv.MESSAGING_ROCKETMQ_MESSAGE_DELIVERY_TIMESTAMP] = delivery_timestamp_ms
    level = header_text(headers, semconv.HEADER_DELAY)
    if level is not None and level.isascii() and level.isdigit() and len(level) <= _MAX_LEVEL_DIGITS:
        attributes[semconv.MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL] = int(level)


def remove_kafka_fields(attributes: Attributes) -> None:
    """Remove the names that only Kafka's messages have."""
    for name in _ONLY_KAFKA:
        attributes.pop(name, None)


# -- incoming messages ------------------------------------------------------------------------------------------
@dataclass(slots=True)  # a frozen or keyword-only one takes three times as long to build
class IncomingMessage:
    """One message as the client handed it over; ``body_length`` in bytes, ``timestamp_ms`` when it was stored.

    Pass each field by name; our own clients pass the first ten by position, once per message.

    ``store_host`` is the broker it came from (``host:port``), by default the client's first server. What is given of
    ``msg_id``, ``tags``, ``keys``, ``msg_type`` and ``retry_times`` (deliveries before this one) wins over the
    message's headers, pairs or a mapping. ``message_group`` is the group of a RocketMQ FIFO message.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    key: object = None
    body_length: int | None = None
    tombstone: bool = False
    headers: Headers | HeaderIndex = ()
    timestamp_ms: int | None = None
    store_host: str | None = None
    cluster_id: str | None = None
    _: KW_ONLY
    msg_id: str | None = None
    tags: str | None = None
    keys: Sequence[str] | None = None
    msg_type: MessageType | None = None
    retry_times: int | None = None
    message_group: str | None = None


# -- captured headers -------------------------------------------------------------------------------------------
REDACTED: Final = "REDACTED"
MAX_CAPTURED_VALUES: Final = 64
"""Header values of one message that are written; the rest is left out."""
MAX_CAPTURED_CHARACTERS: Final = 1_024
"""Characters of one value that are written."""
_OWN: Final = semconv.HEADER_UNIQ_KEY.lower()
_MAX_NAMES: Final = 512
_MAX_BYTES: Final = 4 * MAX_CAPTURED_CHARACTERS  # as many as UTF-8 needs


class HeaderCapture:
    """Turns message headers into ``messaging.header.<name>`` attributes.

    Names are compared with shell-style patterns in any case; the attribute keeps the message's spelling. The headers
    of tracing itself and baggage are captured only by their exact name.
    """

    def __init__(self, captured: Sequence[str], redacted: Sequence[str]) -> None:
        self._captured = tuple(pattern.lower() for pattern in captured)
        self._redacted = tuple(pattern.lower() for pattern in redacted)
        self._decide = lru_cache(maxsize=_MAX_NAMES)(self._match_patterns)

    def attributes(self, headers: Headers | HeaderIndex) -> Attributes:
        """Return one ``string[]`` per captured name, in order; non-UTF-8 bytes are escaped, absent values empty."""
        captured: dict[str, list[str]] = {}
        left = MAX_CAPTURED_VALUES
        carriers = propagator_in_force().names
        for given, value in each_header(headers):
            name = header_name(given)
            is_captured, is_redacted = self._decide(name, carriers)
            if is_captured:
                captured.setdefault(name, []).append(REDACTED if is_redacted else _captured_text(value))
                left -= 1
                if not left:
                    break
        return {f"{semconv.CAPTURED_HEADER_PREFIX}{name}": tuple(values) for name, values in captured.items()}

    def _match_patterns(self, name: str, carriers: frozenset[str]) -> tuple[bool, bool]:
        folded = name.lower()
        of_tracing = folded == _OWN or folded in carriers
        captured = folded in self._captured if of_tracing else matches_any(folded, self._captured)
        return captured, matches_any(folded, self._redacted)


def _captured_text(value: HeaderValue) -> str:
    if value is None:
        return ""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value[:_MAX_BYTES]).decode("utf-8", "backslashreplace")[:MAX_CAPTURED_CHARACTERS]
    return str(value)[:MAX_CAPTURED_CHARACTERS]


# -- names of before the conventions 1.25 -----------------------------------------------------------------------
OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_DUP: Final = "messaging/dup"
_LEGACY: Final = "messaging/legacy"
_LEGACY_TYPES: Final[Mapping[object, str | None]] = {"create": "publish", "send": "publish", "settle": None}
"""``messaging.operation`` by ``messaging.operation.type``, where they differ; a span's name shows a settlement."""
_LEGACY_VERBS: Final = ("send", "receive", "process")


_RENAMED: Final[Mapping[str, str]] = {
    semconv.MESSAGING_DESTINATION_NAME: semconv.LEGACY_DESTINATION,
    semconv.MESSAGING_DESTINATION_PARTITION_ID: semconv.LEGACY_KAFKA_PARTITION,
    semconv.MESSAGING_OPERATION_TYPE: semconv.LEGACY_OPERATION,
    semconv.MESSAGING_CONSUMER_GROUP_NAME: semconv.LEGACY_KAFKA_CONSUMER_GROUP,
    semconv.MESSAGING_CLIENT_ID: semconv.LEGACY_CLIENT_ID,
    semconv.MESSAGING_KAFKA_OFFSET: semconv.LEGACY_KAFKA_OFFSET,
}
"""Name of today → the old one."""
_REWRITTEN: Final[Mapping[str, Callable[[AttributeValue], AttributeValue | None]]] = {
    semconv.MESSAGING_DESTINATION_PARTITION_ID: lambda number: int(str(number)),
    semconv.MESSAGING_OPERATION_TYPE: lambda kind: _LEGACY_TYPES.get(kind, kind),
}
"""How a value was written (``None``: not at all), where that differs."""
_WITHOUT_OLD_NAME: Final = frozenset({semconv.MESSAGING_OPERATION_NAME})


@dataclass(frozen=True, slots=True)
class LegacyNames:
    """Translates attributes to the old names; ``both`` keeps the names of today beside them.

    ``OTEL_SEMCONV_STABILITY_OPT_IN`` is a comma-separated list: ``messaging/dup`` writes both, ``messaging/legacy`` the
    old names alone. Every ``mqtrace.*`` name stays.
    """

    both: bool

    @classmethod
    def from_env(cls) -> LegacyNames | None:
        """Return the names that the environment requests, ``None`` for current ones; ``dup`` wins over ``legacy``."""
        words = {word.strip().lower() for word in os.environ.get(OPT_IN, "").split(",")}
        if _DUP in words:
            return cls(both=True)
        return cls(both=False) if _LEGACY in words else None

    def attributes(self, attributes: Mapping[str, AttributeValue]) -> Attributes:
        """Return ``attributes`` under the requested names."""
        named: Attributes = dict(attributes) if self.both else {}
        for name, value in attributes.items():
            if name in _RENAMED:
                written = _REWRITTEN[name](value) if name in _REWRITTEN else value
                if written is not None:
                    named[_RENAMED[name]] = written
            elif name not in _WITHOUT_OLD_NAME:
                named[name] = value
        if semconv.LEGACY_DESTINATION in named:
            named[semconv.LEGACY_DESTINATION_KIND] = "queue"
        if attributes.get(semconv.MESSAGING_SYSTEM) == semconv.SYSTEM_ROCKETMQ and (
            group := named.pop(semconv.LEGACY_KAFKA_CONSUMER_GROUP, None)
        ):
            named[semconv.LEGACY_ROCKETMQ_CLIENT_GROUP] = group
        return named

    def links(self, links: Sequence[Link]) -> Sequence[Link]:
        """Return the links of a span with their attributes under the requested names."""
        return [Link(link.context, self.attributes(link.attributes)) if link.attributes else link for link in links]

    def span_name(self, operation: Operation, topic: str | None) -> str:
        """Return ``T send``, ``T process``, ``T receive``; the name of today where both are written."""
        if self.both:
            return operation.span_name(topic)
        verb = operation.type if operation.type in _LEGACY_VERBS else operation.name
        return f"{topic} {verb}" if topic else verb
