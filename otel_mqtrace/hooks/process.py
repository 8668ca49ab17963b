"""Handle a message explicitly: ``process`` as a block, a decorator and an iterator.

The span is current inside, an exception is recorded and raised again, and the span that automatic mode may have opened
for the same message is taken over, never doubled. Where nothing is instrumented, all of it does nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar, overload

from otel_mqtrace.hooks.guard import guarded
from otel_mqtrace.hooks.outcome import Handling, drain_at_exit, ends_at_exit
from otel_mqtrace.hooks.scope import BlockScope, handled_here, processing_context
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from opentelemetry.context import Context

    from otel_mqtrace.hooks.scope import ProcessSpan


_M = TypeVar("_M")
_F = TypeVar("_F", bound=Callable[..., Any])


# -- who ends a process span ------------------------------------------------------------------------------------
class Owner(NamedTuple):
    """A message's handling, and what a block calls once, with code and exception, when it has handled the message.

    With ``later=True``, in a finaliser, the next hook records the end. ``process_ctx`` is what lies behind the span in
    the block where the span is not this message's alone: else it is that of ``call``.
    """

    call: ProcessSpan
    finish: Callable[..., object]
    process_ctx: Context | None = None


class MessageSource(Protocol):
    """The messages of an instrumented client."""

    def owner_of(self, message: object, consumer: object | None) -> Owner | None:
        """Take over the open span of ``message``, or open one; ``None`` for a message of another client."""


sources: Final[list[MessageSource]] = []
"""The instrumented clients; each adds itself when it is patched and removes itself when it is restored."""
_open: Final[dict[int, tuple[MessageSource, Owner]]] = {}
"""Identity of a block that was entered and not left → source and owner of its message."""


def end_blocks(source: MessageSource | None = None) -> None:
    """Defer the end of the open blocks of ``source``, of all without one: their outcome is unknown."""
    for key, (owned_by, _) in list(_open.items()):
        if source is None or source is owned_by:
            found = _open.pop(key, None)  # another thread may have left the block
            if found is not None:
                found[1].finish(ContextCode.RETURNNULL, None, later=True)


ends_at_exit.append(end_blocks)


# -- blocks -----------------------------------------------------------------------------------------------------
class Block:
    """``with process(message)``: makes the span current, undoes that, and ends the span; also ``async with``.

    The message is the first of ``candidates`` that belongs to a client. :meth:`suspend` and :meth:`resume` are for a
    handler that is left and entered again, a generator. A block that is dropped before its exit ends the message too.
    """

    def __init__(self, candidates: Iterable[object], consumer: object | None) -> None:
        self._candidates = candidates
        self._consumer = consumer
        self._scope: BlockScope | None = None
        self._suspended: Context | None = None
        self.handling = Handling()

    def __enter__(self) -> Handling:
        """Open the span, or take it over, and make it current."""
        try:
            self._enter()
        except BaseException as interrupt:  # Python calls no __exit__ then
            self._exit(interrupt)
            raise
        return self.handling

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Restore what was current; the span ends, unless other messages share it."""
        self._exit(exception)

    async def __aenter__(self) -> Handling:
        """As ``with``: nothing here waits."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """As ``with``."""
        self._exit(exception)

    @guarded("process.enter")
    def _enter(self) -> None:
        if id(self) in _open:  # entered again without an exit
            self._drop()
        pairs = ((source, candidate) for candidate in self._candidates for source in sources)
        owners = ((source, source.owner_of(candidate, self._consumer)) for source, candidate in pairs)
        source, owner = next((found for found in owners if found[1] is not None), (None, None))
        if source is not None and owner is not None:
            _open[id(self)] = source, owner
            drain_at_exit()
            call, process_ctx = owner.call, owner.process_ctx
            self.handling = Handling(call.span)
            base = call.process_ctx if process_ctx is None else process_ctx
            self._scope = BlockScope(processing_context(base, self.handling))

    @guarded("process.exit")
    def _exit(self, exception: BaseException | None) -> None:
        owner = self._leave()
        if owner is None:
            return
        if exception is None:
            owner.finish(self.handling.code, None)
        elif isinstance(exception, GeneratorExit):  # the handler was abandoned: its outcome is unknown
            owner.finish(ContextCode.RETURNNULL, None)
        else:
            owner.finish(ContextCode.EXCEPTION, exception)

    def _leave(self) -> Owner | None:
        """Restore what was current before; return the owner to the one caller that ends the message."""
        if self._scope is not None:
            self._scope.leave()
        found = _open.pop(id(self), None)
        if found is None:
            return None
        self.handling.is_over = True
        return found[1]

    def __del__(self) -> None:
        if _open and id(self) in _open:  # at exit, Python empties our module
            self._drop()

    @guarded("process.dropped")
    def _drop(self) -> None:
        owner = self._leave()
        if owner is not None:
            owner.finish(ContextCode.RETURNNULL, None, later=True)

    @guarded("process.suspend")
    def suspend(self) -> None:
        """Stop being current, remembering what the handler had made current."""
        if self._scope is not None:
            self._suspended = self._scope.suspend()

    @guarded("process.resume")
    def resume(self) -> None:
        """Continue where it was suspended."""
        if self._scope is not None and self._suspended is not None:
            self._scope = BlockScope(self._suspended)


# -- decorated functions ----------------------------------------------------------------------------------------
def _decorate(function: _F, consumer: object | None = None) -> _F:
    """Return ``function`` with a block around it, of the same kind; a generator's caller keeps its own context."""
    called = getattr(function, "__call__", None)  # noqa: B004 - its kind matters, not whether
    make = next((make for is_kind, make in _KINDS if is_kind(function) or is_kind(called)), _wrap_plain)
    return functools.wraps(function)(make(function, consumer))  # type: ignore[return-value]  # it is called alike


