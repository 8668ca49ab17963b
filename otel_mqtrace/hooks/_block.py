"""This module knows one message being handled: whose span it is, the block around its handler, and how that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from otel_mqtrace.hooks._ending import Handling
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._scope import EnteredScope, processing_context
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from opentelemetry.context import Context

    from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall

__all__ = ["Block", "MessageSource", "OwnSpan", "Responsibility", "SharedSpan", "sources"]


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


class Block:
    """``with process(message)``: enters the span's context, leaves it, and says how it ended; also ``async with``.

    The message is the first of ``candidates`` that a client knows for its own. :meth:`suspend` and :meth:`resume` are
    for a handler that is left and entered again: a generator.
    """

    def __init__(self, candidates: Iterable[object], consumer: object | None) -> None:
        self._candidates = candidates
        self._consumer = consumer
        self._responsibility: Responsibility | None = None
        self._scope: EnteredScope | None = None
        self._suspended: Context | None = None
        self.handling = Handling()

    def __enter__(self) -> Handling:
        """Open the span, or take it over, and make it current."""
        self._enter()
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
        self._responsibility = _responsibility(self._candidates, self._consumer)
        if self._responsibility is not None:
            call = self._responsibility.call
            self.handling = Handling(call.span)
            self._scope = EnteredScope(processing_context(call.otel_ctx, self.handling))

    @guarded("process.exit")
    def _exit(self, exception: BaseException | None) -> None:
        if self._scope is not None:
            self._scope.leave()
        responsibility, self._responsibility = self._responsibility, None
        if responsibility is None:
            return
        if exception is None:
            responsibility.finish(self.handling.code, None)
        elif isinstance(exception, GeneratorExit):  # the handler was left where it stood: nobody said how it went
            responsibility.finish(ContextCode.RETURNNULL, None)
        else:
            responsibility.finish(ContextCode.EXCEPTION, exception)

    @guarded("process.suspend")
    def suspend(self) -> None:
        """Stop being current, remembering what the handler had made current."""
        if self._scope is not None:
            self._suspended = self._scope.suspend()

    @guarded("process.resume")
    def resume(self) -> None:
        """Go on as it was."""
        if self._scope is not None and self._suspended is not None:
            self._scope = EnteredScope(self._suspended)


def _responsibility(candidates: Iterable[object], consumer: object | None) -> Responsibility | None:
    for candidate in candidates:
        for source in sources:
            found = source.responsibility(candidate, consumer)
            if found is not None:
                return found
    return None
