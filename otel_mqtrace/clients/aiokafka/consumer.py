"""This module knows when an aiokafka consumer hands messages over, and when the application is done with them.

Automatic mode: what ``getone`` (``async for``) or ``getmany`` returned is in the hands of the task that awaited it,
until that task asks again, stops the consumer or ends. Explicit ``process(record)`` takes a message over from it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import ConsumerStoppedError

from otel_mqtrace.clients.aiokafka.handover import handed_over
from otel_mqtrace.clients.aiokafka.live import Cluster, facts_of, known_state, live, state_of
from otel_mqtrace.clients.aiokafka.messages import error_type, incoming
from otel_mqtrace.clients.aiokafka.turns import Turn, Turns
from otel_mqtrace.hooks._ending import text_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility
from otel_mqtrace.hooks.settle import SettleHook
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiokafka import ConsumerRecord

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["ConsumerState", "abandon_consumers", "traced_getmany", "traced_getone", "traced_stop"]

_states: Final[weakref.WeakSet[ConsumerState]] = weakref.WeakSet()


class ConsumerState:
    """What one consumer needs to be traced; it never refers to the consumer, or neither would ever be collected."""

    def __init__(self, consumer: Any) -> None:
        connection = consumer._client  # noqa: SLF001 - a producer's is public, a consumer's is not
        group = getattr(consumer, "_group_id", None)
        self.facts = facts_of(connection, group_name=None if group is None else str(group))
        self.cluster = Cluster(connection.cluster)
        self.turns = Turns()
        self.positions: dict[tuple[str, int], int] = {}
        self.reference: weakref.ref[ConsumerState] = weakref.ref(self)
        self._explicit = False
        self._hook: ConsumeHook | None = None
        self._settlement: SettleHook | None = None
        self._tracing: Tracing | None = None
        _states.add(self)

    def bind(self, tracing: Tracing) -> ConsumeHook:
        """Return the hook of the Tracing in force; a new ``instrument()`` makes a new one."""
        if self._hook is None or self._tracing is not tracing:
            self._hook = ConsumeHook(tracing=tracing, facts=self.facts)
            self._settlement = SettleHook(tracing=tracing, facts=self.facts) if tracing.settings.settle_spans else None
            self._tracing = tracing
            self._explicit = tracing.settings.process_spans == "explicit"
        return self._hook

    def settlement_of(self, tracing: Tracing) -> SettleHook | None:
        """Return the hook for commits, or ``None`` when they are not recorded."""
        self.bind(tracing)
        return self._settlement

    @guarded("ConsumerState.hand_over")
    def hand_over(
        self,
        tracing: Tracing,
        records: Sequence[ConsumerRecord[Any, Any]],
        handed: object,
        *,
        start_ns: int,
        batch: bool,
    ) -> None:
        """The task at hand gets ``records``: open their spans and make the first one current there."""
        hook = self.bind(tracing)
        received = [incoming(record, self.cluster) for record in records]
        hook.received(received, start_ns=start_ns, batch=batch)
        if self._settlement is not None:
            self.positions.update({(record.topic, record.partition): record.offset + 1 for record in records})
        calls = [] if self._explicit else hook.before(received, batch=batch)
        turn = Turn(hook, calls, handed) if calls else None
        if turn is not None:  # first of all: what is open must be ended, whatever fails from here on
            self.turns.begin(turn)
        owners = {index: call for call in calls for index in call.indexes}
        for index, record in enumerate(records):
            handed_over.note(record, self.reference, owners.get(index))
        if turn is not None:
            turn.enter()

    def take(self, call: ProcessCall) -> Responsibility:
        """Give the span of a message to the block that handles it explicitly."""
        if self._hook is None:
            raise LookupError("the consumer has not handed over anything yet")
        turn = self.turns.of(call)
        if turn is None:
            # It asked again first (another task handles the messages): one span is right, so no second one;
            # from now on this consumer leaves its messages to the blocks.
            self._explicit = True
            return OwnSpan(self._hook, call)
        if call.messages > 1:
            self._explicit = True
        return turn.take(call)

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """The consumer is gone, or tracing is, and nobody said how the last messages went."""
        self.turns.end_all(ContextCode.RETURNNULL)


def abandon_consumers() -> None:
    """End the span of every message that is in hand now: tracing is being switched off."""
    for state in list(_states):
        state.abandon()


@guarded("getone.before")
def _turn(consumer: Any) -> tuple[ConsumerState, Tracing, int] | None:
    tracing = live.tracing
    if tracing is None:
        return None
    state: ConsumerState = state_of(consumer, ConsumerState)
    state.turns.end_mine()
    return state, tracing, tracing.clock.wall_ns()


@guarded("getone.failed")
def _failed(turn: tuple[ConsumerState, Tracing, int], exception: BaseException, *, batch: bool) -> None:
    if isinstance(exception, ConsumerStoppedError):
        return  # nothing is wrong: the consumer was stopped while somebody waited
    state, tracing, start_ns = turn
    state.bind(tracing).poll_failed(
        start_ns=start_ns,
        error=error_type(exception),
        description=text_of(exception),
        exception=exception,
        batch=batch,
    )


def traced_getone(original: Callable[..., Any]) -> Callable[..., Any]:
    """``getone``; ``async for`` calls it."""

    @functools.wraps(original)
    async def getone(self: Any, *args: Any, **kwargs: Any) -> Any:
        turn = _turn(self)
        if turn is None:
            return await original(self, *args, **kwargs)
        try:
            record = await original(self, *args, **kwargs)
        except Exception as exception:
            _failed(turn, exception, batch=False)
            raise
        state, tracing, start_ns = turn
        state.hand_over(tracing, (record,), record, start_ns=start_ns, batch=False)
        return record

    return getone


def traced_getmany(original: Callable[..., Any]) -> Callable[..., Any]:
    """``getmany``."""

    @functools.wraps(original)
    async def getmany(self: Any, *args: Any, **kwargs: Any) -> Any:
        turn = _turn(self)
        if turn is None:
            return await original(self, *args, **kwargs)
        try:
            handed = await original(self, *args, **kwargs)
        except Exception as exception:
            _failed(turn, exception, batch=True)
            raise
        _handed(turn, handed)
        return handed

    return getmany


@guarded("getmany.handed")
def _handed(turn: tuple[ConsumerState, Tracing, int], handed: Any) -> None:
    state, tracing, start_ns = turn
    records = [record for several in handed.values() for record in several]
    if records:
        state.hand_over(tracing, records, handed, start_ns=start_ns, batch=True)
    else:
        state.bind(tracing).empty(start_ns=start_ns, batch=True)


def traced_stop(original: Callable[..., Any]) -> Callable[..., Any]:
    """``stop`` and ``__aexit__``: an exception on its way out says that the last message was not handled."""

    @functools.wraps(original)
    async def stop(self: Any, *args: Any, **kwargs: Any) -> Any:
        _stopping(self, args)
        return await original(self, *args, **kwargs)

    return stop


@guarded("Consumer.stop")
def _stopping(consumer: Any, args: tuple[Any, ...]) -> None:
    state: ConsumerState | None = known_state(consumer)
    if state is None:
        return
    exception = next((each for each in args if isinstance(each, BaseException)), None) or sys.exc_info()[1]
    code = ContextCode.SUCCESS if exception is None else ContextCode.EXCEPTION
    state.turns.end_mine(code, exception)
