"""This module knows which consumer handed a message over, so that ``process(message)`` finds its group and its span.

A ``Message`` is a C object: no attributes, no weak references, no hash. So it is found by its identity, checked against
its topic, partition and offset; the last 10,000 are remembered, and the message itself is not kept alive.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mqtrace.clients.confluent_kafka.live import STATE, live
from otel_mqtrace.clients.confluent_kafka.messages import incoming, is_message, place_of
from otel_mqtrace.hooks._unrecorded import UNHANDLED, note_unrecorded
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from confluent_kafka import Message

    from otel_mqtrace.hooks.consume import IncomingMessage

__all__ = ["MAX_REMEMBERED", "Handover", "handed_over"]

MAX_REMEMBERED: Final = 10_000


class _Owner(Protocol):
    def take(self, message: Message, call: ProcessCall) -> Responsibility: ...

    def open(self, message: Message, tracing: Tracing) -> Responsibility | None: ...


@dataclass(slots=True)
class _Entry:
    """Where a message lies, whose it is, its automatic span if it has one, whether it waits for a block instead."""

    place: tuple[str, int | None, int | None]
    owner: weakref.ref[Any]
    call: ProcessCall | weakref.ref[ProcessCall] | None
    awaited: bool = False

    def forgotten(self) -> None:
        """Count it if its block never came."""
        if self.awaited:
            note_unrecorded(UNHANDLED)


class Handover:
    """The messages that traced consumers have handed over lately; a source of ``process``.

    Callable from any thread without a lock, which a fork could leave locked for ever: each step is one atomic call.
    What a consumer handed over is forgotten with its state.
    """

    def __init__(self, *, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max = max_remembered
        # Not a plain dict: that one skips over everything dropped before to find its oldest entry.
        self._entries: OrderedDict[int, _Entry] = OrderedDict()

    def __len__(self) -> int:
        """How many messages are remembered."""
        return len(self._entries)

    def note(
        self,
        messages: Sequence[Message],
        received: Sequence[IncomingMessage],
        owner: weakref.ref[Any],
        calls: Sequence[ProcessCall | None],
        awaited: AbstractSet[int] = frozenset(),
    ) -> None:
        """Remember who handed ``messages`` over and the automatic span of each; ``awaited``: a block is to open one.

        ``received`` says where each lies.
        """
        entries = self._entries
        for message, where, call in zip(messages, received, calls, strict=True):
            self.remember(message, (where.topic, where.partition, where.offset), owner, call)
        for index in awaited:
            entry = entries.get(id(messages[index]))
            if entry is not None:
                entry.awaited = True

    def remember(
        self,
        message: Message,
        place: tuple[str, int | None, int | None],
        owner: weakref.ref[Any],
        call: ProcessCall | None,
    ) -> None:
        """Remember who handed one message over, where it lies, and its automatic span."""
        entries = self._entries
        key = id(message)
        before = entries.pop(key, None)  # an id that is used again goes to the end
        if before is not None:
            before.forgotten()
        entries[key] = _Entry(place, owner, None if call is None else call.remembered)
        while len(entries) > self._max:
            try:
                entries.popitem(last=False)[1].forgotten()
            except KeyError:  # another thread was here as well
                return

    def reference(self, owner: Any) -> weakref.ref[Any]:
        """Return a reference to a consumer's state, to be noted with its messages, which are forgotten with it."""
        return weakref.ref(owner, self._lost)

    def forget(self) -> None:
        """Forget every message."""
        self._drop(list(self._entries))

    def _lost(self, owner: weakref.ref[Any]) -> None:
        entries = self._entries
        self._drop([key for key in list(entries) if (entry := entries.get(key)) is not None and entry.owner is owner])

    def _drop(self, keys: list[int]) -> None:
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None:
                entry.forgotten()

    def responsibility(self, message: object, consumer: object | None) -> Responsibility | None:
        """Take over the open span of ``message``, or open one under its consumer's group."""
        tracing = live.tracing
        if tracing is None or not is_message(message):
            return None
        entry = self._entries.get(id(message))
        if entry is not None and entry.place != place_of(message):
            entry = None
        owner: _Owner | None = None if entry is None else entry.owner()
        if entry is not None:
            entry.awaited = False
        if entry is not None and owner is not None:
            call, entry.call = entry.call, None  # handled a second time it is a second attempt, with its own span
            held = call() if isinstance(call, weakref.ref) else call
            if held is not None:
                return owner.take(message, held)
        owner = getattr(consumer, STATE, None) or owner
        return _opened(message, tracing) if owner is None else owner.open(message, tracing)


def _opened(message: Message, tracing: Tracing) -> Responsibility | None:
    """Open a span for a message of a consumer that was never traced: no group, no server is known."""
    hook = ConsumeHook(tracing=tracing, facts=ClientFacts())
    calls = hook.before(incoming([message]))
    return OwnSpan(hook, calls[0]) if calls else None


handed_over: Final = Handover()
