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
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import defer_end, failure_of
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.hooks.scope import ProcessSpan, SpanIds


Outcome = tuple[ContextCode, "BaseException | None"]
_ARGUMENTS_OF_EXIT: Final = 3


class Delivery:
    """The handlings of one poll that have not ended: a blocking consumer has one at a time.

    ``task`` has it (``None``: no task), ``handed`` is the identity of what the poll returned.
    """

    def __init__(self) -> None:
        self.calls: list[ProcessSpan] = []
        self.task: weakref.ref[asyncio.Task[Any]] | None = None
        self.handed = 0

    def hold(self, calls: list[ProcessSpan], handed: object) -> Delivery:
        """Keep the handlings of what the application was ``handed``."""
        del handed
        if self.calls:  # two threads were in a poll at once
            self.finish()
        self.calls.extend(calls)
        return self

    def enter(self, call: ProcessSpan) -> None:
        """Make the span of ``call`` current here, unless it has ended already."""
        if not call.previous_ctx or call.is_open:  # an ended one has released what was current before it
            call.enter()
            if call not in self.calls:  # another thread has ended it, or taken it, meanwhile
                call.leave()

    def take(self, wanted: ProcessSpan | SpanIds) -> ProcessSpan | None:
        """Give one handling to the block of its message; ``None`` when it is not held here."""
        call = next((each for each in self.calls if each is wanted or each.ids == wanted), None)
        if call is None:
            return None
        for each in list(self.calls):
            each.leave()
        if call.messages == 1:
            try:
                self.calls.remove(call)  # in one step: other threads may add to the list meanwhile
            except ValueError:  # another thread took it
                return None
        call.blocks += 1
        return call

    def finish(self, code: ContextCode = ContextCode.SUCCESS, exception: BaseException | None = None) -> None:
        """End all of it: the turn of its consumer ended so."""
        for call, (own_code, own_exception) in self._outcomes(code, exception):
            call.hook.after(call, code=own_code, exception=own_exception)

    def abandon(self) -> None:
        """End all of it with an unknown outcome; a finaliser may call this, which records nothing itself."""
        for call, (code, exception) in self._outcomes(ContextCode.RETURNNULL, None):
            defer_end(call.hook, call, code=code, exception=exception)

    def outcome_of(self, call: ProcessSpan, code: ContextCode, exception: BaseException | None) -> Outcome:
        """Return the outcome of ``call``, whose turn ended with ``code``: a failed block's comes first.

        Blocks that succeeded say nothing about messages that had none.
        """
        return (code, exception) if call.worst[0] is ContextCode.SUCCESS else call.worst

    def _outcomes(self, code: ContextCode, exception: BaseException | None) -> list[tuple[ProcessSpan, Outcome]]:
        """Take everything out, one at a time: what another thread adds meanwhile is in this result or stays.

        What open blocks have is theirs to end.
        """
        taken = []
        while self.calls:
            try:
                call = self.calls.pop(0)
            except IndexError:  # another thread took the last one
                break
            call.leave()
            if not call.leave_to_blocks():
                taken.append((call, self.outcome_of(call, code, exception)))
        return taken


class TaskDeliveries:
    """The deliveries of each task of one consumer. References to tasks are weak: their frames refer to the consumer."""

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._watched: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()
        self._ended = partial(_end_task, weakref.ref(self))

    def hold(self, calls: list[ProcessSpan], handed: object) -> Delivery:
        """Give ``calls`` to the current task; ``handed`` is what its poll returned."""
        delivery = Delivery()
        if not calls:
            return delivery
        delivery.calls = calls
        delivery.handed = id(handed)
        self._deliveries.append(delivery)
        task = _current_task()
        if task is not None:
            delivery.task = weakref.ref(task)
            if task not in self._watched:
                self._watched.add(task)
                task.add_done_callback(self._ended)
        return delivery

    def take(self, wanted: ProcessSpan | SpanIds) -> ProcessSpan | None:
        """Give one handling to the block of its message; ``None`` when no task holds it."""
        return next(filter(None, (delivery.take(wanted) for delivery in list(self._deliveries))), None)

    def finish(self, code: ContextCode = ContextCode.SUCCESS, exception: BaseException | None = None) -> None:
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
        over = []
        for delivery in filter(is_over, list(self._deliveries)):
            try:
                self._deliveries.remove(delivery)  # in place: another thread may add to the list meanwhile
            except ValueError:  # another thread ends it
                continue
            over.append(delivery)
        return over


def closing_exception(args: tuple[Any, ...]) -> BaseException | None:
    """Return the exception a consumer is closed with: that of ``__exit__``, else the one being handled.

    A ``with`` that ends well may itself stand in the handler of an earlier exception.
    """
    if len(args) == _ARGUMENTS_OF_EXIT:
        return args[1] if isinstance(args[1], BaseException) else None
    return sys.exc_info()[1]


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here: the garbage collector came by
        return None


def _end_task(deliveries: weakref.ref[TaskDeliveries], task: asyncio.Task[Any]) -> None:
    alive = deliveries()
    if alive is not None:
        alive.task_ended(task)


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

    def expect_blocks(self) -> bool:
        """Return whether messages now handed over are left to their blocks; call this once for each poll."""
        if self.is_on and self._patience is not None and self._waiting >= self._patience:
            self.is_on = False
        return self.is_on

    def record_awaited(self, messages: int) -> None:
        """Record how many traced messages were left to their blocks."""
        self._waiting += messages

    def record_block(self) -> None:
        """Record that a message which was left to its block has it."""
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
