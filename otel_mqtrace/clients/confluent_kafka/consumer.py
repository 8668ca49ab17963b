"""This module knows when a confluent-kafka consumer hands messages over, and when the application is done with them.

Automatic mode: a message belongs to the application from the moment ``poll`` or ``consume`` returns it until the next
call of either, or ``close``. Explicit ``process(message)`` takes a message over from automatic mode.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message, cimpl

from otel_mqtrace.clients.confluent_kafka.handover import handed_over
from otel_mqtrace.clients.confluent_kafka.leaders import leaders_of
from otel_mqtrace.clients.confluent_kafka.live import known_state, live, remembering, state_of
from otel_mqtrace.clients.confluent_kafka.messages import incoming, is_message
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._scope import AutomaticScope
from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall
from otel_mqtrace.hooks.process import OwnSpan, Responsibility, SharedSpan
from otel_mqtrace.hooks.tracing import ClientFacts, Tracing
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["CONSUMER_METHODS", "ORIGINAL_CONSUMER", "ConsumerState"]

ORIGINAL_CONSUMER: Final[type[Any]] = cimpl.Consumer
_MAX_SCOPES: Final = 8
_asyncio_identity: Final = getattr(cimpl, "_reentry_identity_var", None)


class ConsumerState:
    """What one consumer needs to be traced; it never refers to the consumer, or neither would ever be collected."""

    def __init__(self, conf: Mapping[str, Any] | None) -> None:
        known = conf or {}
        group = known.get("group.id")
        self._facts = ClientFacts.of_kafka(known, group_name=None if group is None else str(group))
        self.leaders = leaders_of(known)
        self._hook: ConsumeHook | None = None
        self._tracing: Tracing | None = None
        self._calls: list[ProcessCall] = []
        self._shared: dict[int, SharedSpan] = {}
        self._scopes: list[AutomaticScope] = []
        self.explicit = False
        self.reference: weakref.ref[ConsumerState] = weakref.ref(self)

    def bind(self, tracing: Tracing) -> ConsumeHook:
        """Return the hook of the Tracing in force; a new ``instrument()`` makes a new one."""
        if self._hook is None or self._tracing is not tracing:
            self._hook = ConsumeHook(tracing=tracing, facts=self._facts)
            self._tracing = tracing
            self.explicit = tracing.settings.process_spans == "explicit"
        return self._hook

    @guarded("ConsumerState.finish")
    def finish(self, code: ContextCode = ContextCode.SUCCESS, exception: BaseException | None = None) -> None:
        """The application is done with what it was handed; spans that a block took over are the block's business."""
        if self._scopes:
            self._leave()
        if not self._calls:
            return
        calls, self._calls = self._calls, []
        shared, self._shared = self._shared, {}
        for call in calls:
            if id(call) in shared:
                shared[id(call)].end()
            elif self._hook is not None:
                self._hook.after(call, code=code, exception=exception)

    @guarded("ConsumerState.hand_over")
    def hand_over(self, tracing: Tracing, messages: Sequence[Message], *, start_ns: int, batch: bool) -> None:
        """The application gets ``messages``: open their spans and make the first one current where it was asked for."""
        hook = self.bind(tracing)
        leaders = self.leaders
        received = [incoming(message, leaders) for message in messages]
        hook.received(received, start_ns=start_ns, batch=batch)
        calls = [] if self.explicit else hook.before(received, batch=batch)
        self._calls = calls  # first of all: what is open must be ended, whatever fails from here on
        owners = {index: call for call in calls for index in call.indexes}
        for index, where in enumerate(received):
            place = where.topic, where.partition, where.offset
            handed_over.note(messages[index], place, self.reference, owners.get(index))
        if calls and not _called_by_asyncio():
            self._scopes.append(AutomaticScope(calls[0].otel_ctx, calls[0].ambient, calls[0].span))

    def take(self, call: ProcessCall) -> Responsibility:
        """Give the span of a message to the block that handles it explicitly."""
        hook = self.hook
        if not call.is_open:
            # The next poll came first (another thread handles the messages): one span is right, so no second one;
            # from now on this consumer leaves its messages to the blocks.
            self.explicit = True
            return OwnSpan(hook, call)
        self._leave()
        if call.messages == 1:
            self._calls = [each for each in self._calls if each is not call]
            return OwnSpan(hook, call)
        self.explicit = True
        return self._shared.setdefault(id(call), SharedSpan(hook, call))

    def _leave(self) -> None:
        """Stop being current, here and wherever else the application went on with what was current at a poll."""
        self._scopes = [scope for scope in self._scopes if not scope.leave()][-_MAX_SCOPES:]

    @property
    def hook(self) -> ConsumeHook:
        """The hook in force, one that knows no configuration when none was bound yet."""
        if self._hook is None:
            raise LookupError("the consumer has not handed over anything yet")
        return self._hook

    def abandon(self) -> None:
        """The consumer is gone and nobody said how the last message went."""
        self.finish(ContextCode.RETURNNULL)


