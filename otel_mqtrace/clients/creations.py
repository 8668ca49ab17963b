"""This module knows where the messages that consumers handed over lay, and in which context each was created.

A settlement speaks of offsets only. Consumers remember for it, as long as somebody records settlements.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from otel_mqtrace.clients.alive import Alive
from otel_mqtrace.hooks._headers import Headers, indexed
from otel_mqtrace.hooks._propagation import creation_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.trace import SpanContext

    from otel_mqtrace.hooks.incoming import IncomingMessage
    from otel_mqtrace.hooks.tracing import ClientFacts

__all__ = ["Creations", "remembered"]

_MAX_REMEMBERED: Final = 10_000


class Creations:
    """What one consumer handed over lately: the last 10,000 messages, by topic, partition and offset."""

    def __init__(self, facts: ClientFacts) -> None:
        self.facts = facts
        self._headers: OrderedDict[tuple[str, int | None, int | None], Headers] = OrderedDict()
        _known.add(self)

    def note(self, received: Iterable[IncomingMessage]) -> None:
        """Remember what was handed over."""
        for message in received:
            self._headers[message.topic, message.partition, message.offset] = message.headers
        while len(self._headers) > _MAX_REMEMBERED:
            self._headers.popitem(last=False)

    def of(self, topic: str, partition: int | None, offset: int | None) -> SpanContext | None:
        """Return the context the message there was created in, while it is remembered."""
        headers = self._headers.get((topic, partition, offset))
        return None if headers is None else creation_of(indexed(headers))


_known: Final[Alive[Creations]] = Alive()


def remembered(
    topic: str, partition: int, offset: int, *, server: str | None, group_name: str | None = None
) -> SpanContext | None:
    """Return what any consumer of ``server`` (and of the group, where it is known) remembers of a message."""
    for each in _known.all():
        if each.facts.server == server and group_name in {None, each.facts.group_name}:
            creation = each.of(topic, partition, offset)
            if creation is not None:
                return creation
    return None
