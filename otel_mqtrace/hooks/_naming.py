"""This module knows the names spans had before the conventions 1.25, and who asks for them.

``OTEL_SEMCONV_STABILITY_OPT_IN`` is a list with commas: ``messaging/dup`` adds the old names to those of today,
``messaging/legacy`` writes the old ones alone; without either there is nothing to translate. Every ``mqtrace.*`` name
stays as it is.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry.trace import Link

from otel_mqtrace import semconv

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.util.types import AttributeValue

    from otel_mqtrace.spans.mapping import Attributes, Operation

__all__ = ["OPT_IN", "Naming"]

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
_DUP: Final = "messaging/dup"
_LEGACY: Final = "messaging/legacy"
_QUEUE: Final = "queue"
_OPERATIONS: Final[Mapping[object, str]] = {"create": "publish", "send": "publish"}
"""``messaging.operation`` by ``messaging.operation.type``, where they differ."""
_UNKNOWN_THEN: Final[tuple[object, ...]] = ("settle",)
"""Types of operation that the old conventions did not have; the name of the span still tells."""


def _same(value: AttributeValue) -> AttributeValue:
    return value


def _number(value: AttributeValue) -> AttributeValue:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _operation(value: AttributeValue) -> AttributeValue | None:
    return None if value in _UNKNOWN_THEN else _OPERATIONS.get(value, value)


_RENAMED: Final[Mapping[str, tuple[str, Callable[[AttributeValue], AttributeValue | None]]]] = {
    semconv.MESSAGING_DESTINATION_NAME: (semconv.LEGACY_DESTINATION, _same),
    semconv.MESSAGING_DESTINATION_PARTITION_ID: (semconv.LEGACY_KAFKA_PARTITION, _number),
    semconv.MESSAGING_OPERATION_TYPE: (semconv.LEGACY_OPERATION, _operation),
    semconv.MESSAGING_CONSUMER_GROUP_NAME: (semconv.LEGACY_KAFKA_CONSUMER_GROUP, _same),
    semconv.MESSAGING_CLIENT_ID: (semconv.LEGACY_CLIENT_ID, _same),
    semconv.MESSAGING_KAFKA_OFFSET: (semconv.LEGACY_KAFKA_OFFSET, _same),
}
"""Name of today → the old one, and how the value was written then; ``None``: not at all."""
_WITHOUT_OLD_NAME: Final = frozenset({semconv.MESSAGING_OPERATION_NAME})
"""Names whose meaning the old conventions put elsewhere; every name not mentioned here is old and new at once."""


@dataclass(frozen=True, slots=True)
class Naming:
    """Translates what is about to be written on a span; ``both`` keeps the names of today beside the old ones."""

    both: bool

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Naming | None:
        """Return what the environment asks for, ``None`` for the names of today; both win over the old ones."""
        asked = (os.environ if environ is None else environ).get(OPT_IN, "").split(",")
        words = {word.strip().lower() for word in asked}
        if _DUP in words:
            return cls(both=True)
        return cls(both=False) if _LEGACY in words else None

    def attributes(self, said: Mapping[str, AttributeValue]) -> Attributes:
        """Return ``said`` under the names asked for."""
        named: Attributes = dict(said) if self.both else {}
        for name, value in said.items():
            if name in _RENAMED:
                old, written = _RENAMED[name]
                if (then := written(value)) is not None:
                    named[old] = then
            elif name not in _WITHOUT_OLD_NAME:
                named[name] = value
        if semconv.LEGACY_DESTINATION in named:
            named[semconv.LEGACY_DESTINATION_KIND] = _QUEUE
        if said.get(semconv.MESSAGING_SYSTEM) == semconv.SYSTEM_ROCKETMQ and (
            group := named.pop(semconv.LEGACY_KAFKA_CONSUMER_GROUP, None)
        ):
            named[semconv.LEGACY_ROCKETMQ_CLIENT_GROUP] = group
        return named

    def links(self, links: Sequence[Link]) -> Sequence[Link]:
        """Return the links of a span with what they say of their messages under the names asked for."""
        return [Link(link.context, self.attributes(link.attributes)) if link.attributes else link for link in links]

    def span_name(self, operation: Operation, topic: str | None) -> str:
        """Return ``T send``, ``T process``, ``T receive``; beside names of today a span has its name of today."""
        if self.both:
            return operation.span_name(topic)
        verb = operation.type if operation.type in _VERBS else operation.name
        return f"{topic} {verb}" if topic else verb


_VERBS: Final = ("send", "receive", "process")
