"""This module knows which consumer handed a message over, so that ``process(message)`` finds its group and its span.

A ``Message`` is a C object: no attributes, no weak references, no hash. So it is found by its identity, checked against
its topic, partition and offset; the last 10,000 are remembered, and the message itself is not kept alive.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mqtrace.clients.confluent_kafka.live import STATE, live
from otel_mqtrace.clients.confluent_kafka.messages import incoming, is_message
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

if TYPE_CHECKING:
    from confluent_kafka import Message

    from otel_mqtrace.clients.confluent_kafka.leaders import Leaders

__all__ = ["MAX_REMEMBERED", "Handover", "handed_over"]

MAX_REMEMBERED: Final = 10_000


class _Owner(Protocol):
    leaders: Leaders | None

    def bind(self, tracing: Tracing) -> ConsumeHook: ...

    def take(self, call: ProcessCall) -> Responsibility: ...


@dataclass(slots=True)
class _Entry:
    place: tuple[str | None, int | None, int | None]
    owner: weakref.ref[Any]
    call: ProcessCall | None


class Handover:
    """The messages that traced consumers have handed over lately; a source of ``process``."""

    def __init__(self, *, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max = max_remembered
        self._entries: dict[int, _Entry] = {}

    def note(self, message: Message, owner: _Owner, call: ProcessCall | None) -> None:
        """Remember who handed ``message`` over and the automatic span it is in, if any."""
        self._entries.pop(id(message), None)
        while len(self._entries) >= self._max:
            self._entries.pop(next(iter(self._entries)), None)
        self._entries[id(message)] = _Entry(_place(message), weakref.ref(owner), call)

    def responsibility(self, message: object, consumer: object | None) -> Responsibility | None:
        """Take over the open span of ``message``, or open one under its consumer's group."""
        tracing = live.tracing
        if tracing is None or not is_message(message):
            return None
        entry = self._entries.get(id(message))
        if entry is not None and entry.place != _place(message):
            entry = None
        owner: _Owner | None = None if entry is None else entry.owner()
        if entry is not None and entry.call is not None and owner is not None:
            call, entry.call = entry.call, None  # handled a second time it is a second attempt, with its own span
            return owner.take(call)
        owner = getattr(consumer, STATE, None) or owner
        hook = _stranger(tracing) if owner is None else owner.bind(tracing)
        calls = hook.before([incoming(message, None if owner is None else owner.leaders)])
        return OwnSpan(hook, calls[0]) if calls else None


def _stranger(tracing: Tracing) -> ConsumeHook:
    """The hook for a message of a consumer that was never traced: no group, no server is known."""
    return ConsumeHook(tracing=tracing, facts=ClientFacts())


def _place(message: Message) -> tuple[str | None, int | None, int | None]:
    return message.topic(), message.partition(), message.offset()


handed_over: Final = Handover()
