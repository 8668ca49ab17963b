"""Make a span current and undo it, wherever the end comes to light: another thread, another task, a finaliser.

What was current before can be restored only where the span was made current. From anywhere else the context that was
handed out is revoked: whoever still has it reads what was current before.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry import context, trace
from opentelemetry.context import Context

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otel_mqtrace.hooks.outcome import Handling

__all__ = [
    "OWN_KEYS",
    "BlockScope",
    "PollScope",
    "RevocableContext",
    "SupportsHandling",
    "ambient_context",
    "current_context",
    "handled_here",
    "processing_context",
    "release_span",
]

_POLLED: Final = context.create_key("mqtrace-automatic")
_HANDLED: Final = context.create_key("mqtrace-handled")
SPAN_KEY: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""The key of the current span, which OpenTelemetry creates when it is imported."""
OWN_KEYS: Final = frozenset({SPAN_KEY, _POLLED, _HANDLED})
"""What stands in the context of a handler that has put nothing there itself."""
_entered: Final[ContextVar[object]] = ContextVar("mqtrace-entered", default=None)
_runtime_context: Final = context._RUNTIME_CONTEXT  # noqa: SLF001 - what its public functions call
current_context: Final = _runtime_context.get_current
"""``opentelemetry.context.get_current`` without the call in between."""


def ambient_context() -> Context:
    """Return the current context, without a process span that is current only until its consumer's next poll."""
    current = context.get_current()
    if not current:
        return current
    polled = current.get(_POLLED)
    if isinstance(polled, tuple) and trace.get_current_span(current) is polled[0]:
        previous: Context = polled[1]
        return previous
    return current


class SupportsHandling(Protocol):
    """What stands in the context while messages are handled."""

    @property
    def span(self) -> Span:
        """The current span."""
        ...

    @property
    def handling(self) -> Handling:
        """What ``process.current()`` returns."""
        ...


def processing_context(base: Context, handled: SupportsHandling) -> Context:
    """Return ``base`` with the span of ``handled`` current in it, and ``handled`` for :func:`handled_here`."""
    return Context({**base, SPAN_KEY: handled.span, _HANDLED: handled})


def release_span(otel_ctx: Context, ended: Span) -> None:
    """Replace the span of ``otel_ctx``, in place, by ``ended``, which has only its ids: it may be kept for long."""
    dict.__setitem__(otel_ctx, SPAN_KEY, ended)


def handled_here() -> Handling | None:
    """Return the handling of the message being processed here, in a task or a nested span of it as well."""
    handled: Any = context.get_current().get(_HANDLED)
    return None if handled is None else handled.handling


class RevocableContext(Context):
    """A context that its owner can revoke, wherever it went: it then reads as the previous one."""

    def revoke(self, previous: Context) -> None:
        """Read as ``previous`` from now on."""
        dict.update(self, previous)
        for name in self.keys() - previous.keys():
            dict.pop(self, name, None)


class BlockScope:
    """Makes ``otel_ctx`` current from construction until :meth:`leave`."""

    def __init__(self, otel_ctx: Context) -> None:
        # The marker's token tells by ValueError whether this is where it was entered; OpenTelemetry's logs an error.
        self._previous = context.get_current()
        self._ctx = RevocableContext(otel_ctx)
        self._marker: Token[object] | None = _entered.set(self)
        self._token = context.attach(self._ctx)

    def leave(self) -> None:
        """Restore what was current before, once; elsewhere, or under another open scope, revoke the context."""
        marker, self._marker = self._marker, None
        if marker is None:
            return
        if _entered.get() is self and _was_set_here(_entered, marker):
            context.detach(self._token)
        else:
            self._ctx.revoke(self._previous)

    def suspend(self) -> Context:
        """Leave; return what was current inside, for a scope that goes on from there."""
        current = context.get_current()
        self.leave()
        return current


class PollScope:
    """Makes the span of ``handled`` current until the next poll; ``previous`` was current before, ``base`` lies behind.

    :func:`ambient_context` finds ``previous`` behind it.
    """

    __slots__ = ("_ctx", "_previous", "_token")

    def __init__(self, base: Context, handled: SupportsHandling, previous: Context) -> None:
        span = handled.span
        own = {SPAN_KEY: span, _HANDLED: handled, _POLLED: (span, previous)}
        self._previous = previous
        self._ctx = RevocableContext({**base, **own} if base else own)
        self._token = _runtime_context.attach(self._ctx)

    def leave(self) -> None:
        """Restore what was current before; revoke the context where that is impossible.

        That is: a span of the application's lies on top, another thread has it, or this is a task's copy of the
        context. What else the handler made current, such as its own baggage, stays without the span.
        """
        current = current_context()
        if current is self._ctx:
            try:
                _runtime_context.detach(self._token)  # the public function logs an error instead of raising
            except (ValueError, RuntimeError):  # of another thread, or of a task's copy of the context
                context.attach(self._previous)
            else:
                old, previous = self._token.old_value, self._previous  # an empty context may never have been set
                if old is not previous and (previous or (old and old is not Token.MISSING)):
                    context.attach(previous)  # that was another consumer's message
                return
        elif trace.get_current_span(current) is self._ctx.get(SPAN_KEY):
            added = {name: value for name, value in current.items() if self._ctx.get(name) is not value}
            context.attach(Context({**self._previous, **added}))
        self._ctx.revoke(self._previous)


def _was_set_here(variable: ContextVar[object], marker: Token[object]) -> bool:
    """Reset ``variable``; return ``False`` where ``marker`` is of another thread or task."""
    try:
        variable.reset(marker)
    except (ValueError, RuntimeError):
        return False
    return True
