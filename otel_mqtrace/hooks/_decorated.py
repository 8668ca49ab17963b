"""This module knows a handler that is a function of any kind, with its message's span current whenever its body runs.

A generator's body runs in pieces: between them, what its caller has current is none of its business, and the reverse.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from otel_mqtrace.hooks._block import Block
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from otel_mqtrace.hooks._ending import Handling

__all__ = ["decorated"]

_F = TypeVar("_F", bound=Callable[..., Any])


def decorated(function: _F, consumer: object | None = None) -> _F:
    """Return ``function`` with a block around it; what kind of function it is does not change."""
    make = next((make for is_kind, make in _KINDS if _is(is_kind, function)), _plain)
    return functools.wraps(function)(make(function, consumer))  # type: ignore[return-value]  # it is called alike


def _is(is_kind: Callable[[object], bool], function: Callable[..., Any]) -> bool:
    """A callable object is of the kind of its ``__call__``."""
    return is_kind(function) or is_kind(getattr(function, "__call__", None))  # noqa: B004 - its kind is asked, not whether


def _plain(function: Callable[..., Any], consumer: object | None) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _block(args, kwargs, consumer) as handling:
            return _noted(handling, function(*args, **kwargs))

    return call


def _coroutine(function: Callable[..., Any], consumer: object | None) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with _block(args, kwargs, consumer) as handling:
            return _noted(handling, await function(*args, **kwargs))

    return call


def _generator(function: Callable[..., Any], consumer: object | None) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        block = _block(args, kwargs, consumer)
        with block as handling:
            body: Generator[Any, Any, Any] = function(*args, **kwargs)
            step: Callable[[], Any] = functools.partial(next, body)
            while True:
                try:
                    given = step()
                except StopIteration as stop:
                    return _noted(handling, stop.value)
                block.suspend()
                try:
                    sent = yield given
                except GeneratorExit:
                    block.resume()
                    body.close()
                    raise
                except BaseException as thrown:  # noqa: BLE001 - the body's to handle, whatever it is
                    step = functools.partial(body.throw, thrown)
                else:
                    step = functools.partial(body.send, sent)
                block.resume()

    return call


def _async_generator(function: Callable[..., Any], consumer: object | None) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        block = _block(args, kwargs, consumer)
        with block:
            body: AsyncGenerator[Any, Any] = function(*args, **kwargs)
            step: Callable[[], Any] = functools.partial(anext, body)
            while True:
                try:
                    given = await step()
                except StopAsyncIteration:
                    return
                block.suspend()
                try:
                    sent = yield given
                except GeneratorExit:
                    block.resume()
                    await body.aclose()
                    raise
                except BaseException as thrown:  # noqa: BLE001 - as above
                    step = functools.partial(body.athrow, thrown)
                else:
                    step = functools.partial(body.asend, sent)
                block.resume()

    return call


_KINDS = (
    (inspect.iscoroutinefunction, _coroutine),
    (inspect.isasyncgenfunction, _async_generator),
    (inspect.isgeneratorfunction, _generator),
)


def _block(args: tuple[Any, ...], kwargs: dict[str, Any], consumer: object | None) -> Block:
    """The message is the first argument that a client knows: methods have ``self`` before it."""
    return Block((*args, *kwargs.values()), consumer)


def _noted(handling: Handling, returned: Any) -> Any:
    if isinstance(returned, ContextCode):
        handling.outcome(returned)
    return returned