def _wrap_plain(function: Callable[..., Any], consumer: object | None) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _block(args, kwargs, consumer) as handling:
            return _set_outcome(handling, function(*args, **kwargs))

    return call


def _wrap_coroutine(function: Callable[..., Any], consumer: object | None) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        with _block(args, kwargs, consumer) as handling:
            return _set_outcome(handling, await function(*args, **kwargs))

    return call


def _wrap_generator(function: Callable[..., Any], consumer: object | None) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        block = _block(args, kwargs, consumer)
        with block as handling:
            body: Generator[Any, Any, Any] = function(*args, **kwargs)
            step: Callable[[], Any] = functools.partial(next, body)
            while True:
                try:
                    given = step()
                except StopIteration as stop:
                    return _set_outcome(handling, stop.value)
                block.suspend()
                try:
                    sent = yield given
                except GeneratorExit:
                    block.resume()
                    body.close()
                    raise
                except BaseException as thrown:  # noqa: BLE001 - the body handles it
                    step = functools.partial(body.throw, thrown)
                else:
                    step = functools.partial(body.send, sent)
                block.resume()

    return call


def _wrap_async_generator(function: Callable[..., Any], consumer: object | None) -> Callable[..., Any]:
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
    (inspect.iscoroutinefunction, _wrap_coroutine),
    (inspect.isasyncgenfunction, _wrap_async_generator),
    (inspect.isgeneratorfunction, _wrap_generator),
)


def _block(args: tuple[Any, ...], kwargs: dict[str, Any], consumer: object | None) -> Block:
    """The message is the first argument that belongs to a client: methods have ``self`` before it."""
    return Block((*args, *kwargs.values()), consumer)


def _set_outcome(handling: Handling, returned: Any) -> Any:
    if isinstance(returned, ContextCode):
        handling.outcome(returned)
    return returned


# -- loops ------------------------------------------------------------------------------------------------------
class _Loop:
    """The current message of a loop; it ends, too, where ``break``, an exception or a cancellation leaves the loop."""

    def __init__(self, consumer: object | None) -> None:
        self._consumer = consumer
        self._block: Block | None = None

    def _enter(self, message: object) -> None:
        self._block = Block((message,), self._consumer)
        self._block.__enter__()

    def _finish(self, exception: BaseException | None = None) -> None:
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(None, exception, None)


