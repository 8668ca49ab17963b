"""Messages in flight: the process spans of one poll, and the asyncio task that has them.

The next poll of a blocking consumer ends the last one's messages: one :class:`Delivery` is enough. Of an asyncio
consumer a message belongs to the task that received it, until that task polls again or ends. A task that only fetched
(``create_task(consumer.poll())``) ends with the message as its result, which then belongs to the next task that polls.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import defer_end, failure_of
from otel_mqtrace.hooks.process import BatchOwner, ProcessSpanOwner, SingleOwner
from otel_mqtrace.hooks.scope import PollScope
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from otel_mqtrace.hooks.consume import ConsumeHook, ProcessSpan, SpanIds


_T = TypeVar("_T")
Outcome = tuple[ContextCode, BaseException | None]
OutcomeOf = Callable[["ProcessSpan", ContextCode, BaseException | None], Outcome]
"""Handling and how its turn ended → outcome: for consumers that get one per message."""


class Delivery:
    """The handlings of one poll.

    ``calls`` are open, ``scopes`` current; ``task`` has it (``None``: no task), ``handed`` is the identity of what the
    poll returned.
    """

    __slots__ = ("_hook", "_shared", "calls", "handed", "scopes", "task")

    def __init__(self) -> None:
        self.calls: list[ProcessSpan] = []
        self.scopes: list[PollScope] = []
        self.task: weakref.ref[asyncio.Task[Any]] | None = None
        self.handed = 0
        self._hook: ConsumeHook | None = None
        self._shared: dict[int, BatchOwner] = {}

    def hold(self, hook: ConsumeHook, calls: list[ProcessSpan]) -> None:
        """Add ``calls``: another thread may have added some meanwhile."""
        self._hook = hook
        self.calls.extend(calls)

    def enter(self, call: ProcessSpan) -> None:
        """Make the span of ``call`` current here, unless it has ended already."""
        if not call.previous_ctx or call.is_open:  # an ended one has released what was current before it
            self.scopes.append(PollScope(call.process_ctx, call, call.previous_ctx))

    def stop(self) -> None:
        """Stop being current, here and wherever else the application took the context."""
        for scope in drain(self.scopes):
            scope.leave()

    def take(self, wanted: ProcessSpan | SpanIds) -> ProcessSpanOwner | None:
        """Give one span to the block that handles its message; ``None`` when it is not held here."""
        hook = self._hook
        call = next((each for each in self.calls if each is wanted or each.ids == wanted), None)
        if hook is None or call is None:
            return None
        self.stop()
        if call.messages == 1:
            try:
                self.calls.remove(call)  # in one step: other threads may add to the list meanwhile
            except ValueError:  # another thread took it
                return None
            return SingleOwner(hook, call)
        shared = self._shared.setdefault(id(call), BatchOwner(hook, call))
        shared.blocks += 1
        return shared

    def finish(
        self,
        code: ContextCode = ContextCode.SUCCESS,
        exception: BaseException | None = None,
        outcome_of: OutcomeOf | None = None,
    ) -> None:
        """End all of it; a span that blocks share gets their outcome, another one what ``outcome_of`` returns."""
        self.stop()
        hook, calls = self._hook, drain(self.calls)
        if hook is None:
            return
        if not self._shared and outcome_of is None:  # every message's: the other way takes a microsecond more
            for call in calls:
                hook.after(call, code=code, exception=exception)
            return
        for call, (own_code, own_exception) in self._outcomes(calls, code, exception, outcome_of):
            hook.after(call, code=own_code, exception=own_exception)

    def abandon(self, outcome_of: OutcomeOf | None = None) -> None:
        """End all of it with an unknown outcome; a finaliser may call this, which records nothing itself."""
        self.stop()
        if self._hook is not None:
            for call, (code, exception) in self._outcomes(drain(self.calls), ContextCode.RETURNNULL, None, outcome_of):
                defer_end(self._hook, call, code=code, exception=exception)

    def _outcomes(
        self, calls: list[ProcessSpan], code: ContextCode, exception: BaseException | None, outcome_of: OutcomeOf | None
    ) -> list[tuple[ProcessSpan, Outcome]]:
        shared, self._shared = self._shared, {}  # in one step: another thread may add a block meanwhile
        own = outcome_of or (lambda _call, *turn: turn)
        owners = [(call, shared.get(id(call))) for call in calls]
        return [(call, owner.worst if owner else own(call, code, exception)) for call, owner in owners]


def drain(items: list[_T]) -> list[_T]:
    """Take everything out, one at a time: what another thread adds meanwhile is in this result or in ``items``."""
    taken: list[_T] = []
    while items:
        try:
            taken.append(items.pop(0))
        except IndexError:  # another thread took the last one
            break
    return taken


class TaskDeliveries:
    """The deliveries of each task of one consumer. References to tasks are weak: their frames refer to the consumer."""

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._watched: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._ended: Callable[[asyncio.Task[Any]], None] = _end_callback(weakref.ref(self))

    def hold(self, hook: ConsumeHook, calls: list[ProcessSpan], handed: object) -> Delivery:
        """Give ``calls`` to the current task; ``handed`` is what its poll returned."""
        delivery = Delivery()
        delivery.hold(hook, calls)
        delivery.handed = id(handed)
        self._deliveries.append(delivery)
        task = _current_task()
        if task is not None:
            delivery.task = weakref.ref(task)
            if task not in self._watched:
                self._watched.add(task)
                task.add_done_callback(self._ended)
        return delivery

    def take(self, call: ProcessSpan | SpanIds) -> ProcessSpanOwner | None:
        """Give one span to the block that handles its message; ``None`` when no task holds it."""
        return next(filter(None, (delivery.take(call) for delivery in list(self._deliveries))), None)

    def finish_current_task(
        self, code: ContextCode = ContextCode.SUCCESS, exception: BaseException | None = None
    ) -> None:
        """End the deliveries of the current task, and those without a task: it polls again or closes the consumer."""
        if not self._deliveries:
            return
        current = _current_task()
        for delivery in list(self._deliveries):
            task = None if delivery.task is None else delivery.task()
            if task is not None and task is not current and task.done():  # its callback has yet to run
                self.task_ended(task)
        for delivery in self._remove(lambda each: each.task is None or each.task() in {None, current}):
            if delivery.task is not None and delivery.task() is None:  # collected before it ended
                delivery.finish(ContextCode.RETURNNULL)
            else:
                delivery.finish(code, exception)

    def abandon(self) -> None:
        """End all with an unknown outcome."""
        for delivery in self._remove(lambda _: True):
            delivery.abandon()

    @guarded("TaskDeliveries.task_ended")
    def task_ended(self, task: asyncio.Task[Any]) -> None:
        """End what a finished task has, unless it only fetched it."""
        failure = failure_of(task)
        result = None if failure is not None else task.result()
        code = ContextCode.SUCCESS if failure is None else ContextCode.EXCEPTION
        for delivery in self._remove(lambda each: each.task is not None and each.task() is task):
            if result is not None and id(result) == delivery.handed:
                delivery.task = None
                self._deliveries.append(delivery)
            else:
                delivery.finish(code, failure)

    def _remove(self, is_over: Callable[[Delivery], bool]) -> list[Delivery]:
        over = [delivery for delivery in list(self._deliveries) if is_over(delivery)]
        self._deliveries = [delivery for delivery in self._deliveries if delivery not in over]
        return over


def leaving_with(args: tuple[Any, ...]) -> BaseException | None:
    """Return the exception a consumer is closed with: an argument of ``__exit__``, or the one being handled."""
    return next((each for each in args if isinstance(each, BaseException)), None) or sys.exc_info()[1]


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here: the garbage collector came by
        return None


def _end_callback(deliveries: weakref.ref[TaskDeliveries]) -> Callable[[asyncio.Task[Any]], None]:
    def ended(task: asyncio.Task[Any]) -> None:
        alive = deliveries()
        if alive is not None:
            alive.task_ended(task)

    return ended


# -- explicit mode ----------------------------------------------------------------------------------------------
_log: Final = logging.getLogger(__name__)
_PATIENCE: Final = 1_000
"""Messages that may wait for their blocks where blocks come late: the backlog of a consumer's workers."""


