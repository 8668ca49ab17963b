"""This module knows one listener call under way: its span, what is current meanwhile, and what is kept of it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final

from opentelemetry import trace
from opentelemetry.context import Context

from otel_mqtrace.hooks._ending import Ending, Handling, _generation
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._scope import Lent, UnreadContext, keep_ids, lent_context, processing_context
from otel_mqtrace.hooks._unread import UnreadSpan
from otel_mqtrace.model import ContextCode
from otel_mqtrace.records.span import flags_of

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from otel_mqtrace.hooks.incoming import IncomingMessage
    from otel_mqtrace.records.handled import Handled
    from otel_mqtrace.spans.mapping import Attributes

__all__ = ["EndedIds", "OpensRecord", "ProcessCall", "RecordedCall", "SilentCall", "ended_call"]

Opens = Callable[[Sequence["IncomingMessage"], Context], "ProcessCall"]
"""Messages of one topic, and what was current where they were handed over → their call."""


EndedIds = bytes
"""What is remembered of a message that was handled as a record: 24 bytes of ids and one of flags."""


OpensRecord = Callable[["Handled", Context], "ProcessCall"]
"""A record, and what was current where its message was handed over → its call."""


_ONE_BYTE: Final = tuple(bytes((flags,)) for flags in range(4))
_NOTHING: Final = Context()
_OPENED: Final = frozenset({"span", "base", "messages", "start_ns", "attributes", "handling"})


@dataclass(slots=True)
class ProcessCall(Ending):
    """One listener call under way.

    ``ambient`` is what was current before, ``base`` what lies behind the span while the messages are handled;
    ``indexes`` tell which of the messages given to :meth:`ConsumeHook.before` it stands for; ``handling`` is what the
    handler says of it by ``process.current()``.
    """

    span: Span
    base: Context
    messages: int
    start_ns: int
    attributes: Attributes
    ambient: Context
    indexes: tuple[int, ...] = (0,)
    handling: Handling = field(default_factory=Handling)
    _current: Context | None = field(default=None, init=False, repr=False, compare=False)
    is_silent: ClassVar[bool] = False

    @property
    def otel_ctx(self) -> Context:
        """What should be current while the messages are handled."""
        if self._current is None:
            self._current = processing_context(self.base, self.handling)
        return self._current

    @property
    def remembered(self) -> ProcessCall | weakref.ref[ProcessCall]:
        """What is kept of it for long, beside its message: itself, whose ids are needed (:meth:`keep_ids`)."""
        return self

    def lent(self) -> Lent:
        """Return the same for a scope that is left at the next poll."""
        return lent_context(self.base, self.handling, self.ambient)

    def keep_ids(self) -> None:
        """Let go of the span that has ended: the call may be remembered for long, and the ids are all that is needed.

        An SDK span, with its attributes and links, is four fifths of a call. What was current before may hold one too.
        """
        ended = trace.NonRecordingSpan(self.span.get_span_context())
        self.span = self.handling.span = ended
        if self._current is not None:
            keep_ids(self._current, ended)
        self.attributes = {}
        if self.ambient:
            outside = trace.get_current_span(self.ambient).get_span_context()
            self.ambient = trace.set_span_in_context(trace.NonRecordingSpan(outside), self.ambient)


class SilentCall(ProcessCall):
    """A call of which nothing is recorded, opened by whoever looks at it, or at what is current: few do."""

    __slots__ = ("__weakref__", "_open", "_opened", "_received")
    __eq__ = object.__eq__
    __hash__ = object.__hash__
    is_silent = True
    is_open = True  # there is nothing to end
    indexes = (0,)

    def __init__(self, opens: Opens, received: Sequence[IncomingMessage], ambient: Context) -> None:
        self.ambient = ambient
        self._current = None
        self._open = opens
        self._received = received
        self._opened: dict[str, ProcessCall] = {}

    def __getattr__(self, name: str) -> Any:
        """Return a part that is not there yet: two who look at the same moment see the same."""
        if name not in _OPENED:
            raise AttributeError(name)
        received = self._received  # before the look: another thread lets go of it when it is done
        opened = self._opened.get("")
        if opened is None:
            opened = self._opened.setdefault("", self._open(received, self.ambient))
            self._received = ()
        return getattr(opened, name)

    @property
    def remembered(self) -> weakref.ref[ProcessCall]:
        """What does not keep the headers of a message that nobody has in hand any more."""
        return weakref.ref(self)

    def lent(self) -> Lent:
        """Return what nobody may ever look into."""
        return UnreadContext(self._lent)

    def _lent(self) -> Context:
        return _looked_at(super().lent) or self.ambient


class RecordedCall(ProcessCall):
    """A call of which a record is kept; its span is opened by whoever looks at it, or at what is current: few do."""

    __slots__ = ("_open", "_opened", "record")
    __eq__ = object.__eq__
    __hash__ = object.__hash__
    indexes = (0,)

    def __init__(self, opens: OpensRecord, record: Handled, ambient: Context) -> None:
        self._unclaimed = bytearray(1)
        self._began_in = _generation[0]
        self.ambient = ambient
        self.record = record
        self._current = None
        self._open = opens
        self._opened: dict[str, ProcessCall | None] = {}

    def __getattr__(self, name: str) -> Any:
        """Return a part of the open call: two who look at the same moment see the same."""
        if name not in _OPENED:
            raise AttributeError(name)
        opened = self._opened.get("")
        if opened is None and "" not in self._opened:
            opened = self._opened.setdefault("", self._open(self.record, self.ambient))
        if opened is None:  # it has ended as a record: its ids are left
            opened = ended_call(self.ended_ids, self.ambient)
        return getattr(opened, name)

    @property
    def ended_ids(self) -> EndedIds:
        """What is left of it once it has ended."""
        record = self.record
        return record.ids + _ONE_BYTE[record.flags]

    def end_as_record(self, end_ns: int) -> bool:
        """End it as the record it is, once, and return whether the caller is to export that.

        It cannot where somebody wrote to its span or said how the message went. From its end on nobody can open it.
        """
        if self._began_in != _generation[0] or not self._unclaimed:
            return False
        opened = self._opened.setdefault("", None)
        if opened is not None:
            span = opened.span
            if opened.handling.code is not ContextCode.SUCCESS or type(span) is not UnreadSpan:
                return False
            if not span.end_untouched(end_ns):
                return False
            opened.keep_ids()
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def lent(self) -> Lent:
        """Return what is put together by the first who looks into it."""
        return UnreadContext(self._lent)

    def _lent(self) -> Context:
        return _looked_at(super().lent) or self.ambient


def ended_call(ids: EndedIds, ambient: Context = _NOTHING) -> ProcessCall:
    """Return a call that is over, of which only the ids are known."""
    trace_id, span_id = int.from_bytes(ids[:16], "big"), int.from_bytes(ids[16:24], "big")
    span_ctx = trace.SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags_of(ids[24]))
    span = trace.NonRecordingSpan(span_ctx)
    call = ProcessCall(span, _NOTHING, 1, 0, {}, ambient, handling=Handling(span))
    call.claim()
    return call


@guarded("SilentCall.lent")
def _looked_at(lent: Callable[[], Lent]) -> Lent:
    return lent()