class Loop(_Loop, Iterator[_M], Generic[_M]):
    """``for message in process.each(messages)``: each span is current until the next message, or until the loop ends.

    A plain iterator, because a dropped one stops being current at once, while asyncio closes a dropped asynchronous
    generator later, in another task. A generator that it iterates over is closed with it.
    """

    def __init__(self, messages: Iterable[_M], consumer: object | None) -> None:
        super().__init__(consumer)
        self._messages = iter(messages)

    def __next__(self) -> _M:
        """End the current message, which was handled, and return the next."""
        self._finish()
        message = next(self._messages)
        self._enter(message)
        return message

    def close(self) -> None:
        """End the current message with an unknown outcome, and close a generator that is iterated over."""
        self._finish(GeneratorExit())
        if isinstance(self._messages, Generator):  # not anything with a close(): it may be the consumer itself
            self._messages.close()


class AsyncLoop(_Loop, AsyncIterator[_M], Generic[_M]):
    """``async for message in process.each(messages)``."""

    def __init__(self, messages: AsyncIterable[_M], consumer: object | None) -> None:
        super().__init__(consumer)
        self._messages = aiter(messages)

    async def __anext__(self) -> _M:
        """As the other loop's."""
        self._finish()
        message = await anext(self._messages)
        self._enter(message)
        return message

    async def aclose(self) -> None:
        """As the other loop's ``close``."""
        self._finish(GeneratorExit())
        if isinstance(self._messages, AsyncGenerator):
            await self._messages.aclose()


# -- the public name --------------------------------------------------------------------------------------------
class _Process:
    """Callable as ``process(message)`` for a block and as ``@process`` for a function that takes the message."""

    @overload
    def __call__(self, *, consumer: object | None = None) -> Callable[[_F], _F]: ...
    @overload
    def __call__(self, target: _F, *, consumer: object | None = None) -> _F: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, target: object, *, consumer: object | None = None) -> Block: ...
    def __call__(self, target: Any = ..., *, consumer: object | None = None) -> Any:
        """Return a context manager for a message, or the decorated function for a function.

        ``consumer`` names the group where the message alone does not (another thread, much later). A decorated function
        may return a ``ContextCode``; anything else is ``SUCCESS``. A generator's span begins with its first step and
        ends with its last; closed before that it is ``RETURNNULL``.
        """
        if target is ...:
            return functools.partial(_decorate, consumer=consumer)
        return _decorate(target, consumer) if callable(target) else Block((target,), consumer)

    @overload
    def each(self, messages: Iterable[_M], *, consumer: object | None = None) -> Iterator[_M]: ...
    @overload
    def each(self, messages: AsyncIterable[_M], *, consumer: object | None = None) -> AsyncIterator[_M]: ...
    def each(
        self, messages: Iterable[_M] | AsyncIterable[_M], *, consumer: object | None = None
    ) -> Iterator[_M] | AsyncIterator[_M]:
        """Yield each message with its own process span current until the next step.

        Leaving the loop early, by ``break`` or by an exception, ends the current message as ``RETURNNULL`` as soon as
        the iterator is dropped; use a block where the outcome matters.
        """
        if isinstance(messages, AsyncIterable):
            return AsyncLoop(messages, consumer)
        return Loop(messages, consumer)

    def current(self) -> Handling:
        """Return the handling of the message being processed here, by a block or automatically.

        It is found through the current context, also in tasks and under spans that the handler starts. Where no message
        is being processed, it has no effect.
        """
        return handled_here() or Handling()

    def outcome(self, code: ContextCode | str) -> None:
        """Set the outcome of the message being processed here: a ``ContextCode`` or its name."""
        self.current().outcome(code)

    def failed(self) -> None:
        """Set that the message being processed here was not handled and should be delivered again."""
        self.current().failed()


process: Final = _Process()
