"""This module knows the asyncio consumers: what a task was handed is the task's until it polls again, or ends.

The client polls in a pool thread; the span opens where the message arrives, in the coroutine that awaited it, and is
current there. The consumer inside, which does the work in the pool, is silent. Several tasks may share one consumer:
each holds its own messages. Where the poll is a task of its own (``create_task``, ``gather``; ``wait_for`` before
Python 3.12) the span cannot become current in whoever awaits it, and ends with the next poll of any task.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.confluent_kafka.consume.consumer import leaving_with, refused, returned
from otel_mqtrace.clients.confluent_kafka.consume.consumer_state import ConsumerState
from otel_mqtrace.clients.confluent_kafka.consume.holding import Holding
from otel_mqtrace.clients.confluent_kafka.consume.settling import Settles, begun, offsets_asked
from otel_mqtrace.clients.confluent_kafka.live import STATE, known_state, live
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from otel_mqtrace.hooks.tracing import Tracing

__all__ = ["AIO_CONSUMER_METHODS", "ASYNC_DESERIALIZING_CONSUMER_METHODS", "AioState"]

_polling: Final[ContextVar[object]] = ContextVar("mqtrace-polling", default=None)
"""The state whose poll is under way in this task: a subclass's poll awaits its parent's."""


class AioState(ConsumerState):
    """The state of an asyncio consumer, which is about the same as ``inner``, that of the consumer it wraps."""

    def __init__(self, inner: ConsumerState | None) -> None:
        super().__init__(None, like=inner)
        self._held: dict[int, Holding] = {}
        self._results: dict[int, int] = {}
        self._orphans: list[Holding] = []
        self._itself: weakref.ref[AioState] = weakref.ref(self)

    def holding(self) -> Holding:
        """Return what the current task holds."""
        task = _current_task()
        if task is None:
            return self._holding
        key = id(task)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = Holding()
            task.add_done_callback(functools.partial(_ended, self._itself))
            weakref.finalize(task, _lost, self._itself, key)
        return held

    def holdings(self) -> Iterable[Holding]:
        """Return what each task holds, and what no task does any more."""
        return [self._holding, *list(self._held.values()), *self._orphans]

    def next_turn(self) -> None:
        """The current task polls again; what tasks left behind that did nothing but poll is done with as well."""
        super().next_turn()
        orphans, self._orphans = self._orphans, []
        for orphan in orphans:
            self.end(orphan, ContextCode.SUCCESS, None)

    @guarded("AioState.closing")
    def closing(self, exception: BaseException | None) -> None:
        """The current task closes the consumer; how it went in the others that still hold something nobody said."""
        super().closing(exception)
        orphans, self._orphans = self._orphans, []
        for orphan in orphans:
            self.end(orphan, ContextCode.SUCCESS if exception is None else ContextCode.EXCEPTION, exception)
        self.abandon()

    def polled(self, result: object) -> None:
        """Remember what the current task's poll returned, by its identity: it may be all that the task ever does."""
        task = _current_task()
        if task is not None:
            self._results[id(task)] = id(result)

    @guarded("AioState.ended")
    def ended(self, task: asyncio.Task[Any]) -> None:
        """A task that polled is over; one that returned just what it polled leaves it to whoever awaited it."""
        held, result = self._held.pop(id(task), None), self._results.pop(id(task), None)
        if held is None or held.is_empty:
            return
        if task.cancelled():
            self.end(held, ContextCode.RETURNNULL, None)
            return
        # Not exception(): asking for it would keep asyncio from complaining of one that nobody asked for.
        exception = getattr(task, "_exception", None)
        if exception is not None:
            self.end(held, ContextCode.EXCEPTION, exception)
        elif id(task.result()) == result:
            self._orphans.append(held)
        else:
            self.end(held, ContextCode.SUCCESS, None)

    @guarded("AioState.lost")
    def lost(self, key: int) -> None:
        """A task was collected, perhaps before it ended."""
        self._results.pop(key, None)
        held = self._held.pop(key, None)
        if held is not None:
            self.end(held, ContextCode.RETURNNULL, None)


def _ended(state: weakref.ref[AioState], task: asyncio.Task[Any]) -> None:
    alive = state()
    if alive is not None:
        alive.ended(task)


def _lost(state: weakref.ref[AioState], key: int) -> None:
    alive = state()
    if alive is not None:
        alive.lost(key)


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


def _state_of(consumer: Any) -> AioState | None:
    """Return the consumer's state, making it, and silencing the consumer inside, at its first use."""
    state: AioState | None = known_state(consumer)
    if state is None and hasattr(consumer, "__dict__"):
        inner: ConsumerState | None = known_state(getattr(consumer, "_consumer", None))
        if inner is not None:
            inner.silent = True
        state = AioState(inner)
        consumer.__dict__[STATE] = state
        weakref.finalize(consumer, state.abandon)
    return state


@guarded("AIOConsumer.poll")
def _turn(consumer: Any) -> tuple[AioState, Tracing, int] | None:
    tracing = live.tracing
    state: AioState | None
    if tracing is None:
        state = known_state(consumer)
        if state is not None:
            state.abandon()
        return None
    state = _state_of(consumer)
    if state is None or _polling.get() is state:
        return None
    state.next_turn()
    return state, tracing, tracing.clock.wall_ns()


def _traced_receive(*, batch: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``poll`` and ``consume``: what is set in an awaited coroutine stays set in the task that awaits it."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
            turn = _turn(self)
            if turn is None:
                return await original(self, *args, **kwargs)
            state, tracing, start_ns = turn
            _polling.set(state)
            try:
                result = await original(self, *args, **kwargs)
            except Exception as exception:
                refused(state, tracing, exception, start_ns=start_ns, batch=batch)
                raise
            finally:
                _polling.set(None)  # not by a token: a coroutine may be closed in another context
            if result is not None or tracing.settings.empty_poll_spans:
                returned(state, tracing, result, start_ns=start_ns, batch=batch)
                state.polled(result)
            return result

        return receive

    return wrap


def _traced_close(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    async def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        state: AioState | None = known_state(self)
        if state is not None:
            state.closing(leaving_with(args))
        return await original(self, *args, **kwargs)

    return close


def _traced_settlement(operation: str, settles: Settles) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        async def settle(self: Any, *args: Any, **kwargs: Any) -> Any:
            settlement = begun(_state_of, self, operation, settles, (args, kwargs))
            if settlement is None:
                return await original(self, *args, **kwargs)
            try:
                result = await original(self, *args, **kwargs)
            except BaseException as exception:
                settlement.failed(exception)
                raise
            settlement.done(result)
            return result

        return settle

    return wrap


AIO_CONSUMER_METHODS: Final[Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any] | None]]] = {
    "poll": _traced_receive(batch=False),
    "consume": _traced_receive(batch=True),
    "commit": _traced_settlement("commit", offsets_asked),
    "store_offsets": _traced_settlement("store", offsets_asked),
    "close": _traced_close,
    "__aexit__": _traced_close,
}
"""Method of ``AIOConsumer`` → how to wrap it."""

ASYNC_DESERIALIZING_CONSUMER_METHODS: Final[Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any] | None]]] = {
    name: AIO_CONSUMER_METHODS[name] for name in ("poll", "consume", "close")
}
"""The same for ``AsyncDeserializingConsumer``: what it overrides, to see which message a deserialiser refused."""
