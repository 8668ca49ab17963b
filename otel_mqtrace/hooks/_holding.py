"""This module knows what an application has in hand: the process spans of one poll, and which asyncio task has them.

A client that blocks hands over to whoever polls it next: one :class:`Held` is enough. An asyncio consumer may be asked
by several tasks in turn, so a message belongs to the task that was handed it, until that task asks again or ends. Where
the task only fetched (``create_task(consumer.poll())``; ``asyncio.wait_for`` before Python 3.12 runs what it is given
in a task of its own) it ends with the message as its result; that is then in hand until anybody asks again.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from otel_mqtrace.hooks._block import LateSpan, OwnSpan, Responsibility, SharedSpan
from otel_mqtrace.hooks._calls import RecordedCall
from otel_mqtrace.hooks._futures import failure_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._left_behind import end_left_behind, leave, left_behind
from otel_mqtrace.hooks._scope import AutomaticScope
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall

__all__ = ["Held", "LateSpan", "Outcome", "TaskHoldings", "leaving_with"]

Said = tuple[ContextCode, BaseException | None]
Outcome = Callable[["ProcessCall", ContextCode, BaseException | None], Said]
"""Call, how its turn ended → how the call itself ended: for consumers that are told so of each message."""


class Held:
    """What was handed over and not given back yet.

    ``calls`` are open, ``scopes`` current; ``task`` has it (``None``: nobody in particular), ``handed`` is the identity
    of what the poll returned.
    """

    __slots__ = ("_hook", "_shared", "calls", "handed", "scopes", "task")

    def __init__(self) -> None:
        self.calls: list[ProcessCall] = []
        self.scopes: list[AutomaticScope] = []
        self.task: weakref.ref[asyncio.Task[Any]] | None = None
        self.handed = 0
        self._hook: ConsumeHook | None = None
        self._shared: dict[int, SharedSpan] = {}

    def hold(self, hook: ConsumeHook, calls: list[ProcessCall]) -> None:
        """Hold ``calls`` too: whatever another thread came to hold meanwhile must not be lost."""
        self._hook = hook
        self.calls.extend(calls)

    def enter(self, call: ProcessCall) -> None:
        """Make the span of ``call`` current here, unless it has ended already."""
        if not call.ambient or call.is_open:  # one that has ended forgot what was current before it
            self.scopes.append(AutomaticScope(call.lent(), call.ambient))

    def stop(self) -> None:
        """Stop being current, here and wherever else the application went on with what was current at a poll."""
        scopes, self.scopes = self.scopes, []
        for scope in scopes:
            scope.leave()

    def take(self, call: ProcessCall) -> Responsibility | None:
        """Give one held span to the block that handles its message; ``None`` when it is not held here."""
        hook = self._hook
        if hook is None or not any(each is call for each in self.calls):
            return None
        self.stop()
        if call.messages == 1:
            self.calls = [each for each in self.calls if each is not call]
            return OwnSpan(hook, call)
        shared = self._shared.setdefault(id(call), SharedSpan(hook, call))
        shared.blocks += 1
        return shared

    def finish_recorded(self) -> RecordedCall | None:
        """End the one message in hand as the record it is; ``None`` where :meth:`finish` has to look closer.

        This is the next poll of nearly every consumer.
        """
        calls, hook = self.calls, self._hook
        if len(calls) != 1 or hook is None or self._shared:
            return None
        for scope in self.scopes:
            scope.leave()
        self.scopes = []
        if left_behind:
            end_left_behind()
        call = calls[0]
        if type(call) is not RecordedCall or not hook.end_record(call):
            return None
        self.calls = []
        return call

    def finish(
        self,
        code: ContextCode = ContextCode.SUCCESS,
        exception: BaseException | None = None,
        outcome: Outcome | None = None,
    ) -> None:
        """The application is done with all of it; a span that blocks share says what they said.

        How each call ended is what ``outcome`` makes of ``code`` and ``exception``.
        """
        if self.scopes:
            self.stop()
        hook = self._hook
        if not self.calls or hook is None:
            return
        calls, self.calls = self.calls, []
        if not self._shared and outcome is None:  # by far the most
            for call in calls:
                if not call.is_silent:
                    hook.after(call, code=code, exception=exception)
            return
        for call, (said, why) in self._outcomes(calls, code, exception, outcome):
            hook.after(call, code=said, exception=why)

    def abandon(self, outcome: Outcome | None = None) -> None:
        """Nobody is there any more to say how it went; a finaliser may say so, for this records nothing itself."""
        self.stop()
        calls, self.calls = self.calls, []
        if self._hook is not None:
            open_ones = [call for call in calls if not call.is_silent]
            for call, (said, why) in self._outcomes(open_ones, ContextCode.RETURNNULL, None, outcome):
                leave(self._hook, call, code=said, exception=why)

    def _outcomes(
        self, calls: list[ProcessCall], code: ContextCode, exception: BaseException | None, outcome: Outcome | None
    ) -> list[tuple[ProcessCall, Said]]:
        shared, self._shared = self._shared, {}
        said = []
        for call in calls:
            sharing = shared.get(id(call))
            if sharing is not None:
                said.append((call, sharing.worst))
            else:
                said.append((call, (code, exception) if outcome is None else outcome(call, code, exception)))
        return said


class TaskHoldings:
    """What each task has of one consumer. It refers to tasks weakly: their frames know the consumer."""

    def __init__(self) -> None:
        self._held: list[Held] = []
        self._watched: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._ended: Callable[[asyncio.Task[Any]], None] = _teller(weakref.ref(self))

    def __len__(self) -> int:
        """How many polls are not over."""
        return len(self._held)

    def hold(self, hook: ConsumeHook, calls: list[ProcessCall], handed: object) -> Held:
        """The task at hand got ``calls``; ``handed`` is what its poll returned."""
        held = Held()
        held.hold(hook, calls)
        held.handed = id(handed)
        self._held.append(held)
        task = _this_task()
        if task is not None:
            held.task = weakref.ref(task)
            if task not in self._watched:
                self._watched.add(task)
                task.add_done_callback(self._ended)
        return held

    def take(self, call: ProcessCall) -> Responsibility | None:
        """Give one held span to the block that handles its message; ``None`` when no task holds it."""
        return next(filter(None, (held.take(call) for held in list(self._held))), None)

    def finish_mine(self, code: ContextCode = ContextCode.SUCCESS, exception: BaseException | None = None) -> None:
        """The task at hand asks again or closes the consumer: it is done with what it has, and with what nobody has."""
        if not self._held:
            return
        mine = _this_task()
        for held in self._no_longer(lambda held: held.task is None or held.task() in {None, mine}):
            if held.task is not None and held.task() is None:  # collected before it ended
                held.finish(ContextCode.RETURNNULL)
            else:
                held.finish(code, exception)

    def abandon(self) -> None:
        """There is nobody left to say how it went."""
        for held in self._no_longer(lambda _: True):
            held.abandon()

    @guarded("TaskHoldings.task_ended")
    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """A task that had messages in hand is over, and with it their handling, unless it only fetched them."""
        failure = failure_of(task)
        result = None if failure is not None else task.result()
        code = ContextCode.SUCCESS if failure is None else ContextCode.EXCEPTION
        for held in self._no_longer(lambda held: held.task is not None and held.task() is task):
            if result is not None and id(result) == held.handed:
                held.task = None
                self._held.append(held)
            else:
                held.finish(code, failure)

    def _no_longer(self, is_over: Callable[[Held], bool]) -> list[Held]:
        over = [held for held in list(self._held) if is_over(held)]
        self._held = [held for held in self._held if held not in over]
        return over


def leaving_with(args: tuple[Any, ...]) -> BaseException | None:
    """Return the exception a consumer is closed with: the one ``__exit__`` is told of, or the one being handled."""
    return next((each for each in args if isinstance(each, BaseException)), None) or sys.exc_info()[1]


def _this_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here: the garbage collector came by
        return None


def _teller(holdings: weakref.ref[TaskHoldings]) -> Callable[[asyncio.Task[Any]], None]:
    def ended(task: asyncio.Task[Any]) -> None:
        alive = holdings()
        if alive is not None:
            alive.task_ended(task)

    return ended
