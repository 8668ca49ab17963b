"""This module knows when a push consumer calls the application's listener, and what the listener answered."""

from __future__ import annotations

import functools
import inspect
import weakref
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.clients.rocketmq.holding import Holding, consumers
from otel_mqtrace.clients.rocketmq.received import Delivery, delivery_of, incoming
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._scope import EnteredScope
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from otel_mqtrace.hooks.consume import ProcessCall

__all__ = ["TracedListener", "standing_in"]

_CODES: Final[Mapping[str, ContextCode]] = {"SUCCESS": ContextCode.SUCCESS, "FAILURE": ContextCode.FAILED}
"""``ConsumeResult`` by name: the oldest clients have none."""


class TracedListener:
    """The application's listener, each of its calls in a process span; when nothing is traced, that listener alone.

    A FIFO consumer calls again for a message that was not consumed, here and now: each call is a try of its own.
    """

    def __init__(self, listener: Any, consumer: Any) -> None:
        self._listener = listener
        self._consumer = weakref.ref(consumer)

    def __getattr__(self, name: str) -> Any:
        """Answer as the application's listener does."""
        return getattr(self._listener, name)

    def consume(self, message: Any) -> Any:
        """Call the listener; what it raises goes on to the client, which takes it for a failure."""
        holding = consumers.of(self._consumer())
        opened = None if holding is None else _opened(holding, message)
        if holding is None or opened is None:
            return self._listener.consume(message)
        delivery, call, scope = opened
        try:
            result = self._listener.consume(message)
        except BaseException as exception:
            _ended(holding, delivery, call, scope, ContextCode.EXCEPTION, exception)
            raise
        _ended(holding, delivery, call, scope, _CODES.get(getattr(result, "name", ""), ContextCode.RETURNNULL))
        return result


@guarded("rocketmq.listener")
def _opened(holding: Holding, message: Any) -> tuple[Delivery, ProcessCall, EnteredScope] | None:
    delivery = delivery_of(message)
    delivery.tries += 1
    calls = holding.hook.before([incoming(message)])
    if not calls:
        return None
    delivery.holder, delivery.listening = holding, True
    delivery.handle_in(calls[0])
    return delivery, calls[0], EnteredScope(calls[0].otel_ctx)


@guarded("rocketmq.listened")
def _ended(  # noqa: PLR0913, PLR0917 - what was opened, and how it ended
    holding: Holding,
    delivery: Delivery,
    call: ProcessCall,
    scope: EnteredScope,
    code: ContextCode,
    exception: BaseException | None = None,
) -> None:
    scope.leave()
    delivery.listening, delivery.call = False, None
    holding.hook.after(call, code=code, exception=exception)


def standing_in(name: str, stand_in: Callable[[Any, Any], Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the wrapper of a client's ``__init__`` that puts ``stand_in(given, client)`` for its argument ``name``."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes that method
            try:
                bound = signature.bind(self, *args, **kwargs)
            except TypeError:  # the client says so itself
                original(self, *args, **kwargs)
                return
            if bound.arguments.get(name) is not None:
                bound.arguments[name] = stand_in(bound.arguments[name], self)
            original(*bound.args, **bound.kwargs)

        return __init__

    return wrap
