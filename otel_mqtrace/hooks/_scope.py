"""This module knows how a span becomes current and stops being so, without a trace of it on any other thread.

``EnteredScope`` is for a block, ``AutomaticScope`` for a span that stays current until the next poll. Each is left from
wherever its end comes to light: another thread, another task, the garbage collector. Only where it was entered can what
was current before be restored; from anywhere else the context that was handed out is taken back, so that whoever still
has it for the current one reads in it what was current before.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, trace
from opentelemetry.context import Context

from otel_mqtrace.hooks._ending import Handling

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.trace import Span

__all__ = [
    "OWN_KEYS",
    "AutomaticScope",
    "EnteredScope",
    "Lent",
    "UnreadContext",
    "ambient_context",
    "current_context",
    "handled_here",
    "keep_ids",
    "lent_context",
    "processing_context",
]

_AUTOMATIC: Final = context.create_key("mqtrace-automatic")
_HANDLED: Final = context.create_key("mqtrace-handled")
_SPAN: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""The key of the current span: OpenTelemetry makes it at its start."""
OWN_KEYS: Final = frozenset({_SPAN, _AUTOMATIC, _HANDLED})
"""What stands in the context of a handler that has put nothing there itself."""
_entered: Final[ContextVar[object]] = ContextVar("mqtrace-entered", default=None)
_runtime_context: Final = context._RUNTIME_CONTEXT  # noqa: SLF001 - what its public functions work on


current_context: Final = _runtime_context.get_current
"""``opentelemetry.context.get_current`` without the call in between."""


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
    return Context({**base, _SPAN: handling.span, _HANDLED: handling})


def lent_context(base: Context, handling: Handling, before: Context) -> Lent:
    """Return the same for an :class:`AutomaticScope`; :func:`ambient_context` finds ``before`` behind it."""
    span = handling.span
    return Lent({**base, _SPAN: span, _HANDLED: handling, _AUTOMATIC: (span, before)})


def keep_ids(otel_ctx: Context, ended: Span) -> None:
    """Put ``ended``, which has only the ids of a span, where ``otel_ctx`` has the span: it may be kept for long.

    In place, for one made by :func:`processing_context`: where that is current it is a copy of it.
    """
    dict.__setitem__(otel_ctx, _SPAN, ended)


def handled_here() -> Handling | None:
    """Return the handling of the message that is being processed here, in a task or a nested span of it as well."""
    found = context.get_current().get(_HANDLED)
    return found if isinstance(found, Handling) else None


class Lent(Context):
    """A context that its owner can take back, wherever it went: it then reads as the one it stood on.

    It is said before it is done: a first look that is under way on another thread does it again.
    """

    _outer: Context | None = None

    def take_back(self, outer: Context) -> None:
        """Read as ``outer`` from now on."""
        self._outer = outer
        dict.update(self, outer)
        for name in self.keys() - outer.keys():
            dict.pop(self, name, None)


class UnreadContext(Lent):
    """A context that is put together by the first look into it, and is any other from then on.

    Any thread may look, and several at once. Whoever takes it back, a finaliser perhaps, does not.
    """

    def __init__(self, put_together: Callable[[], Context]) -> None:
        self._put_together = put_together

    def take_back(self, outer: Context) -> None:
        """Read as ``outer``, without a look at what would have been there."""
        self.__class__ = Lent  # type: ignore[assignment]  # of the same layout
        Lent.take_back(self, outer)


def _read(unread: UnreadContext) -> None:
    dict.update(unread, unread._put_together())  # noqa: SLF001 - ours; by now another thread may have made it a Lent
    unread.__class__ = Lent  # type: ignore[assignment]  # as above
    outer = unread._outer  # noqa: SLF001 - as above
    if outer is not None:
        Lent.take_back(unread, outer)


def _at_a_look(name: str) -> Callable[..., Any]:
    of_any = getattr(Lent, name)

    @functools.wraps(of_any)
    def look(self: UnreadContext, *args: Any) -> Any:
        for each in (self, *args):  # a dict looks into another one past its methods
            if type(each) is UnreadContext:
                _read(each)
        return of_any(self, *args)

    return look


for _look in (
    *("__contains__", "__eq__", "__getitem__", "__iter__", "__len__", "__ne__", "__or__", "__repr__"),
    *("__reversed__", "__ror__", "copy", "get", "items", "keys", "values"),
):
    setattr(UnreadContext, _look, _at_a_look(_look))


class EnteredScope:
    """Makes ``otel_ctx`` current from construction until :meth:`leave`."""

    def __init__(self, otel_ctx: Context) -> None:
        # The marker's token answers "am I where I was entered?" by ValueError; OpenTelemetry's would log an error.
        self._before = context.get_current()
        self._ctx = Lent(otel_ctx)
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
    """Makes ``lent`` current until left by whoever polls next; ``before`` is what was current before."""

    __slots__ = ("_before", "_ctx", "_token")

    def __init__(self, lent: Lent, before: Context) -> None:
        self._before = before
        self._ctx = lent
        self._token = _runtime_context.attach(lent)

    def leave(self) -> None:
        """Restore what was current before; where that is impossible take the context back.

        Impossible is: a span of the user's lies on top of it, another thread has it, or this is a task's copy of the
        context it was entered in. What else the handler made current, its own baggage say, stays so without the span.
        Into what nobody has looked there is nothing on top of, and this is no look: a finaliser may come here.
        """
        current = current_context()
        if current is self._ctx:
            try:
                _runtime_context.detach(self._token)  # the public function logs an error instead of raising
            except (ValueError, RuntimeError):  # of another thread, or of a task's copy of the context
                context.attach(self._before)
            else:
                if not _is_same(self._token.old_value, self._before):  # that was another consumer's message
                    context.attach(self._before)
                return
        elif type(self._ctx) is not UnreadContext and trace.get_current_span(current) is self._ctx.get(_SPAN):
            added = {name: value for name, value in current.items() if self._ctx.get(name) is not value}
            context.attach(Context({**self._before, **added}))
        self._ctx.take_back(self._before)


def _is_same(previous: object, before: Context) -> bool:
    """Whether ``previous``, as a token has it, is ``before``; an empty context may never have been set."""
    return previous is before or not (before or (previous and previous is not Token.MISSING))


def _was_set_here(variable: ContextVar[object], marker: Token[object]) -> bool:
    """Whether ``marker`` is of this thread and task; the variable is reset if so."""
    try:
        variable.reset(marker)
    except (ValueError, RuntimeError):
        return False
    return True
