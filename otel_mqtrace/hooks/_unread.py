"""This module knows how a span is told its attributes at no cost to its thread: they are made when somebody reads them.

The SDK checks and copies each attribute the moment it is set, which is half of what a span costs the application. Ours
are kept as they came until somebody reads the span: the thread that exports it, as a rule. Whoever reads finds what the
SDK would have made of them, within the same limits.

Only where nobody looks at a span before it is told: the sampler must be one of the SDK's own, which decide by ids
alone, and a span processor that does anything when a span starts must be ours, which can be told a moment later.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

from otel_mqtrace.hooks._sdk import decides_by_ids, processors_at, put_attributes, sampler_of
from otel_mqtrace.spans.told import kept

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opentelemetry.trace import Span, Tracer
    from opentelemetry.util.types import AttributeValue

__all__ = ["UnreadAttributes", "nobody_looks", "tell", "tell_later", "tell_of_start"]

_IDLE_AT_START: Final = frozenset(each.on_start for each in (SpanProcessor, BatchSpanProcessor, SimpleSpanProcessor))


class UnreadAttributes(BoundedAttributes):
    """Attributes of a span, some of them still as they came; any way of reading them makes them what they should be."""

    def __init__(self, maxlen: int | None, max_value_len: int | None, first: Mapping[str, AttributeValue]) -> None:
        self._unread: tuple[Mapping[str, AttributeValue], ...] = ()
        super().__init__(maxlen, immutable=False, max_value_len=max_value_len)
        self._lock: Any = threading.RLock()  # the SDK counts what it drops under it, and asks us for the count
        self._unread = (first,)

    def later(self, attributes: Mapping[str, AttributeValue]) -> None:
        """Add what nobody has read yet; the mapping must not change any more."""
        with self._lock:
            self._unread = (*self._unread, attributes)

    def as_it_came(self, name: str) -> AttributeValue | None:
        """Return the value of ``name`` as it was told, if it was; nothing is made of the others, nor is it bounded."""
        for each in (*reversed(self._unread), self._dict):
            if name in each:
                return each[name]
        return None

    def snapshot(self) -> UnreadAttributes:
        """Return what they are now, read as little as before."""
        with self._lock:
            same = UnreadAttributes(self.maxlen, self.max_value_len, {})
            same._unread, same._dict, same._dropped = self._unread, self._dict.copy(), self._dropped
        return same

    def _read(self) -> None:
        if not self._unread:
            return
        with self._lock:
            while self._unread:
                # Off the list only when it is in the dict: until then every other reader waits for the lock.
                self._dict = self._with(self._dict, self._unread[0])
                self._unread = self._unread[1:]

    def _with(self, made: Mapping[str, Any], told: Mapping[str, AttributeValue]) -> dict[str, Any]:
        """Return ``made`` and what the SDK makes of ``told``; what is made already is made again only to be dropped."""
        if self.maxlen is not None and len(made) + len(told) > self.maxlen:
            made, told = {}, {**{name: value for name, value in made.items() if name not in told}, **told}
        new = BoundedAttributes(self.maxlen, told, max_value_len=self.max_value_len)
        self._dropped += new.dropped
        last = dict(new.copy())
        return {**{name: value for name, value in made.items() if name not in last}, **last} if made else last

    @property
    def dropped(self) -> int:
        """How many there was no room for."""
        self._read()
        return self._dropped

    @dropped.setter
    def dropped(self, count: int) -> None:
        """Set it, as the SDK's own class does while it drops."""
        self._dropped = count

    # -- every way of reading, and of writing, what the SDK's own class has -------------------------------------------

    def __getitem__(self, key: str) -> Any:
        self._read()
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self._read()
        super().__setitem__(key, value)

    def _set_items(self, attributes: Mapping[str, Any]) -> None:
        self._read()
        super()._set_items(attributes)

    def __delitem__(self, key: str) -> None:
        self._read()
        super().__delitem__(key)

    def __iter__(self) -> Iterator[str]:
        self._read()
        every: Iterator[str] = super().__iter__()  # type: ignore[no-untyped-call]  # the SDK's has no types
        return every

    def __len__(self) -> int:
        self._read()
        return super().__len__()

    def __repr__(self) -> str:
        self._read()
        return super().__repr__()

    def __deepcopy__(self, memo: dict[int, Any]) -> BoundedAttributes:
        self._read()
        return super().__deepcopy__(memo)

    def copy(self) -> Any:
        """Return them as a dict of its own."""
        self._read()
        return super().copy()


class _Last:
    """What was found out last, and of what: asked at every span, and the same for all of one provider."""

    known: tuple[object, object, bool] = (None, None, False)


_last: Final = _Last()


def nobody_looks(tracer: Tracer) -> bool:
    """Whether nobody looks at the attributes of a span of ``tracer`` when it starts."""
    sampler, processors = sampler_of(tracer), processors_at(tracer)
    of_sampler, of_processors, answer = _last.known
    if of_sampler is not sampler or of_processors is not processors:
        known = sampler is not None and processors is not None
        answer = known and decides_by_ids(sampler) and all(map(_is_idle_at_start, processors or ()))
        _last.known = sampler, processors, answer
    return answer


def _is_idle_at_start(processor: object) -> bool:
    return getattr(type(processor), "on_start", None) in _IDLE_AT_START or _can_be_told(processor)


def _can_be_told(processor: object) -> bool:
    """Whether it is ours, and does at a start what ours does: a subclass may look for itself."""
    on_start = getattr(type(processor), "on_start", None)
    return getattr(on_start, "can_be_told_of_it_later", False) is True


def tell_of_start(tracer: Tracer, span: Span) -> None:
    """Have the processors look that would have looked at the start, had the span been told its attributes by then."""
    for processor in processors_at(tracer) or ():
        if _can_be_told(processor):
            processor.told_of_start(span)  # type: ignore[attr-defined]  # it is one of ours


def tell_later(span: Span, attributes: Mapping[str, AttributeValue]) -> None:
    """Give a span that has just started its attributes, to be made when it is read."""
    made = kept(span)
    if type(made) is BoundedAttributes and not made:
        put_attributes(span, UnreadAttributes(made.maxlen, made.max_value_len, attributes))
    else:
        span.set_attributes(attributes)


def tell(span: Span, attributes: Mapping[str, AttributeValue]) -> None:
    """Give a span further attributes."""
    made = kept(span)
    if type(made) is UnreadAttributes and span.is_recording():
        made.later(attributes)
    else:
        span.set_attributes(attributes)