class ExplicitMode:
    """Whether a consumer's messages are left to the ``process()`` blocks that handle them.

    On if ``process_spans`` is configured so, or once blocks show it: a block came after the next poll had ended its
    message's span, or each message of a batch had a block. It is switched off when blocks stop coming. ``is_on`` holds
    for the next messages.
    """

    __slots__ = ("_has_warned", "_patience", "_waiting", "is_on")

    def __init__(self, process_spans: str) -> None:
        self.is_on = process_spans == "explicit"
        self._patience: int | None = None
        self._has_warned = False
        self._waiting = 0

    def expect_blocks(self, messages: int) -> bool:
        """Return whether ``messages`` now handed over are left to their blocks; call this once for each poll."""
        if self.is_on and self._patience is not None and self._waiting >= self._patience:
            self.is_on = False
        if self.is_on:
            self._waiting += messages
        return self.is_on

    def record_block(self) -> None:
        """A message that was left has its block."""
        self._waiting = max(0, self._waiting - 1)

    def record_late_block(self, group_name: str | None) -> None:
        """A block came after its message's span had ended: a worker handles what was polled before."""
        self._turn_on(_PATIENCE)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "mqtrace: a message of group %s was handled in process() after the next poll had ended its span: "
                "what is polled from now on is left to its blocks (MQTRACE_PROCESS_SPANS=explicit does so from the "
                "first message on)",
                group_name,
            )

    def record_shared_batch(self) -> None:
        """Each message of a batch had its own block; those of the next will, or it was an exception."""
        self._turn_on(1)

    def _turn_on(self, patience: int) -> None:
        if not self.is_on:
            self.is_on, self._patience, self._waiting = True, patience, 0
