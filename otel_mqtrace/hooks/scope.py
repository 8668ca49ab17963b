"""The handling of messages, and its span made current and taken back: by another thread, another task, a finaliser.

What was current before can be restored only where the span was made current. From anywhere else the context that was
handed out is revoked: code that still holds it reads what was current before.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context, trace
from opentelemetry.context import Context

from otel_mqtrace._workers import LiveObjects, process_generation
from otel_mqtrace.hooks.outcome import Handling, PolledHandling, SingleEnd, defer_end
from otel_mqtrace.model import ContextCode
from otel_mqtrace.records.span import UnsampledSpan

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mqtrace.spans.mapping import Attributes


_POLLED: Final = context.create_key("mqtrace-automatic")
_HANDLED: Final = context.create_key("mqtrace-handled")
SPAN_KEY: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, Context())))
"""The key of the current span, which OpenTelemetry creates when it is imported."""
OWN_KEYS: Final = frozenset({SPAN_KEY, _POLLED, _HANDLED})
"""What stands in the context of a handler that has put nothing there itself."""
_NO_CONTEXT: Final = Context()
_entered: Final[ContextVar[object]] = ContextVar("mqtrace-entered", default=None)
_runtime: Final = context._RUNTIME_CONTEXT  # noqa: SLF001 - what the public functions call
_variable: Final = getattr(_runtime, "_current_context", None)
_is_plain: Final = isinstance(_variable, ContextVar)
# Two calls less each than the public functions: a tenth of a poll ("`poll` and its process span").
current_context: Final[Callable[[], Context]] = _variable.get if _is_plain else _runtime.get_current  # type: ignore[union-attr]
"""``opentelemetry.context.get_current``."""
_attach: Final[Callable[[Context], Token[Context]]] = _variable.set if _is_plain else _runtime.attach  # type: ignore[union-attr]
# the public function logs an error instead of raising
_detach: Final[Callable[[Token[Context]], None]] = _variable.reset if _is_plain else _runtime.detach  # type: ignore[union-attr]


def ambient_context() -> Context:
    """Return the current context, without a process span that is current only until its consumer's next poll."""
    current = context.get_current()
    if not current:
        return current
    handled: Any = current.get(_HANDLED)
    previous: Any = current.get(_POLLED)
    is_polled = isinstance(previous, Context) and trace.get_current_span(current) is handled.span
    return previous if is_polled else current


def processing_context(base: Context, handled: Handling) -> Context:
    """Return ``base`` with the span of ``handled`` current in it, and ``handled`` for :func:`handled_here`."""
    return Context({**base, SPAN_KEY: handled.span, _HANDLED: handled})


def handled_here() -> Handling | None:
    """Return the handling of the message being processed here, in a task or a nested span of it as well."""
    current = context.get_current()
    handled: Any = current.get(_HANDLED)
    if handled is not None:
        found: Handling = handled.handling
        return found
    return PolledHandling(is_over=True) if getattr(current, "is_revoked", False) else None


class RevocableContext(Context):
    """A context that its owner can revoke, wherever it went: it then reads as the previous one.

    Scopes end in any order. ``followed`` is what a revoked one reads as, which is not revoked itself; ``followers`` are
    those that read as this one.
    """

    followed: Context | None = None
    followers: LiveObjects[RevocableContext] | None = None

    @property
    def is_revoked(self) -> bool:
        """Whether it reads as another one."""
        return self.followed is not None

    def revoke(self, previous: Context) -> None:
        """Read as ``previous`` from now on, or as what that one reads as, now or later."""
        self.follow(previous)
        for follower in () if self.followers is None else self.followers.all():
            follower.follow(self)

    def follow(self, other: Context) -> None:
        """Read as ``other``, or as what that one follows."""
        while isinstance(other, RevocableContext):
            if other.followed is not None:
                other = other.followed
                continue
            vars(other).setdefault("followers", LiveObjects()).add(self)
            if other.followed is None:  # tested last: another thread may revoke it meanwhile
                break
        self.followed = other
        dict.update(self, other)
        for name in self.keys() - other.keys():
            dict.pop(self, name, None)


class BlockScope:
    """Makes ``otel_ctx`` current from construction until :meth:`leave`, or to the end of a ``with`` block."""

    def __init__(self, otel_ctx: Context) -> None:
        # The marker's token raises ValueError outside the context it was set in; OpenTelemetry's detach logs an error.
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

    def __enter__(self) -> None:
        """Be left with the block."""

    def __exit__(self, *_: object) -> None:
        """Leave."""
        self.leave()

    def suspend(self) -> Context:
        """Leave; return what was current inside, for a scope that goes on from there."""
        current = context.get_current()
        self.leave()
        return current


# -- handlings ---------------------------------------------------------------------------------------------------
SpanIds = bytes
"""The ids of a recorded handling: 16 bytes of trace id, 8 of span id, one of flags."""
ONE_BYTE: Final = tuple(bytes((flags,)) for flags in range(4))
"""The byte for the flags, whose call every message would pay."""
_NO_FAILURE: Final = ContextCode.SUCCESS, None


