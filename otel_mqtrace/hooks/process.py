"""This module knows the explicit form of handling a message: ``process`` as a block, a decorator and an iterator.

::

    with process(message) as handling:
        if not bill(message):
            handling.failed()

    @process
    def handle(message): ...

    for message in process.each(consumer.consume(100)):
        handle(message)

The span is current inside, an exception is recorded and re-raised, and the span that automatic mode may have opened for
the same message is taken over, never doubled. Where nothing is instrumented all of it does nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from opentelemetry import trace

from otel_mqtrace.hooks._ending import code_of
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._scope import EnteredScope
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from types import TracebackType

    from opentelemetry.trace import Span

    from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall

__all__ = ["Handling", "MessageSource", "OwnSpan", "Responsibility", "SharedSpan", "process", "sources"]

_F = TypeVar("_F", bound=Callable[..., Any])
_M = TypeVar("_M")


class Responsibility(Protocol):
    """Who ends a process span: one block, or the last of several."""

    @property
    def call(self) -> ProcessCall:
        """The span and what should be current while the message is handled."""
        ...

    def finish(self, code: ContextCode, exception: BaseException | None) -> None:
        """Say how the handling of one message ended."""
        ...


class MessageSource(Protocol):
    """What a client tells ``process`` about its messages; ``None`` when the message is not one of its own."""

    def responsibility(self, message: object, consumer: object | None) -> Responsibility | None:
        """Take over the open span of ``message``, or open one."""
        ...


sources: Final[list[MessageSource]] = []
"""The instrumented clients; each adds itself when it is patched and leaves when it is restored."""


class OwnSpan:
    """A process span that one block ends."""

    def __init__(self, hook: ConsumeHook, call: ProcessCall) -> None:
        self._hook = hook
        self.call = call

    def finish(self, code: ContextCode, exception: BaseException | None) -> None:
        """End the span."""
        self._hook.after(self.call, code=code, exception=exception)


class SharedSpan:
    """One span for a batch whose messages are handled one by one: the last one ends it, the worst one names it."""

    def __init__(self, hook: ConsumeHook, call: ProcessCall) -> None:
        self._hook = hook
        self.call = call
        self._left = call.messages
        self._worst = ContextCode.SUCCESS
        self._exception: BaseException | None = None

    def finish(self, code: ContextCode, exception: BaseException | None) -> None:
        """Note the outcome of one message."""
        if code is not ContextCode.SUCCESS and self._worst is ContextCode.SUCCESS:
            self._worst, self._exception = code, exception
        self._left -= 1
        if self._left <= 0:
            self.end()

    def end(self) -> None:
        """End the span with what is known by now."""
        self._hook.after(self.call, code=self._worst, exception=self._exception)


class Handling:
    """What a block says about its message; silent means ``SUCCESS``, an exception says ``EXCEPTION`` by itself."""

    def __init__(self, responsibility: Responsibility | None) -> None:
        self._responsibility = responsibility
        self.code = ContextCode.SUCCESS

    @property
    def span(self) -> Span:
        """The process span, or one that records nothing."""
        return trace.INVALID_SPAN if self._responsibility is None else self._responsibility.call.span

    def outcome(self, code: ContextCode | str) -> None:
        """Say how it ended: a ``ContextCode`` or its name.

        Never raises into the handler: a word that is none of them is recorded as ``RETURNNULL``, with one warning.
        """
        self.code = code_of(code)

    def failed(self) -> None:
        """Say that the message was not handled and should come again."""
        self.code = ContextCode.FAILED


class _Block:
    """``with process(message)``: enters the span's context, leaves it, and says how it ended."""

    def __init__(self, message: object, consumer: object | None) -> None:
        self._message = message
        self._consumer = consumer
        self._responsibility: Responsibility | None = None
        self._scope: EnteredScope | None = None
        self._handling = Handling(None)

    def __enter__(self) -> Handling:
        self._enter()
        return self._handling

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._exit(exception)

    @guarded("process.enter")
    def _enter(self) -> None:
        self._responsibility = _responsibility(self._message, self._consumer)
        self._handling = Handling(self._responsibility)
        if self._responsibility is not None:
            self._scope = EnteredScope(self._responsibility.call.otel_ctx)

    @guarded("process.exit")
    def _exit(self, exception: BaseException | None) -> None:
        if self._scope is not None:
            self._scope.leave()
        if self._responsibility is None:
            return
        if exception is None:
            self._responsibility.finish(self._handling.code, None)
        elif isinstance(exception, GeneratorExit):  # the loop over `each` was left: nobody said how it went
            self._responsibility.finish(ContextCode.RETURNNULL, None)
        else:
            self._responsibility.finish(ContextCode.EXCEPTION, exception)


def _responsibility(message: object, consumer: object | None) -> Responsibility | None:
    for source in sources:
        found = source.responsibility(message, consumer)
        if found is not None:
            return found
    return None


class _Process:
    """Callable as ``process(message)`` for a block and as ``@process`` for a function that takes the message."""

    def __call__(self, target: Any = None, *, consumer: object | None = None) -> Any:
        """Return a context manager for a message, or the decorated function for a function.

        ``consumer`` helps where the message alone does not tell which group handles it (another thread, much later).
        A decorated function may return a ``ContextCode``; anything else is ``SUCCESS``.
        """
        if callable(target):
            return _decorated(target, consumer)
        if target is None and consumer is not None:
            return functools.partial(_decorated, consumer=consumer)
        return _Block(target, consumer)

    def each(self, messages: Iterable[_M], *, consumer: object | None = None) -> Iterator[_M]:
        """Yield each message with its own process span current until the next one is asked for.

        Leaving the loop early ends the message at hand as ``RETURNNULL``; use a block where the outcome matters.
        """
        for message in messages:
            with _Block(message, consumer):
                yield message


def _decorated(function: _F, consumer: object | None = None) -> _F:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            with _Block(_message_of(args, kwargs), consumer) as handling:
                return _noted(handling, await function(*args, **kwargs))

        return wait  # type: ignore[return-value]

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _Block(_message_of(args, kwargs), consumer) as handling:
            return _noted(handling, function(*args, **kwargs))

    return call  # type: ignore[return-value]


def _noted(handling: Handling, returned: Any) -> Any:
    if isinstance(returned, ContextCode):
        handling.outcome(returned)
    return returned


def _message_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """The message is the first argument that looks like one: methods have ``self`` before it."""
    return next(
        (each for each in (*args, *kwargs.values()) if hasattr(each, "topic") and hasattr(each, "offset")), None
    )


process: Final = _Process()
