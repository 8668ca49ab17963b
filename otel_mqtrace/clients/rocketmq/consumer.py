"""Consumption from RocketMQ and its settlement: the simple consumer, and the push consumer's listener."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from opentelemetry import context, trace

from otel_mqtrace.clients.rocketmq.client import describe_error, observe_call
from otel_mqtrace.clients.rocketmq.consumer_state import RocketMqConsumerState, consumer_state
from otel_mqtrace.clients.rocketmq.messages import ReceivedMessage, incoming, received_of, settled
from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.scope import BlockScope, ambient_context
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mqtrace.clients.patching import Wrapper, Wrappers
    from otel_mqtrace.hooks.consume import ProcessSpan
    from otel_mqtrace.hooks.settle import SettleCall


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs.get(name)


def _traced_receive(*, enter: bool) -> Wrapper:
    """``receive``; ``receive_async`` hands over in a thread of the client, where none of the messages is entered."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
            state = consumer_state(self)
            if state is None:
                return original(self, *args, **kwargs)
            state.next_turn()
            start_ns = state.hook.now_ns()
            seconds = _argument(args, kwargs, 1, "invisible_duration")

            def observe(messages: Any, exception: BaseException | None) -> None:
                if exception is not None:
                    _failed(state, exception, start_ns)
                else:
                    state.hand_over(messages or (), seconds, start_ns=start_ns, enter=enter)

            return observe_call(lambda: original(self, *args, **kwargs), observe, ambient_context())

        return receive

    return wrap


@guarded("rocketmq.receive")
def _failed(state: RocketMqConsumerState, exception: BaseException, start_ns: int) -> None:
    error, description = describe_error(exception)
    state.hook.poll_failed(start_ns=start_ns, error=error, description=description, exception=exception, batch=True)


def _traced_shutdown(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = consumer_state(self)
        if state is not None:
            state.close()
        return original(self, *args, **kwargs)

    return shutdown


# -- settling -------------------------------------------------------------------------------------------------------
def _traced_settling(
    operation: str,
    *,
    before: Callable[[RocketMqConsumerState, ReceivedMessage], object] | None = None,
    after: Callable[[RocketMqConsumerState, ReceivedMessage, float | None], object] | None = None,
) -> Wrapper:
    """A method that settles a message, or its async form; ``after`` gets the new invisible duration.

    An acknowledged message is handled ``before`` the broker answers, and its settlement ends with that answer. One
    whose invisible duration changed stays in flight for longer, or returns after it.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def settle(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
            state = consumer_state(self)
            if state is None:
                return original(self, message, *args, **kwargs)
            received = received_of(message)
            call = _begun(state, operation, received)
            if before is not None:
                before(state, received)
            result = _settling(state, call, message, lambda: original(self, message, *args, **kwargs))
            if after is not None:
                after(state, received, _argument(args, kwargs, 0, "invisible_duration"))
            return result

        return settle

    return wrap


def _begun(state: RocketMqConsumerState, operation: str, received: ReceivedMessage) -> SettleCall | None:
    """Begin a settlement, under the message's own span unless the application has another one open."""
    current = context.get_current()
    own_open = ambient_context() is current and trace.get_current_span(current).get_span_context().is_valid
    if own_open or received.handled_in is None:
        return state.settle.before(operation)
    scope = BlockScope(received.handled_in)
    try:
        return state.settle.before(operation)
    finally:
        scope.leave()


def _settling(state: RocketMqConsumerState, call: SettleCall | None, message: Any, settle: Callable[[], Any]) -> Any:
    if call is None:
        return settle()

    @guarded("rocketmq.settle")
    def observe(_: Any, exception: BaseException | None) -> None:
        error, description = (None, None) if exception is None else describe_error(exception)
        state.settle.after(call, [settled(message)], error=error, description=description, exception=exception)

    return observe_call(settle, observe, None)


# -- the listener of a push consumer --------------------------------------------------------------------------------
_CODES: Final[Mapping[str, ContextCode]] = {"SUCCESS": ContextCode.SUCCESS, "FAILURE": ContextCode.FAILED}
"""``ConsumeResult`` by name: the oldest clients have none."""


class TracedListener:
    """The application's listener, with a process span for each call; without tracing, that listener alone.

    A FIFO consumer calls again for a message that was not consumed, here and now: each call is a separate try.
    """

    def __init__(self, listener: Any, consumer: Any) -> None:
        self._listener = listener
        self._consumer = ref(consumer)

    def __getattr__(self, name: str) -> Any:
        """Behave as the application's listener does."""
        return getattr(self._listener, name)

    def consume(self, message: Any) -> Any:
        """Call the listener; what it raises goes to the client, which takes it for a failure."""
        state = consumer_state(self._consumer())
        opened = None if state is None else _opened(state, message)
        if state is None or opened is None:
            return self._listener.consume(message)
        received, call, scope = opened
        try:
            result = self._listener.consume(message)
        except BaseException as exception:
            _ended(state, received, call, scope, ContextCode.EXCEPTION, exception)
            raise
        _ended(state, received, call, scope, _CODES.get(getattr(result, "name", ""), ContextCode.RETURNNULL))
        return result


@guarded("rocketmq.listener")
def _opened(state: RocketMqConsumerState, message: Any) -> tuple[ReceivedMessage, ProcessSpan, BlockScope] | None:
    received = received_of(message)
    received.tries += 1
    calls = state.hook.before([incoming(message)])
    if not calls:
        return None
    received.holder, received.listening = state, True
    received.handle_in(calls[0])
    return received, calls[0], BlockScope(calls[0].otel_ctx)


@guarded("rocketmq.listened")
def _ended(  # noqa: PLR0913, PLR0917 - what was opened, and how it ended
    state: RocketMqConsumerState,
    received: ReceivedMessage,
    call: ProcessSpan,
    scope: BlockScope,
    code: ContextCode,
    exception: BaseException | None = None,
) -> None:
    scope.leave()
    received.listening, received.call = False, None
    state.hook.after(call, code=code, exception=exception)


def standing_in(name: str, stand_in: Callable[[Any, Any], Any]) -> Wrapper:
    """Return the wrapper of a client's ``__init__`` that puts ``stand_in(given, client)`` for its argument ``name``."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes that method
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError:  # the client raises it itself
                original(self, *args, **kwargs)
                return
            if bound.arguments.get(name) is not None:
                bound.arguments[name] = stand_in(bound.arguments[name], self)
            original(*bound.args, **bound.kwargs)

        return __init__

    return wrap


_ack: Final = _traced_settling("ack", before=RocketMqConsumerState.settled)
_change: Final = _traced_settling("change_invisible_duration", after=RocketMqConsumerState.postponed)
SIMPLE_CONSUMER_METHODS: Final[Wrappers] = {
    "receive": _traced_receive(enter=True),
    "receive_async": _traced_receive(enter=False),
    "ack": _ack,
    "ack_async": _ack,
    "change_invisible_duration": _change,
    "change_invisible_duration_async": _change,
    "shutdown": _traced_shutdown,
}
"""Method of ``SimpleConsumer`` → how to wrap it."""
PUSH_CONSUMER_METHODS: Final[Wrappers] = {
    "_ack": _traced_settling("ack"),
    "_change_invisible_duration": _traced_settling("nack"),
}
"""Method of ``PushConsumer``, which settles by itself after its listener has answered → how to wrap it."""
