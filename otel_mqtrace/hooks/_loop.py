"""This module knows a loop over messages: each one's span is current until the next is asked for, or the loop is left.

Plain iterators, not generators: one that is dropped in the middle stops being current there and then, in the thread and
task that dropped it, while asyncio closes a dropped asynchronous generator later and in a task of its own. A generator
that the loop goes over is closed with it, as by ``yield from``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from otel_mqtrace.hooks._block import Block

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterable

__all__ = ["AsyncLoop", "Loop"]

_M = TypeVar("_M")


class _AtHand:
    """The message that the loop's body has now, if any."""

    def __init__(self, consumer: object | None) -> None:
        self._consumer = consumer
        self._block: Block | None = None

    def take(self, message: object) -> None:
        self._block = Block((message,), self._consumer)
        self._block.__enter__()

    def done(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, None, None)

    def left(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(GeneratorExit, GeneratorExit(), None)

    def dropped(self) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.dropped()


class Loop(Iterator[_M], Generic[_M]):
    """``for message in process.each(messages)``."""

    def __init__(self, messages: Iterable[_M], consumer: object | None) -> None:
        self._at_hand = _AtHand(consumer)
        self._messages = iter(messages)

    def __next__(self) -> _M:
        """End the message at hand, which was handled, and hand out the next."""
        self._at_hand.done()
        message = next(self._messages)
        self._at_hand.take(message)
        return message

    def close(self) -> None:
        """End the message at hand, of which nobody said how it went, and close a generator that is gone over."""
        self._at_hand.left()
        if isinstance(self._messages, Generator):  # not anything with a close(): it may be the consumer itself
            self._messages.close()

    def __del__(self) -> None:
        """Left by ``break``, ``return`` or an exception."""
        self._at_hand.dropped()


class AsyncLoop(AsyncIterator[_M], Generic[_M]):
    """``async for message in process.each(messages)``."""

    def __init__(self, messages: AsyncIterable[_M], consumer: object | None) -> None:
        self._at_hand = _AtHand(consumer)
        self._messages = aiter(messages)

    async def __anext__(self) -> _M:
        """As the other loop's."""
        self._at_hand.done()
        message = await anext(self._messages)
        self._at_hand.take(message)
        return message

    async def aclose(self) -> None:
        """As the other loop's ``close``."""
        self._at_hand.left()
        if isinstance(self._messages, AsyncGenerator):
            await self._messages.aclose()

    def __del__(self) -> None:
        """Left by ``break``, ``return``, an exception or a cancellation."""
        self._at_hand.dropped()
