"""This module knows a span that is made when it is read: by the thread that exports it, as a rule.

The SDK checks and copies each attribute and link the moment it is given one, and makes a lock, two lists and a second
span for each: half of what a span costs the application. Ours keep what they are told as it came. Whoever reads one, or
does to it what is not done here, finds the SDK's own span, within the same limits: its class makes all of it.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace import _Span as SdkSpan
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from otel_mqtrace import semconv
from otel_mqtrace._clock import SystemClock
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._sdk import is_unlimited
from otel_mqtrace.wire.otlp.sdk_spans import span_head, span_tail

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import SpanKind
    from typing_extensions import Self

__all__ = ["Later", "PlainLink", "UnreadSpan", "all_of"]

Attributes = Mapping[str, AttributeValue]


class PlainLink(NamedTuple):
    """A link as it was told: the API's checks and copies its attributes when it is made."""

    context: SpanContext
    attributes: Attributes | None = None

    @property
    def dropped_attributes(self) -> int:
        """No limit has taken any: see :meth:`UnreadSpan.plainly`."""
        return 0


Later = Callable[[], tuple[Attributes, Sequence[PlainLink]]]
"""All attributes and links of a span, put together when it is called."""
Given = tuple[
    Any,
    object,
    "Resource",
    str,
    SpanContext,
    "SpanContext | None",
    "SpanKind",
    Attributes,
    Sequence[Link],
    "Later | None",
    int,
]
"""What a span starts with: its tracer, whose processors and resource are these; name, ids, those of its parent, kind;
its first attributes and its links, what returns all of them (if there are more), its start in nanoseconds of the epoch.
"""
_TRACER: Final = 0
_PROCESSORS: Final = 1
_CONTEXT: Final = 4
_FIRST: Final = 7
_READ: Final = {"_resource": 2, "_name": 3, "_parent": 5, "_kind": 6, "_start_time": 10}
"""Where that is of which the SDK's class has a name."""
_T = TypeVar("_T")

_log: Final = logging.getLogger(__name__)
_one: Final = bytearray(1)
_MOST_TOLD: Final = 32
"""As often may a span be told something before it is made all the same: the SDK bounds what it keeps, too."""
_FREEZES: Final = "_immutable" in getattr(getattr(SdkSpan.end, "__code__", None), "co_names", ())
"""Whether this version of the SDK lets nobody change the attributes of a span that has ended."""
_PLAIN: Final = frozenset({str, int, bool, float})
_SAID: Final = frozenset({"_attributes", "_links", *_READ})
_OUTCOME: Final = {semconv.MQTRACE_COST_TIME, semconv.MQTRACE_SUCCESS, semconv.MQTRACE_CONTEXT_CODE}
_SUCCESS: Final = "SUCCESS"
_KEPT: Final = frozenset({"_start_time", "_end_time", "_status", "_record_end_metrics"})
_OWN: Final = frozenset({"_given", "_told", "_making"})
"""What is not there yet is not the SDK's to make."""


