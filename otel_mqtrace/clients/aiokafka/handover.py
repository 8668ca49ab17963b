"""This module knows which consumer handed a record over, so that ``process(record)`` finds its group and its span.

A ``ConsumerRecord`` cannot be hashed but can be referred to weakly: it is found by its identity, and forgotten with it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiokafka import ConsumerRecord

from otel_mqtrace.clients.aiokafka.live import Cluster, known_state, live
from otel_mqtrace.clients.aiokafka.messages import incoming
from otel_mqtrace.hooks._unrecorded import UNHANDLED, note_unrecorded
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing

__all__ = ["Handover", "handed_over"]

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks._left_to_blocks import LeftToBlocks


class _Owner(Protocol):
    cluster: Cluster
    blocks: LeftToBlocks

    def bind(self, tracing: Tracing) -> ConsumeHook: ...

    def take(self, call: ProcessCall) -> Responsibility: ...


class _Entry(weakref.ref[Any]):
    """A record, who handed it over, the automatic span it is in if any, whether it waits for a block instead."""

    __slots__ = ("awaited", "call", "key", "owner")

    key: int
    owner: weakref.ref[Any]
    call: ProcessCall | None
    awaited: bool

    def forgotten(self) -> None:
        """Count it if its block never came."""
        if self.awaited:
            note_unrecorded(UNHANDLED)


class Handover:
    """The records that traced consumers have handed over and that still exist; a source of ``process``."""

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._forget: Callable[[_Entry], None] = _forgetter(self._entries)

    def __len__(self) -> int:
        """How many records are remembered."""
        return len(self._entries)

    def note(self, record: Any, owner: weakref.ref[Any], call: ProcessCall | None, *, awaited: bool = False) -> None:
        """Remember who handed ``record`` over and the automatic span it is in; ``awaited``: a block is to open one."""
        entry = _Entry(record, self._forget)
        entry.key = id(record)
        entry.owner = owner
        entry.call = call
        entry.awaited = awaited
        self._entries[entry.key] = entry

    def forget(self) -> None:
        """Forget every record."""
        for key in list(self._entries):
            entry = self._entries.pop(key, None)
            if entry is not None:
                entry.forgotten()

    def responsibility(self, message: object, consumer: object | None) -> Responsibility | None:
        """Take over the open span of ``message``, or open one under its consumer's group."""
        tracing = live.tracing
        if tracing is None or not isinstance(message, ConsumerRecord):
            return None
        entry = self._entries.get(id(message))
        owner: _Owner | None = None if entry is None else entry.owner()
        if entry is not None:
            entry.awaited = False
        if entry is not None and entry.call is not None and owner is not None:
            call, entry.call = entry.call, None  # handled a second time it is a second attempt, with its own span
            return owner.take(call)
        owner = known_state(consumer) or owner
        hook = _stranger(tracing) if owner is None else owner.bind(tracing)
        if owner is not None:
            owner.blocks.block_came()
        calls = hook.before([incoming(message, None if owner is None else owner.cluster)])
        return OwnSpan(hook, calls[0]) if calls else None


def _forgetter(entries: dict[int, _Entry]) -> Callable[[_Entry], None]:
    def forget(entry: _Entry) -> None:
        if entries.get(entry.key) is entry:
            entries.pop(entry.key, None)
            entry.forgotten()

    return forget


def _stranger(tracing: Tracing) -> ConsumeHook:
    """The hook for a record of a consumer that was never traced: no group, no server is known."""
    return ConsumeHook(tracing=tracing, facts=ClientFacts())


handed_over: Final = Handover()
