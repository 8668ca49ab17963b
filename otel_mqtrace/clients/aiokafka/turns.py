"""This module knows which task has which messages in hand.

aiokafka lets several tasks ask one consumer in turn, so a message belongs to the task that was handed it: until that
task asks again, or ends. Where the task only fetched (``asyncio.wait_for`` before Python 3.12 runs what it is given in
a task of its own) it ends with the message as its result; the message is then in hand until anybody asks again.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

from otel_mqtrace.clients.aiokafka.futures import failure_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._scope import AutomaticScope
from otel_mqtrace.hooks.process import OwnSpan, Responsibility, SharedSpan
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall

__all__ = ["Turn", "Turns"]


class Turn:
    """What one call of ``getone`` or ``getmany`` handed over, and to which task."""

    __slots__ = ("_calls", "_hook", "_scope", "_shared", "handed", "task")

    def __init__(self, hook: ConsumeHook, calls: list[ProcessCall], handed: object) -> None:
        self._hook = hook
        self._calls = calls
        self._shared: dict[int, SharedSpan] = {}
        self._scope: AutomaticScope | None = None
        self.handed = id(handed)
        self.task: weakref.ref[asyncio.Task[Any]] | None = None

    def enter(self) -> None:
        """Make the first span current in the task at hand."""
        call = self._calls[0]
        self._scope = AutomaticScope(call.otel_ctx, call.ambient, call.span)

    def take(self, call: ProcessCall) -> Responsibility:
        """Give the span of a message to the block that handles it explicitly."""
        self._leave()
        if call.messages == 1:
            self._calls = [each for each in self._calls if each is not call]
            return OwnSpan(self._hook, call)
        return self._shared.setdefault(id(call), SharedSpan(self._hook, call))

    def holds(self, call: ProcessCall) -> bool:
        """Whether ``call`` is one of these."""
        return any(each is call for each in self._calls)

    def finish(self, code: ContextCode, exception: BaseException | None) -> None:
        """The application is done with all of it; a span that blocks share says what they said."""
        self._leave()
        calls, self._calls = self._calls, []
        for call in calls:
            shared = self._shared.pop(id(call), None)
            if shared is not None:
                shared.end()
            else:
                self._hook.after(call, code=code, exception=exception)

    def _leave(self) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.leave()


class Turns:
    """The turns of one consumer that are not over. It refers to tasks weakly: their frames know the consumer."""

    def __init__(self) -> None:
        self._open: list[Turn] = []
        self._watched: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._ended: Callable[[asyncio.Task[Any]], None] = _teller(weakref.ref(self))

    def __len__(self) -> int:
        """How many are not over."""
        return len(self._open)

    def begin(self, turn: Turn) -> None:
        """The task at hand got something."""
        self._open.append(turn)
        task = _this_task()
        if task is None:
            return
        turn.task = weakref.ref(task)
        if task not in self._watched:
            self._watched.add(task)
            task.add_done_callback(self._ended)

    def of(self, call: ProcessCall) -> Turn | None:
        """Return the turn that ``call`` is of, if it is not over."""
        return next((turn for turn in self._open if turn.holds(call)), None)

    def end_mine(self, code: ContextCode = ContextCode.SUCCESS, exception: BaseException | None = None) -> None:
        """The task at hand asks again or stops the consumer: it is done with what it had, and what nobody has."""
        if self._open:
            mine = _this_task()
            over = [turn for turn in self._open if turn.task is None or turn.task() in {None, mine}]
            self._end(over, code, exception)

    def end_all(self, code: ContextCode) -> None:
        """There is nobody left to say how it went."""
        self._end(list(self._open), code, None)

    @guarded("Turns.task_ended")
    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """A task that had messages in hand is over, and with it their handling, unless it only fetched them."""
        failure = failure_of(task)
        result = None if failure is not None else task.result()
        over = []
        for turn in [each for each in self._open if each.task is not None and each.task() is task]:
            if result is not None and id(result) == turn.handed:
                turn.task = None
            else:
                over.append(turn)
        self._end(over, ContextCode.SUCCESS if failure is None else ContextCode.EXCEPTION, failure)

    def _end(self, over: list[Turn], code: ContextCode, exception: BaseException | None) -> None:
        self._open = [turn for turn in self._open if turn not in over]
        for turn in over:
            turn.finish(code, exception)


def _this_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here: the garbage collector came by
        return None


def _teller(turns: weakref.ref[Turns]) -> Callable[[asyncio.Task[Any]], None]:
    def ended(task: asyncio.Task[Any]) -> None:
        alive = turns()
        if alive is not None:
            alive.task_ended(task)

    return ended
