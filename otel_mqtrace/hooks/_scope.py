"""This module knows how a span becomes current and stops being so, without a trace of it on any other thread.

``EnteredScope`` is for a block, ``AutomaticScope`` for a span that stays current until the next poll. Each is left from
wherever its end comes to light: another thread, another task, the garbage collector. Only where it was entered can what
was current before be restored; from anywhere else the context that was handed out is taken back, so that whoever still
has it for the current one reads in it what was current before.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Final

from opentelemetry import context, trace
from opentelemetry.context import Context

from otel_mqtrace.hooks._ending import Handling

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = ["AutomaticScope", "EnteredScope", "ambient_context", "handled_here", "keep_ids", "processing_context"]

_AUTOMATIC: Final = context.create_key("mqtrace-automatic")
_HANDLED: Final = context.create_key("mqtrace-handled")
_SPAN: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""The key of the current span: OpenTelemetry makes it at its start."""
_entered: Final[ContextVar[object]] = ContextVar("mqtrace-entered", default=None)
_automatic: Final[ContextVar[object]] = ContextVar("mqtrace-automatic", default=None)


def ambient_context() -> Context:
    """Return the current context, seen past a process span that is current only until its consumer's next poll."""
    current = context.get_current()
    if not current:
        return current
    behind = current.get(_AUTOMATIC)
    if isinstance(behind, tuple) and trace.get_current_span(current) is behind[0]:
        outer: Context = behind[1]
        return outer
    return current


def processing_context(base: Context, handling: Handling) -> Context:
    """Return ``base`` with the span of ``handling`` current in it, and ``handling`` there for :func:`handled_here`."""
    otel_ctx = trace.set_span_in_context(handling.span, base)
    dict.__setitem__(otel_ctx, _HANDLED, handling)  # it is ours still: a second copy would cost as much as the first
    return otel_ctx


def keep_ids(otel_ctx: Context, ended: Span) -> None:
    """Put ``ended``, which has only the ids of a span, where ``otel_ctx`` has the span: it may be kept for long.

    In place, for one made by :func:`processing_context`: where that is current it is a copy of it.
    """
    dict.__setitem__(otel_ctx, _SPAN, ended)


def handled_here() -> Handling | None:
    """Return the handling of the message that is being processed here, in a task or a nested span of it as well."""
    found = context.get_current().get(_HANDLED)
    return found if isinstance(found, Handling) else None


class _Lent(Context):
    """A context that its owner can take back, wherever it went: it then reads as the one it stood on."""

    def take_back(self, outer: Context) -> None:
        dict.update(self, outer)
        for name in self.keys() - outer.keys():
            dict.pop(self, name, None)


class EnteredScope:
    """Makes ``otel_ctx`` current from construction until :meth:`leave`."""

    def __init__(self, otel_ctx: Context) -> None:
        # The marker's token answers "am I where I was entered?" by ValueError; OpenTelemetry's would log an error.
        self._before = context.get_current()
        self._ctx = _Lent(otel_ctx)
        self._marker: Token[object] | None = _entered.set(self)
        self._token = context.attach(self._ctx)

    def leave(self) -> None:
        """Restore what was current before; elsewhere, or under another scope still open, take the context back.

        The second time: nothing.
        """
        marker, self._marker = self._marker, None
        if marker is None:
            return
        if _entered.get() is self and _was_set_here(_entered, marker):
            context.detach(self._token)
        else:
            self._ctx.take_back(self._before)

    def suspend(self) -> Context:
        """Leave for a while; return what was current inside, for a scope that goes on from there."""
        current = context.get_current()
        self.leave()
        return current


class AutomaticScope:
    """Makes ``otel_ctx`` current until left by whoever polls next; ``before`` (ambient) and ``span`` if known."""

    def __init__(self, otel_ctx: Context, before: Context | None = None, span: Span | None = None) -> None:
        self._before = ambient_context() if before is None else before
        self._span = span or trace.get_current_span(otel_ctx)
        self._ctx = _Lent(otel_ctx)
        dict.__setitem__(self._ctx, _AUTOMATIC, (self._span, self._before))
        self._marker: Token[object] = _automatic.set(self)
        context.attach(self._ctx)

    def leave(self) -> None:
        """Restore what was current before; where that is impossible take the context back.

        Impossible is: a span of the user's lies on top of it, another thread has it, or this is a task's copy of the
        context it was entered in. What else the handler made current, its own baggage say, stays so without the span.
        """
        current = context.get_current()
        if current is self._ctx:
            context.attach(self._before)
            if _was_set_here(_automatic, self._marker):
                return
        elif trace.get_current_span(current) is self._span:
            added = {name: value for name, value in current.items() if self._ctx.get(name) is not value}
            context.attach(Context({**self._before, **added}))
        self._ctx.take_back(self._before)


def _was_set_here(variable: ContextVar[object], marker: Token[object]) -> bool:
    """Whether ``marker`` is of this thread and task; the variable is reset if so."""
    try:
        variable.reset(marker)
    except (ValueError, RuntimeError):
        return False
    return True
