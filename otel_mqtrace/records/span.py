"""The span of a record: every part of the SDK's span, derived from the record when it is read."""

from __future__ import annotations

import copy
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from otel_mqtrace.wire.otlp.protobuf import FIXED32, FIXED64, delimited, tag, varint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LOCAL_PARENT", "REMOTE_PARENT", "NativeRecord", "RecordSpan", "flags_of"]

_FLAGS: Final = tuple(map(TraceFlags, range(4)))
_UNSET_STATUS: Final = Status(StatusCode.UNSET)
_TRACE_ID, _SPAN_ID, _PARENT_ID = tag(1) + varint(16), tag(2) + varint(8), tag(4) + varint(8)
_START, _END = tag(7, FIXED64)[0], tag(8, FIXED64)[0]
_pack_times: Final = Struct("<BQBQ").pack
_UNSET: Final = delimited(15, b"") + tag(16, FIXED32)
LOCAL_PARENT: Final = _UNSET + (0x100).to_bytes(4, "little")
REMOTE_PARENT: Final = _UNSET + (0x300).to_bytes(4, "little")


class NativeRecord(NamedTuple):
    """One encoded record with what its trace message is grouped and found by; the keys are ASCII."""

    topic: str
    region_id: str
    body: bytes
    keys: frozenset[str]


def flags_of(number: int) -> TraceFlags:
    """Return trace flags below 4."""
    return _FLAGS[number]


class _Derived:
    """An attribute worked out at each read; what somebody assigns to the instance wins, and can be seen there."""

    def __init__(self, derive: Callable[[Any], Any]) -> None:
        self._derive = derive

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._derive(instance)


_OVERRIDES: Final = frozenset(
    {
        "_attributes",
        "_context",
        "_end_time",
        "_events",
        "_instrumentation_scope",
        "_kind",
        "_links",
        "_name",
        "_parent",
        "_resource",
        "_start_time",
        "_status",
    }
)


class RecordSpan(ReadableSpan):
    """A span that holds a record; ``end_ns`` is ``None`` for one that has only started.

    Whoever reads the attributes could change them: from then on exporters read the span instead of the record.
    """

    is_record: Final = True

    def __init__(self, record: Any, end_ns: int | None) -> None:
        self.record = record
        self.end_ns = end_ns

    @property
    def is_untouched(self) -> bool:
        """Whether the record still says all that the span does."""
        return _OVERRIDES.isdisjoint(self.__dict__)

    @property
    def resource(self) -> Any:
        """The tracer's, unless somebody has put another one here; likewise the scope."""
        return self.__dict__.get("_resource") or self.record.plan.tracer.resource

    @property
    def instrumentation_scope(self) -> Any:
        """See :attr:`resource`."""
        return self.__dict__.get("_instrumentation_scope") or self.record.plan.tracer._instrumentation_scope  # noqa: SLF001 - as the SDK's tracer passes it

    def as_it_came(self, name: str) -> Any:
        """Return an attribute that all messages of the plan have."""
        return self.record.plan.constants.get(name)

    def make_attributes(self) -> dict[str, Any]:
        """Return all attributes, in a dict of the caller's own."""
        raise NotImplementedError

    def make_links(self) -> Sequence[Any]:
        """Return the links; most records have none."""
        return ()

    def _make_context(self) -> SpanContext:
        known: SpanContext | None = self.__dict__.get("_ids")
        if known is None:
            ids, flags = self.record.ids, _FLAGS[self.record.flags]
            trace_id, span_id = int.from_bytes(ids[:16], "big"), int.from_bytes(ids[16:], "big")
            known = self.__dict__.setdefault("_ids", SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags))
        return known

    _context = _Derived(_make_context)
    _attributes = _Derived(lambda self: self.__dict__.setdefault("_attributes", self.make_attributes()))
    _name = _Derived(lambda self: self.record.plan.name)
    _parent = _Derived(lambda self: self.record.parent)
    _start_time = _Derived(lambda self: self.record.start_ns)
    _end_time = _Derived(lambda self: self.end_ns)
    _resource = _Derived(lambda self: self.record.plan.tracer.resource)
    _instrumentation_scope = _Derived(lambda self: self.record.plan.tracer._instrumentation_scope)  # noqa: SLF001 - as the SDK's tracer passes it
    _instrumentation_info = _Derived(lambda self: self.record.plan.tracer.instrumentation_info)
    _kind = _Derived(lambda self: self.record.plan.kind)
    _links = _Derived(lambda self: self.make_links())
    _events: Any = ()
    _status = _UNSET_STATUS

    def __copy__(self) -> ReadableSpan:
        """Return a span of the SDK that says the same."""
        return ReadableSpan(
            name=self.name,
            context=self.context,
            parent=self.parent,
            resource=self.resource,
            attributes=dict(self.attributes or {}),
            links=self.links,
            kind=self.kind,
            status=self.status,
            start_time=self.start_time,
            end_time=self.end_time,
            instrumentation_scope=self.instrumentation_scope,
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadableSpan:
        """Return the same with a copy of all it says; the record itself leads to the tracer, and that to locks."""
        return copy.deepcopy(copy.copy(self), memo)

    def otlp_head(self) -> list[bytes]:
        """Return ids, name, kind and times as fields of a ``Span``."""
        record = self.record
        ids, parent_id = record.ids, record.parent_span_id
        times = _pack_times(_START, record.start_ns, _END, self.end_ns or 0)
        if parent_id is None:
            return [_TRACE_ID, ids[:16], _SPAN_ID, ids[16:], record.plan.head, times]
        return [_TRACE_ID, ids[:16], _SPAN_ID, ids[16:], _PARENT_ID, parent_id, record.plan.head, times]

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message in pieces; ``None`` where the span must be read instead."""
        raise NotImplementedError

    def to_native(self, dialect: str) -> NativeRecord | None:
        """Return the native record; ``None`` where the span must be mapped and encoded as any other."""
        raise NotImplementedError
