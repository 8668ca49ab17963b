"""This module knows which consumer handed a message over, so that ``process(message)`` finds its group and its span.

A ``Message`` is a C object: no attributes, no weak references, no hash. So it is found by its identity, checked against
its topic, partition and offset; the last 10,000 are remembered, and the message itself is not kept alive.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mqtrace.clients.confluent_kafka.live import STATE, live
from otel_mqtrace.clients.confluent_kafka.messages import incoming, is_message, place_of
from otel_mqtrace.hooks._calls import EndedIds, RecordedCall, ended_call
from otel_mqtrace.hooks._unrecorded import UNHANDLED, note_unrecorded
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from confluent_kafka import Message

    from otel_mqtrace.hooks.consume import IncomingMessage

__all__ = ["MAX_REMEMBERED", "Entry", "Handover", "handed_over"]

MAX_REMEMBERED: Final = 10_000


class _Owner(Protocol):
    def take(self, message: Message, call: ProcessCall) -> Responsibility: ...

    def open(self, message: Message, tracing: Tracing) -> Responsibility | None: ...


Entry = tuple[
    str,
    "int | None",
    "int | None",
    int,
    "ProcessCall | weakref.ref[ProcessCall] | EndedIds | None",
    bool,
]
"""Topic, partition and offset; the number of the consumer; its automatic span, if any; whether a block is awaited.

An entry of plain values costs the garbage collector nothing, and there may be 10,000.
"""
_OWNER: Final = 3
_AWAITED: Final = 5


class Handover:
    """The messages that traced consumers have handed over lately; a source of ``process``.

    Callable from any thread without a lock, which a fork could leave locked for ever: each step is one atomic call.
    What a consumer handed over is forgotten with its state.
    """

    def __init__(self, *, max_remembered: int = MAX_REMEMBERED) -> None:
        self._max = max_remembered
        # Not a plain dict: that one skips over everything dropped before to find its oldest entry.
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._owners: dict[int, weakref.ref[Any]] = {}
        self._numbers = itertools.count(1)

    def __len__(self) -> int:
        """How many messages are remembered."""
        return len(self._entries)

    def register(self, owner: Any) -> int:
        """Return the number of a consumer's state; its messages are forgotten when it is collected."""
        number = next(self._numbers)
        self._owners[number] = weakref.ref(owner, lambda _: self._lost(number))
        return number

    def note(
        self,
        messages: Sequence[Message],
        received: Sequence[IncomingMessage],
        owner: int,
        calls: Sequence[ProcessCall | None],
        awaited: AbstractSet[int] = frozenset(),
    ) -> None:
        """Remember which consumer handed ``messages`` over and the automatic span of each.

        ``received`` are their positions, ``owner`` the number of :meth:`register`; ``awaited``: a block is to open one.
        """
        for index, (message, where, call) in enumerate(zip(messages, received, calls, strict=True)):
            kept = None if call is None else call.remembered
            self.remember(id(message), (where.topic, where.partition, where.offset, owner, kept, index in awaited))

    def remember(self, key: int, entry: Entry) -> None:
        """Remember one message by its identity."""
        entries = self._entries
        before = entries.pop(key, None)  # an id that is used again goes to the end
        if before is not None and before[_AWAITED]:
            note_unrecorded(UNHANDLED)
        entries[key] = entry
        while len(entries) > self._max:
            try:
                dropped = entries.popitem(last=False)[1]
            except KeyError:  # another thread was here as well
                return
            if dropped[_AWAITED]:
                note_unrecorded(UNHANDLED)

    def replace_ended(self, call: RecordedCall, key: int, entry: Entry) -> None:
        """Keep only the ids of a message that was handled, if ``entry``, with its ``call``, is what is remembered."""
        topic, partition, offset, owner, known, _ = entry
        if known is call and self._entries.get(key) is entry:
            self._entries[key] = (topic, partition, offset, owner, call.ended_ids, False)

    def forget(self) -> None:
        """Forget every message."""
        self._drop(list(self._entries))

    def _lost(self, owner: int) -> None:
        self._owners.pop(owner, None)
        entries = self._entries
        self._drop([key for key in list(entries) if (entry := entries.get(key)) is not None and entry[_OWNER] == owner])

    def _drop(self, keys: list[int]) -> None:
        for key in keys:
            entry = self._entries.pop(key, None)
            if entry is not None and entry[_AWAITED]:
                note_unrecorded(UNHANDLED)

    def _owner(self, number: int) -> _Owner | None:
        reference: Callable[[], _Owner | None] | None = self._owners.get(number)
        return None if reference is None else reference()

    def responsibility(self, message: object, consumer: object | None) -> Responsibility | None:
        """Take over the open span of ``message``, or open one under its consumer's group."""
        tracing = live.tracing
        if tracing is None or not is_message(message):
            return None
        key = id(message)
        entry = self._entries.get(key)
        owner: _Owner | None = None
        if entry is not None and entry[:_OWNER] == place_of(message):
            owner = self._owner(entry[_OWNER])
            topic, partition, offset, number, call, _ = entry
            # Handled a second time it is a second attempt, with its own span.
            if self._entries.get(key) is entry:
                self._entries[key] = (topic, partition, offset, number, None if owner is not None else call, False)
            held = call() if isinstance(call, weakref.ref) else call
            if owner is not None and held is not None:
                return owner.take(message, ended_call(held) if isinstance(held, EndedIds) else held)
        own: _Owner | None = getattr(consumer, STATE, None) or owner
        return _opened(message, tracing) if own is None else own.open(message, tracing)


def _opened(message: Message, tracing: Tracing) -> Responsibility | None:
    """Open a span for a message of a consumer that was never traced: no group, no server is known."""
    hook = ConsumeHook(tracing=tracing, facts=ClientFacts())
    calls = hook.before(incoming([message]))
    return OwnSpan(hook, calls[0]) if calls else None


handed_over: Final = Handover()
