"""This module knows when a simple consumer hands messages over, and how the application settles them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, trace

from otel_mqtrace.clients.rocketmq.errors import error_type
from otel_mqtrace.clients.rocketmq.futures import heard_first
from otel_mqtrace.clients.rocketmq.holding import Holding, consumers
from otel_mqtrace.clients.rocketmq.received import Delivery, delivery_of, settled
from otel_mqtrace.hooks._ending import text_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._scope import EnteredScope, ambient_context

if TYPE_CHECKING:
    from otel_mqtrace.hooks.settle import SettleCall

__all__ = ["PUSH_CONSUMER_METHODS", "SIMPLE_CONSUMER_METHODS"]


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], index: int, name: str) -> Any:
    return args[index] if len(args) > index else kwargs.get(name)


def _traced_receive(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def receive(self: Any, *args: Any, **kwargs: Any) -> Any:
        holding = consumers.of(self)
        if holding is None:
            return original(self, *args, **kwargs)
        holding.next_turn()
        start_ns = holding.hook.now_ns()
        try:
            messages = original(self, *args, **kwargs)
        except BaseException as exception:
            _failed(holding, exception, start_ns)
            raise
        holding.hand_over(messages, _argument(args, kwargs, 1, "invisible_duration"), start_ns=start_ns, enter=True)
        return messages

    return receive


def _traced_receive_async(original: Callable[..., Any]) -> Callable[..., Any]:
    """The messages are handed over in a thread of the client: none of them is made current anywhere."""

    @functools.wraps(original)
    def receive_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        holding = consumers.of(self)
        if holding is None:
            return original(self, *args, **kwargs)
        holding.next_turn()
        start_ns = holding.hook.now_ns()
        seconds = _argument(args, kwargs, 1, "invisible_duration")

        def hear(messages: Any, exception: BaseException | None) -> None:
            if exception is not None:
                _failed(holding, exception, start_ns)
            else:
                holding.hand_over(messages or (), seconds, start_ns=start_ns, enter=False)

        try:
            answer = original(self, *args, **kwargs)
        except BaseException as exception:
            _failed(holding, exception, start_ns)
            raise
        return heard_first(answer, hear, ambient_context())

    return receive_async


@guarded("rocketmq.receive")
def _failed(holding: Holding, exception: BaseException, start_ns: int) -> None:
    said = text_of(exception)
    holding.hook.poll_failed(
        start_ns=start_ns, error=error_type(exception), description=said, exception=exception, batch=True
    )


def _traced_shutdown(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def shutdown(self: Any, *args: Any, **kwargs: Any) -> Any:
        holding = consumers.of(self)
        if holding is not None:
            holding.close()
        return original(self, *args, **kwargs)

    return shutdown


# -- settling -------------------------------------------------------------------------------------------------------
def _traced_ack(original: Callable[..., Any]) -> Callable[..., Any]:
    """``ack`` and ``ack_async``: the handling ends here, the settlement when the broker has answered."""

    @functools.wraps(original)
    def ack(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        holding = consumers.of(self)
        if holding is None:
            return original(self, message, *args, **kwargs)
        delivery = delivery_of(message)
        call = _begun(holding, "ack", delivery)
        holding.settled(delivery)
        return _settling(holding, call, message, lambda: original(self, message, *args, **kwargs))

    return ack


def _traced_change(original: Callable[..., Any]) -> Callable[..., Any]:
    """``change_invisible_duration`` and its async form: the message stays in hand for longer, or comes again then."""

    @functools.wraps(original)
    def change_invisible_duration(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        holding = consumers.of(self)
        if holding is None:
            return original(self, message, *args, **kwargs)
        delivery = delivery_of(message)
        call = _begun(holding, "change_invisible_duration", delivery)
        result = _settling(holding, call, message, lambda: original(self, message, *args, **kwargs))
        holding.postponed(delivery, _argument(args, kwargs, 0, "invisible_duration"))
        return result

    return change_invisible_duration


def _traced_push_settling(operation: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What a push consumer does by itself after its listener has answered."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def settle(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
            holding = consumers.of(self)
            call = None if holding is None else _begun(holding, operation, delivery_of(message))
            if holding is None or call is None:
                return original(self, message, *args, **kwargs)
            return _settling(holding, call, message, lambda: original(self, message, *args, **kwargs))

        return settle

    return wrap


def _begun(holding: Holding, operation: str, delivery: Delivery) -> SettleCall | None:
    """Note that a settlement begins, under the message's own span unless the application has one of its own open."""
    current = context.get_current()
    own_open = ambient_context() is current and trace.get_current_span(current).get_span_context().is_valid
    if own_open or delivery.handled_in is None:
        return holding.settle.before(operation)
    scope = EnteredScope(delivery.handled_in)
    try:
        return holding.settle.before(operation)
    finally:
        scope.leave()


def _settling(holding: Holding, call: SettleCall | None, message: Any, settle: Callable[[], Any]) -> Any:
    if call is None:
        return settle()

    @guarded("rocketmq.settle")
    def hear(_: Any, exception: BaseException | None = None) -> None:
        error = None if exception is None else error_type(exception)
        said = None if exception is None else text_of(exception)
        holding.settle.after(call, [settled(message)], error=error, description=said, exception=exception)

    try:
        answer = settle()
    except BaseException as exception:
        hear(None, exception)
        raise
    return heard_first(answer, hear, None)


Wrappers = Mapping[str, Callable[[Callable[..., Any]], Callable[..., Any]]]
SIMPLE_CONSUMER_METHODS: Final[Wrappers] = {
    "receive": _traced_receive,
    "receive_async": _traced_receive_async,
    "ack": _traced_ack,
    "ack_async": _traced_ack,
    "change_invisible_duration": _traced_change,
    "change_invisible_duration_async": _traced_change,
    "shutdown": _traced_shutdown,
}
"""Method of ``SimpleConsumer`` → how to wrap it."""
PUSH_CONSUMER_METHODS: Final[Wrappers] = {
    "_ack": _traced_push_settling("ack"),
    "_change_invisible_duration": _traced_push_settling("nack"),
}
"""Method of ``PushConsumer`` → how to wrap it; its listener is in :mod:`.listener`."""