class UnreadSpan(SdkSpan):
    """One span as it was told; the first look at it makes of that what the SDK would have made at once."""

    _given: Given
    _context: SpanContext
    _attributes: Any
    _is_made = False
    _end_time: int | None = None
    _status = Status(StatusCode.UNSET)
    _record_end_metrics: Callable[[], None] | None = None

    def __new__(cls, *_: Any) -> Self:
        """Make one of nothing; the SDK's class asks here who calls it, which its tracer may."""
        return object.__new__(cls)

    def __init__(self, given: Given) -> None:
        self._given = given
        self._context = given[_CONTEXT]
        self._told: list[Attributes | Callable[[], Attributes]] = []
        self._unended = _one.copy()

    def tell(self, attributes: Attributes | Callable[[], Attributes]) -> None:
        """Add attributes, or what will return some, that nobody has read yet; they must not change any more."""
        if self._is_made or self._end_time is not None:
            super().set_attributes(_said(attributes))
            return
        self._told.append(attributes)
        if self._is_made:  # by another thread, just now, which did not see this any more
            self._make()

    def set_attribute(self, key: str, value: Any) -> None:
        """Set one attribute; the application's own, in a handler, need not make the span there either."""
        if type(value) in _PLAIN and type(key) is str and len(self._told) < _MOST_TOLD:
            self.tell({key: value})
        else:
            super().set_attribute(key, value)

    def as_it_came(self, name: str) -> Any:
        """Return the value of ``name`` that it started with, if any; nothing is made of it, nor is it bounded."""
        return self._given[_FIRST].get(name)

    def snapshot(self) -> UnreadSpan | None:
        """Return what it is now and will not go on to be; ``None`` where that is more than what it started with."""
        given = self._given
        return None if self._told or self._is_made else UnreadSpan(given)

    def plainly(self) -> ReadableSpan | None:
        """Return what an exporter reads of it, where the SDK would have changed nothing; else ``None``.

        That is: it has not been made, each value is plain, no limit is near. The SDK takes half an exporter's time.
        """
        given, told = self._given, self._told.copy()
        # Asked after that was taken: whoever makes it says so before letting go of what it was told.
        if self._is_made or not _SAID.isdisjoint(vars(self)):  # or somebody has put there what it shall say
            return None
        tracer, _, resource, name, _, parent, kind, first, given_links, later, start_ns = given
        limits = tracer._span_limits  # noqa: SLF001 - as below
        if limits.max_attribute_length is not None or limits.max_span_attribute_length is not None:
            return None
        attributes, links = (later and _made(later)) or (first, given_links)
        if told:
            attributes = dict(attributes)
            for each in told:
                attributes.update(_said(each))
        if not (_fits(attributes, limits.max_span_attributes) and _is_within(links, limits.max_links)):
            return None
        if not all(_fits(each.attributes or {}, limits.max_link_attributes) for each in links):
            return None
        return ReadableSpan(
            name=name,
            context=self._context,
            parent=parent,
            resource=resource,
            attributes=attributes,
            links=links,  # type: ignore[arg-type]  # they have what is asked of one: a context, and attributes
            kind=kind,
            status=self._status,
            start_time=start_ns,
            end_time=self._end_time,
            instrumentation_scope=tracer._instrumentation_scope,  # noqa: SLF001 - as below
        )

    def end(self, end_time: int | None = None) -> None:
        """End it, once, and hand it to the span processors."""
        try:
            self._unended.pop()  # which no other thread can come between
        except IndexError:
            _log.warning("Calling end() on an ended span.")
            return
        processor = self._given[_TRACER].span_processor
        if self._is_made or processor._span_processors is not self._given[_PROCESSORS]:  # noqa: SLF001 - as in _start.py
            self._make()  # all of it: another thread may be at it
            super().end(end_time)
            return
        self._end_time = SystemClock.wall_ns() if end_time is None else end_time
        if self._is_made:  # by another thread, just now, which did not see the end any more
            self._make()
        if self._record_end_metrics is not None:
            self._record_end_metrics()
        processor.on_end(self)

    @property
    def instrumentation_scope(self) -> Any:
        """The tracer's, unless somebody has put another one here."""
        own = self.__dict__.get("_instrumentation_scope")
        return self._given[_TRACER]._instrumentation_scope if own is None else own  # noqa: SLF001 - as the SDK passes it

    def _outcome(self) -> Attributes | None:
        """Return what was told at its end, where that is success and nothing else was ever told; ``None`` otherwise."""
        if self._is_made or "_status" in self.__dict__ or not _SAID.isdisjoint(vars(self)):
            return None
        told, tracer = self._told.copy(), self._given[_TRACER]
        if not is_unlimited(tracer) or not hasattr(self._given[-2], "to_native"):
            return None
        if self._end_time is None:
            return {} if not told else None
        if len(told) != 1 or not isinstance(told[0], dict) or told[0].keys() != _OUTCOME:
            return None
        is_success = told[0][semconv.MQTRACE_SUCCESS] and told[0][semconv.MQTRACE_CONTEXT_CODE] == _SUCCESS
        return None if self._is_made or not is_success else told[0]

    def to_native(self, dialect: str) -> Any:
        """Return the native records of a batch of messages; ``None`` where the span must be mapped as any other."""
        outcome = self._outcome()
        later: Any = self._given[-2]
        return (
            None
            if outcome is None or later is None
            else later.to_native(dialect, self._given[-1], self._end_time, outcome)
        )

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message of a batch in pieces; ``None`` where the span must be read instead."""
        outcome = self._outcome()
        later: Any = self._given[-2]
        if outcome is None or later is None or self._end_time is None:
            return None
        said = later.to_otlp(outcome)
        if said is None:
            return None
        _, _, _, name, context, parent, kind, _, _, _, start_ns = self._given
        return [*span_head(context, parent, name, kind, start_ns, self._end_time), *said, span_tail(parent)]

    def end_untouched(self, end_ns: int) -> bool:
        """End it without handing it to anybody, if nothing was ever written to it; return whether that was so."""
        if self._told or self._is_made or "_status" in self.__dict__ or not _SAID.isdisjoint(vars(self)):
            return False
        try:
            self._unended.pop()
        except IndexError:
            return False
        self._end_time = end_ns
        return True

    def __copy__(self) -> ReadableSpan:
        """Return what it is now, to be read: a second one must not end for the first."""
        return copy.copy(self._readable_span())

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadableSpan:
        """Return the same, and a copy of all it says."""
        return copy.deepcopy(self._readable_span(), memo)

    def __getattr__(self, name: str) -> Any:
        """Return what it was given; make the span for whoever looks for another part that is not there yet."""
        if not name.startswith("_") or name.startswith("__") or name in _OWN:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name in _READ:
            return self._given[_READ[name]]
        self._make()
        return object.__getattribute__(self, name)

    def _make(self) -> None:
        """Have the SDK make what is not made yet, under a lock of the span's own that whoever comes first brings."""
        with self.__dict__.setdefault("_making", threading.RLock()):
            if not self._is_made:
                told = self._told.copy()
                for name, part in self._made_of(told).items():
                    self.__dict__.setdefault(name, part)  # what somebody else has put there stays
                self._is_made = True
                self._given = (*self._given[:-2], None, self._given[-1])  # without what was to be read later
                del self._told[: len(told)]
            while self._told:
                said = _said(self._told.pop(0))
                if getattr(self._attributes, "_immutable", False):
                    super().set_attributes(said)  # which says that it is too late
                    continue
                for name, value in said.items():  # told in time, however late it is now
                    self._attributes[name] = value
            if self._end_time is not None and _FREEZES and type(self._attributes) is BoundedAttributes:
                self._attributes._immutable = True  # noqa: SLF001 - as the SDK's end does

    def _made_of(self, told: Sequence[Attributes | Callable[[], Attributes]]) -> dict[str, Any]:
        """Return every part that the SDK gives a span which is told this, but for what this one has already."""
        tracer, _, resource, name, _, parent, kind, first, given_links, later, _ = self._given
        attributes, links = (later and _made(all_of, later)) or (first, given_links)
        span = SdkSpan(
            name=name,
            context=self._context,
            parent=parent,
            sampler=tracer.sampler,
            resource=resource,
            attributes=attributes,
            links=links,
            kind=kind,
            span_processor=tracer.span_processor,
            instrumentation_info=tracer.instrumentation_info,
            limits=tracer._span_limits,  # noqa: SLF001 - the SDK's own start passes it so
            instrumentation_scope=tracer._instrumentation_scope,  # noqa: SLF001 - as above
        )
        for each in told:
            span.set_attributes(_said(each))
        return {name: part for name, part in vars(span).items() if name not in _KEPT}


def _is_within(given: Sized, most: int | None) -> bool:
    return most is None or len(given) <= most


def _fits(attributes: Attributes, most: int | None) -> bool:
    """Whether the SDK would take all of them, and as they are."""
    if not (_is_within(attributes, most) and isinstance(attributes, dict)):
        return False
    return all(map(_is_plain, attributes.values())) and "" not in attributes


def _is_plain(value: object) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(type(each) is str for each in value))


def all_of(later: Later) -> tuple[Attributes, list[Link]]:
    """Return the attributes and the links of a span as the SDK takes them."""
    attributes, links = later()
    return attributes, [Link(*each) for each in links]


def _said(told: Attributes | Callable[[], Attributes]) -> Attributes:
    return (_made(told) or {}) if callable(told) else told


@guarded("UnreadSpan.later")
def _made(make: Callable[..., _T], *of: Any) -> _T:
    return make(*of)