def _called_by_asyncio() -> bool:
    """AIOConsumer polls in a pool thread: making a span current there would leak into whatever runs there next."""
    return _asyncio_identity is not None and _asyncio_identity.get(None) is not None


@guarded("Consumer.poll")
def _turn(consumer: Any) -> tuple[ConsumerState, Tracing, int] | None:
    tracing = live.tracing
    if tracing is None:
        return None
    state: ConsumerState | None = state_of(consumer, ConsumerState)
    if state is None:
        return None
    state.finish()
    return state, tracing, tracing.clock.wall_ns()


def _traced_receive(*, batch: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """``poll`` and ``consume``."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
            turn = _turn(self)
            if turn is None:
                return original(self, *args, **kwargs)
            state, tracing, start_ns = turn
            try:
                result = original(self, *args, **kwargs)
            except Exception as exception:
                _unreadable(state, tracing, exception, start_ns)
                raise
            if result is None:
                return None
            messages = [each for each in (result if batch else (result,)) if is_message(each)]
            if messages:
                state.hand_over(tracing, messages, start_ns=start_ns, batch=batch)
            return result

        return receive

    return wrap


@guarded("Consumer.unreadable")
def _unreadable(state: ConsumerState, tracing: Tracing, exception: BaseException, start_ns: int) -> None:
    """A deserialiser refused a message that was consumed all the same: its processing failed before it began."""
    message = getattr(exception, "kafka_message", None)
    if not is_message(message):
        return
    hook = state.bind(tracing)
    received = [incoming(message, state.leaders)]
    hook.received(received, start_ns=start_ns)
    for call in hook.before(received):
        hook.after(call, code=ContextCode.EXCEPTION, exception=exception)


def _traced_assignment(original: Callable[..., Any]) -> Callable[..., Any]:
    """``subscribe`` and ``assign``: the leaders are asked for now, to be known when the first message comes."""

    @functools.wraps(original)
    def assign(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        _expect(self, args)
        return result

    return assign


@guarded("Consumer.assign")
def _expect(consumer: Any, args: tuple[Any, ...]) -> None:
    state: ConsumerState | None = known_state(consumer)
    tracing = live.tracing
    if state is None or state.leaders is None or tracing is None or not args:
        return
    for each in args[0]:
        topic = each if isinstance(each, str) else each.topic
        if not topic.startswith("^") and tracing.traces(topic):
            state.leaders.want(topic)


def _traced_close(original: Callable[..., Any]) -> Callable[..., Any]:
    """``close`` and ``__exit__``: an exception on its way out says that the last message was not handled."""

    @functools.wraps(original)
    def close(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = known_state(self)
        exception = next((each for each in args if isinstance(each, BaseException)), None) or sys.exc_info()[1]
        if state is not None and exception is not None:
            state.finish(ContextCode.EXCEPTION, exception)
        elif state is not None:
            state.finish()
        return original(self, *args, **kwargs)

    return close


CONSUMER_METHODS: Final[Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any] | None]]] = {
    "__init__": remembering("Consumer.__init__", ConsumerState),
    "poll": _traced_receive(batch=False),
    "consume": _traced_receive(batch=True),
    "subscribe": _traced_assignment,
    "assign": _traced_assignment,
    "incremental_assign": _traced_assignment,
    "close": _traced_close,
    "__exit__": _traced_close,
}
"""Method → how to wrap it."""
