"""This module knows one message being handled: whose span it is, the block around its handler, and how that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from otel_mqtrace.hooks._ending import Handling
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._left_behind import leave
from otel_mqtrace.hooks._scope import EnteredScope, processing_context
from otel_mqtrace.hooks._unrecorded import OUTCOME_TOO_LATE, note_unrecorded
from otel_mqtrace.model import ContextCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from opentelemetry.context import Context

    from otel_mqtrace.hooks.consume import ConsumeHook, ProcessCall

__all__ = ["Block", "LateSpan", "MessageSource", "OwnSpan", "Responsibility", "SharedSpan", "sources"]


class Responsibility(Protocol):
    """Who ends a process span: one block, or the last of several."""

    @property
    def call(self) -> ProcessCall:
        """The span and what should be current while the message is handled."""
        ...

    def finish(self, code: ContextCode, exception: BaseException | None) -> None:
        """Say how the handling of one message ended."""
        ...

    def leave(self, code: ContextCode) -> None:
        """Say the same in a finaliser: nothing is recorded before the next hook is called."""
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

    def leave(self, code: ContextCode) -> None:
        """Have it ended as of now."""
        leave(self._hook, self.call, code=code)


class LateSpan:
    """A process span that had ended with the next poll when its block came: what the block says is only counted."""

    def __init__(self, call: ProcessCall) -> None:
        self.call = call

    def finish(self, code: ContextCode, exception: BaseException | None) -> None:
        """Count an outcome that the span does not tell."""
        del exception
        if code is not ContextCode.SUCCESS:
            note_unrecorded(OUTCOME_TOO_LATE)

    def leave(self, code: ContextCode) -> None:
        """As in any other case."""
        self.finish(code, None)


class SharedSpan:
    """One span for a batch whose messages are handled one by one: the last one ends it, the worst one names it.

    ``blocks`` counts those that came.
    """

    def __init__(self, hook: ConsumeHook, call: ProcessCall) -> None:
        self._hook = hook
        self.call = call
        self.blocks = 0
        self._left = call.messages
        self._worst = ContextCode.SUCCESS
        self._exception: BaseException | None = None

    @property
    def worst(self) -> tuple[ContextCode, BaseException | None]:
        """What names the span by now."""
        return self._worst, self._exception

    @property
    def is_shared_out(self) -> bool:
        """Whether each of its messages has come to a block of its own."""
        return self.blocks >= self.call.messages

    def finish(self, code: ContextCode, exception: BaseException | None) -> None:
        """Note the outcome of one message."""
        if self._is_last(code, exception):
            self._hook.after(self.call, code=self._worst, exception=self._exception)

    def leave(self, code: ContextCode) -> None:
        """Note the outcome of a message that was left where it stood."""
        if self._is_last(code, None):
            leave(self._hook, self.call, code=self._worst, exception=self._exception)

    def _is_last(self, code: ContextCode, exception: BaseException | None) -> bool:
        if code is not ContextCode.SUCCESS and self._worst is ContextCode.SUCCESS:
            self._worst, self._exception = code, exception
        self._left -= 1
        return self._left <= 0


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
            self._scope = EnteredScope(processing_context(call.base, self.handling))

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

    @guarded("process.dropped")
    def dropped(self) -> None:
        """The loop that has the message is collected, or was left: nobody will say how it went."""
        if self._scope is not None:
            self._scope.leave()
        responsibility, self._responsibility = self._responsibility, None
        if responsibility is not None:
            responsibility.leave(ContextCode.RETURNNULL)

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
