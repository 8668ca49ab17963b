"""This module knows which process spans one thread of control holds: open, shared by blocks, and current where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_mqtrace.hooks._scope import AutomaticScope
from otel_mqtrace.hooks.process import OwnSpan, Responsibility, SharedSpan

if TYPE_CHECKING:
    from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall

__all__ = ["Holding"]


class Holding:
    """What was handed over by one poll and not given back yet: by a thread's next poll, or by one asyncio task's."""

    __slots__ = ("_calls", "_scopes", "_shared")

    def __init__(self) -> None:
        self._calls: list[ProcessCall] = []
        self._shared: dict[int, SharedSpan] = {}
        self._scopes: list[AutomaticScope] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held and nothing is current."""
        return not (self._calls or self._scopes)

    def hold(self, calls: list[ProcessCall]) -> None:
        """Hold ``calls`` too: whatever another thread came to hold meanwhile must not be lost."""
        self._calls.extend(calls)

    def enter(self, call: ProcessCall) -> None:
        """Make the span of ``call`` current here until :meth:`leave`."""
        self._scopes.append(AutomaticScope(call.otel_ctx, call.ambient, call.span))

    def leave(self) -> None:
        """Stop being current, here and wherever else the application went on with what was current at a poll."""
        scopes, self._scopes = self._scopes, []
        for scope in scopes:
            scope.leave()

    def give_back(self) -> list[tuple[ProcessCall, SharedSpan | None]]:
        """Return what is held, each with the blocks that share it if any, and hold nothing any more."""
        self.leave()
        if not self._calls:
            return []
        calls, self._calls = self._calls, []
        shared, self._shared = self._shared, {}
        return [(call, shared.get(id(call))) for call in calls]

    def take(self, hook: ConsumeHook, call: ProcessCall) -> Responsibility | None:
        """Give one held span to the block that handles its message; ``None`` when it is not held here."""
        if not any(each is call for each in self._calls):
            return None
        self.leave()
        if call.messages == 1:
            self._calls = [each for each in self._calls if each is not call]
            return OwnSpan(hook, call)
        return self._shared.setdefault(id(call), SharedSpan(hook, call))
