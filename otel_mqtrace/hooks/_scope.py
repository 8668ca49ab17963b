"""This module knows how a span becomes current and stops being so, without a trace of it on any other thread.

``EnteredScope`` is for a block: entered and left in one place, skipped silently where it was not entered.
``AutomaticScope`` is for a span that stays current until the next poll: it is left by looking whether its own context
is still the current one, so it can be left from anywhere, in any order, and never disturbs what the user attached.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final

from opentelemetry import context, trace

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

__all__ = ["AutomaticScope", "EnteredScope", "ambient_context"]

_AUTOMATIC: Final = context.create_key("mqtrace-automatic")
_entered: Final[ContextVar[object]] = ContextVar("mqtrace-entered", default=None)
_automatic: Final[ContextVar[object]] = ContextVar("mqtrace-automatic", default=None)


def ambient_context() -> Context:
    """Return the current context, seen past a process span that is current only until its consumer's next poll."""
    current = context.get_current()
    if not current:
        return current
    behind = context.get_value(_AUTOMATIC, current)
    if isinstance(behind, tuple) and trace.get_current_span(current) is behind[0]:
        outer: Context = behind[1]
        return outer
    return current


class EnteredScope:
    """Makes ``otel_ctx`` current from construction until :meth:`leave`."""

    def __init__(self, otel_ctx: Context) -> None:
        # The marker's token answers "am I where I was entered?" by ValueError; OpenTelemetry's would log an error.
        self._marker: Token[object] = _entered.set(self)
        self._token = context.attach(otel_ctx)

    def leave(self) -> None:
        """Restore what was current before; elsewhere (another thread, another task) and the second time: nothing."""
        try:
            _entered.reset(self._marker)
        except (ValueError, RuntimeError):
            return
        context.detach(self._token)


class AutomaticScope:
    """Makes ``otel_ctx`` current until left by whoever polls next; ``before`` (ambient) and ``span`` if known."""

    def __init__(self, otel_ctx: Context, before: Context | None = None, span: Span | None = None) -> None:
        self._before = ambient_context() if before is None else before
        behind = (span or trace.get_current_span(otel_ctx), self._before)
        self._ctx = context.set_value(_AUTOMATIC, behind, otel_ctx)
        self._marker: Token[object] = _automatic.set(self)
        context.attach(self._ctx)

    def leave(self) -> bool:
        """Restore what was current before, if ours still is; ``False`` when it must be tried again later or elsewhere.

        That is: something of the user's lies on top of it, another thread has it, or this is a task's copy of the
        context it was entered in.
        """
        if context.get_current() is not self._ctx:
            return False
        context.attach(self._before)
        try:
            _automatic.reset(self._marker)
        except ValueError:
            return False
        return True
