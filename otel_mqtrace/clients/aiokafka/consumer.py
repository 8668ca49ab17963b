"""This module knows when an aiokafka consumer hands messages over, and when the application is done with them.

Automatic mode: what ``getone`` (``async for``) or ``getmany`` returned is in the hands of the task that awaited it,
until that task asks again, stops the consumer or ends. Explicit ``process(record)`` takes a message over from it.
"""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import ConsumerStoppedError

from otel_mqtrace.clients.aiokafka.handover import handed_over
from otel_mqtrace.clients.aiokafka.live import Cluster, facts_of, known_state, live, state_of
from otel_mqtrace.clients.aiokafka.messages import error_type, incoming
from otel_mqtrace.clients.alive import Alive
from otel_mqtrace.clients.creations import Creations
from otel_mqtrace.hooks._ending import text_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._holding import LateSpan, TaskHoldings, leaving_with
from otel_mqtrace.hooks._left_to_blocks import LeftToBlocks
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
from otel_mqtrace.hooks.process import Responsibility, SharedSpan
from otel_mqtrace.hooks.settle import SettleHook
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiokafka import ConsumerRecord

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["ConsumerState", "abandon_consumers", "traced_getmany", "traced_getone", "traced_stop"]

_states: Final[Alive[ConsumerState]] = Alive()
_Turn = tuple["ConsumerState", "Tracing", int | None]
"""Whose call begins, under which Tracing, and when; ``None`` where nobody listens to polls."""


class ConsumerState:
    """What one consumer needs to be traced; it never refers to the consumer, or neither would ever be collected."""

    def __init__(self, consumer: Any) -> None:
        connection = consumer._client  # noqa: SLF001 - a producer's is public, a consumer's is not
        group = getattr(consumer, "_group_id", None)
        self.facts = facts_of(connection, group_name=None if group is None else str(group))
        self.cluster = Cluster(connection.cluster)
        self.holdings = TaskHoldings()
        self.positions: dict[tuple[str, int], int] = {}
        self.creations = Creations(self.facts)
        self.reference: weakref.ref[ConsumerState] = weakref.ref(self)
        self.blocks = LeftToBlocks("")
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
            self.blocks = LeftToBlocks(tracing.settings.process_spans)
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
        start_ns: int | None,
        batch: bool,
    ) -> None:
        """The task at hand gets ``records``: open their spans and make the first one current there."""
        hook = self.bind(tracing)
        received = [incoming(record, self.cluster) for record in records]
        if start_ns is not None:
            hook.received(received, start_ns=start_ns, batch=batch)
        if self._settlement is not None:
            self.positions.update({(record.topic, record.partition): record.offset + 1 for record in records})
            self.creations.note(received)
        left = self.blocks.now and self.blocks.left(len(received))
        calls = [] if left else hook.before(received, batch=batch)
        # First of all: what is open must be ended, whatever fails from here on.
        held = self.holdings.hold(hook, calls, handed) if calls else None
        owners = {index: call for call in calls for index in call.indexes}
        for index, record in enumerate(records):
            awaited = left and tracing.traces(record.topic)
            handed_over.note(record, self.reference, owners.get(index), awaited=awaited)
        if held is not None:
            held.enter(calls[0])

    def take(self, call: ProcessCall) -> Responsibility:
        """Give the span of a message to the block that handles it explicitly."""
        taken = self.holdings.take(call)
        if taken is None:  # it asked again first (another task handles the messages): one span is right, no second one
            self.blocks.came_late(self.facts.group_name)
            return LateSpan(call)
        if isinstance(taken, SharedSpan) and taken.is_shared_out:
            self.blocks.one_by_one()
        return taken

    @guarded("ConsumerState.abandon")
    def abandon(self) -> None:
        """The consumer is gone, or tracing is, and nobody said how the last messages went: the next hook ends them."""
        self.holdings.abandon()


def abandon_consumers() -> None:
    """Say of every message in hand that nobody will say how it went: tracing is being switched off."""
    for state in _states.all():
        state.abandon()


@guarded("Consumer.get")
def _turn(consumer: Any) -> _Turn | None:
    tracing = live.tracing
    if tracing is None:
        return None
    state: ConsumerState = state_of(consumer, ConsumerState)
    state.holdings.finish_mine()
    return state, tracing, state.bind(tracing).poll_begins()


@guarded("Consumer.failed")
def _failed(turn: _Turn, exception: BaseException, *, batch: bool) -> None:
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
def _handed(turn: _Turn, handed: Any) -> None:
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
    exception = leaving_with(args)
    code = ContextCode.SUCCESS if exception is None else ContextCode.EXCEPTION
    state.holdings.finish_mine(code, exception)