class ProcessSpan(SingleEnd):
    """The handling of one or several messages, and its span, which is current from :meth:`enter` to :meth:`leave`.

    ``hook`` ends it. ``previous_ctx`` was current before, ``process_ctx`` lies behind the span while the messages are
    handled; ``indexes`` are the positions of the messages among those given to :meth:`ConsumeHook.before`. ``ids`` are
    set where nothing else has to be remembered. ``blocks`` are those that took the messages over, ``worst`` is
    the worst of their outcomes; ``expected_blocks`` is how many there will be, where that is not one for each message.
    """

    previous_ctx = _NO_CONTEXT
    messages = 1
    indexes: tuple[int, ...] = (0,)
    blocks = finished_blocks = 0
    expected_blocks: int | None = None
    worst: tuple[ContextCode, BaseException | None] = _NO_FAILURE
    known_handling: Handling | None = None
    """What ``process.current()`` has returned."""
    _otel_ctx: Context | None = None
    _scope: tuple[RevocableContext, Token[Context], Context] | None = None

    def __init__(  # noqa: PLR0913, PLR0917 - every poll's
        self,
        hook: Any,
        span: Any,
        start_ns: int,
        attributes: Attributes,
        process_ctx: Context = _NO_CONTEXT,
        ids: SpanIds | None = None,
    ) -> None:
        self.hook = hook
        self.span = span
        self.start_ns = start_ns
        self.attributes = attributes
        self.process_ctx = process_ctx
        self.ids = ids
        self.began_in = process_generation()

    @property
    def handling(self) -> Handling:
        """What ``process.current()`` returns while the messages are handled."""
        if self.known_handling is None:
            self.known_handling = PolledHandling(self.span)
        return self.known_handling

    @property
    def has_outcome(self) -> bool:
        """Whether the handler has set an outcome other than success."""
        return self.known_handling is not None and self.known_handling.code is not ContextCode.SUCCESS

    @property
    def otel_ctx(self) -> Context:
        """The context to be current while the messages are handled."""
        if self._otel_ctx is None:
            self._otel_ctx = processing_context(self.process_ctx, self.handling)  # `self` would be a reference cycle
        return self._otel_ctx

    @property
    def is_current(self) -> bool:
        """Whether it was entered and not left."""
        return self._scope is not None

    def enter(self) -> None:
        """Make the span current here, until the next poll."""
        previous, base = self.previous_ctx, self.process_ctx
        own = {SPAN_KEY: self.span, _HANDLED: self, _POLLED: previous}
        ctx = RevocableContext({**base, **own} if base else own)
        self._scope = ctx, _attach(ctx), previous

    def leave(self) -> None:
        """Restore what was current before, once; revoke the context where that is impossible.

        That is: a span of the application's lies on top, another thread has it, or this is a task's copy of the
        context. What else the handler made current, such as its own baggage, stays without the span.
        """
        scope, self._scope = self._scope, None  # it stands in its own context: no cycle is left behind
        if scope is None:
            return
        ctx, token, previous = scope
        current = current_context()
        if current is ctx:
            try:
                _detach(token)
            except (ValueError, RuntimeError):  # of another thread, or of a task's copy of the context
                _attach(previous)
            else:
                if (previous or current_context()) and current_context() is not previous:
                    _attach(previous)  # that was another consumer's message
                return
        elif trace.get_current_span(current) is ctx.get(SPAN_KEY):
            added = {name: value for name, value in current.items() if ctx.get(name) is not value}
            _attach(Context({**previous, **added}))
        ctx.revoke(previous)

    def finish(self, code: ContextCode, exception: BaseException | None, *, later: bool = False) -> None:
        """Record the outcome of one block; the last block of the messages ends the span, as of now.

        With ``later``, in a finaliser, the next hook ends it.
        """
        if code is not ContextCode.SUCCESS and self.worst is _NO_FAILURE:
            self.worst = code, exception
        self.finished_blocks += 1
        expected = self.messages if self.expected_blocks is None else self.expected_blocks
        if self.finished_blocks >= expected:
            end = partial(defer_end, self.hook) if later else self.hook.after
            end(self, code=self.worst[0], exception=self.worst[1])

    def leave_to_blocks(self) -> bool:
        """Return whether blocks are still open: the last of them ends the span, for no further one takes part."""
        self.expected_blocks = self.blocks  # before the other is read: a block of another thread may end meanwhile
        return self.finished_blocks < self.blocks

    def release_span(self) -> None:
        """Keep only the ids of the ended span: this object may be remembered for long.

        An SDK span with its attributes and links is four fifths of it; the previous context may hold one too.
        """
        self.span = ended = trace.NonRecordingSpan(self.span.get_span_context())
        if self.known_handling is not None:
            self.known_handling.span = ended
        if self._otel_ctx is not None:
            dict.__setitem__(self._otel_ctx, SPAN_KEY, ended)
        self.attributes = {}
        if self.previous_ctx:
            outside = trace.get_current_span(self.previous_ctx).get_span_context()
            self.previous_ctx = trace.set_span_in_context(trace.NonRecordingSpan(outside), self.previous_ctx)


def ended_span(ids: SpanIds) -> ProcessSpan:
    """Return a handling that is over and of which only the ids are known."""
    call = ProcessSpan(None, UnsampledSpan(ids[:24], ids[24]), 0, {})
    call.try_end()
    return call


def _was_set_here(variable: ContextVar[object], marker: Token[object]) -> bool:
    """Reset ``variable``; return ``False`` where ``marker`` is of another thread or task."""
    try:
        variable.reset(marker)
    except (ValueError, RuntimeError):
        return False
    return True
