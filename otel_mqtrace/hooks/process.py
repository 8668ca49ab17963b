"""This module knows the explicit form of handling a message: ``process`` as a block, a decorator and an iterator.

::

    with process(message) as handling:            # or async with
        if not bill(message):
            handling.failed()

    @process                                      # plain, async, a generator, an async generator
    def handle(message): ...

    for message in process.each(consumer.consume(100, 1)):    # or async for
        if not bill(message):
            process.failed()

The span is current inside, an exception is recorded and re-raised, and the span that automatic mode may have opened for
the same message is taken over, never doubled. Where nothing is instrumented all of it does nothing.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterable
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from otel_mqtrace.hooks._block import Block, LateSpan, MessageSource, OwnSpan, Responsibility, SharedSpan, sources
from otel_mqtrace.hooks._decorated import decorated
from otel_mqtrace.hooks._ending import Handling
from otel_mqtrace.hooks._loop import AsyncLoop, Loop
from otel_mqtrace.hooks._scope import handled_here

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from otel_mqtrace.model import ContextCode

__all__ = ["Handling", "LateSpan", "MessageSource", "OwnSpan", "Responsibility", "SharedSpan", "process", "sources"]

_M = TypeVar("_M")


class _Process:
    """Callable as ``process(message)`` for a block and as ``@process`` for a function that takes the message."""

    def __call__(self, target: Any = None, *, consumer: object | None = None) -> Any:
        """Return a context manager for a message, or the decorated function for a function.

        ``consumer`` helps where the message alone does not tell which group handles it (another thread, much later).
        A decorated function may return a ``ContextCode``; anything else is ``SUCCESS``. A generator's span begins with
        its first step and ends with its last; closed before that it is ``RETURNNULL``.
        """
        if callable(target):
            return decorated(target, consumer)
        if target is None and consumer is not None:
            return functools.partial(decorated, consumer=consumer)
        return Block((target,), consumer)

    @overload
    def each(self, messages: Iterable[_M], *, consumer: object | None = None) -> Iterator[_M]: ...
    @overload
    def each(self, messages: AsyncIterable[_M], *, consumer: object | None = None) -> AsyncIterator[_M]: ...
    def each(
        self, messages: Iterable[_M] | AsyncIterable[_M], *, consumer: object | None = None
    ) -> Iterator[_M] | AsyncIterator[_M]:
        """Yield each message with its own process span current until the next one is asked for.

        Leaving the loop early, by ``break`` or by an exception, ends the message at hand as ``RETURNNULL`` as soon as
        the iterator is dropped; use a block where the outcome matters.
        """
        if isinstance(messages, AsyncIterable):
            return AsyncLoop(messages, consumer)
        return Loop(messages, consumer)

    def current(self) -> Handling:
        """Return the handling of the message being processed here, by a block or automatically.

        It is found through the current context: in tasks that the handler starts and under spans of its own as well.
        Where no message is being processed it is one of which nobody takes notice.
        """
        return handled_here() or Handling()

    def outcome(self, code: ContextCode | str) -> None:
        """Say how the message being processed here ended: a ``ContextCode`` or its name."""
        self.current().outcome(code)

    def failed(self) -> None:
        """Say that the message being processed here was not handled and should come again."""
        self.current().failed()


process: Final = _Process()
