"""The span of a record: each part of the SDK's span is derived from the record when it is read.

The first write to the current span of a handler builds an ordinary SDK span, and reads then go to that one.
"""

from __future__ import annotations

import copy
import logging
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace import _Span as SdkSpan  # the SDK has no public way to set a span's ids
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags

from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode
from otel_mqtrace.spans.mapping import copy_span
from otel_mqtrace.wire.otlp.protobuf import VARINT, delimited, tag, text_bytes, varint
from otel_mqtrace.wire.otlp.sdk_spans import (
    END,
    PARENT_ID,
    SPAN_FLAGS,
    SPAN_ID,
    START,
    TRACE_ID,
    encode_attributes,
    encode_links,
    pack_times,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from opentelemetry.trace import SpanKind
    from opentelemetry.util.types import AttributeValue


_log: Final = logging.getLogger(__name__)
_FLAGS: Final = tuple(map(TraceFlags, range(4)))
_UNSET_STATUS: Final = Status(StatusCode.UNSET)
LOCAL_PARENT, REMOTE_PARENT = (delimited(15, b"") + SPAN_FLAGS[is_remote] for is_remote in (False, True))
new_tuple: Final[Any] = tuple.__new__
"""Make a ``NamedTuple`` of a tuple: its own way is a call of Python's, for each record."""


NativeRecord = tuple[tuple[str, str], bytes, "Collection[str]"]
"""What the trace message of some records is grouped by, topic and region; the records; what finds them: ASCII keys."""


def context_of(ids: bytes, flags: int, trace_state: trace.TraceState | None = None, *, remote: bool) -> SpanContext:
    """Return a span context of ``ids``, 16 bytes of trace id and 8 of span id, and trace flags below 4."""
    trace_id, span_id = int.from_bytes(ids[:16], "big"), int.from_bytes(ids[16:], "big")
    return SpanContext(trace_id, span_id, is_remote=remote, trace_flags=_FLAGS[flags], trace_state=trace_state)


def open_sdk_span(
    record: Any, context: SpanContext, attributes: Mapping[str, AttributeValue], links: Sequence[trace.Link] = ()
) -> trace.Span:
    """Return the open SDK span of ``record``, without calling the processors' ``on_start``."""
    plan = record.plan
    tracer = plan.tracer
    span = SdkSpan(
        name=plan.name,
        context=context,
        parent=record.parent,
        sampler=tracer.sampler,
        resource=tracer.resource,
        attributes=attributes,
        links=links,
        kind=plan.kind,
        span_processor=tracer.span_processor,
        instrumentation_info=tracer.instrumentation_info,
        limits=tracer._span_limits,  # noqa: SLF001 - as the SDK's tracer passes it
        instrumentation_scope=tracer._instrumentation_scope,  # noqa: SLF001 - as above
    )
    span._start_time = record.start_ns  # noqa: SLF001 - start() would call the processors
    return span


class UnsampledSpan(NonRecordingSpan):
    """A span that is not sampled; its context is built when it is first read."""

    _known: SpanContext | None = None

    def __init__(self, ids: bytes, flags: int, trace_state: trace.TraceState | None = None) -> None:
        self.ids = ids
        self._others = flags, trace_state

    def get_span_context(self) -> SpanContext:
        """Return the ids."""
        known = self._known
        if known is None:
            known = self._known = context_of(self.ids, *self._others, remote=False)
        return known

    def __repr__(self) -> str:
        """Return it as the API's class does."""
        return f"NonRecordingSpan({self.get_span_context()!r})"


class _HashedResource(Resource):
    """A resource that computes its hash once: the SDK's encoder hashes it for each span, by a ``json.dumps``."""

    _known: int | None = None

    def __hash__(self) -> int:
        if self._known is None:
            self._known = super().__hash__()
        return self._known


_MAX_RESOURCES: Final = 16
_hashed: Final[dict[int, tuple[Any, Any]]] = {}


def with_known_hash(resource: Any) -> Any:
    """Return a resource equal to ``resource``, the same one at each call."""
    known, hashed = _hashed.get(id(resource), (None, None))
    if known is not resource:
        hashed = resource
        if type(resource) is Resource:
            hashed = _HashedResource(resource.attributes, resource.schema_url)
        if len(_hashed) >= _MAX_RESOURCES:
            _hashed.clear()
        _hashed[id(resource)] = resource, hashed
    return hashed


ENDED: Final = object()
"""Stands for the SDK span of one that ended as a record."""


class _Derived:
    """A part of a ``ReadableSpan`` by private and public name, derived at each read; an assigned part wins."""

    def __init__(self, derive: Callable[[Any], Any]) -> None:
        self._derive = derive

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name.lstrip('_')}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        parts = instance.__dict__
        if self._name in parts:
            return parts[self._name]
        written = parts.get("_written", ENDED)
        return self._derive(instance) if written is ENDED else getattr(written, self._name)


class SpanShape:
    """What all spans of one name and kind of a tracer share."""

    def __init__(
        self, tracer: Any, name: str, kind: SpanKind, constants: Mapping[str, AttributeValue] | None = None
    ) -> None:
        self.tracer = tracer
        self.name = name
        self.kind = kind
        self.constants = dict(constants or {})
        self.head = delimited(5, text_bytes(name)) + tag(6, VARINT) + varint(kind.value + 1)


class RecordSpan(ReadableSpan):
    """A span that holds a record; ``end_ns`` is ``None`` for one that has only started.

    A reader of ``_attributes`` could change them: from then on exporters read the span instead of the record.
    """

    is_record: bool = True

    def __init__(self, record: Any) -> None:
        self.record = record
        self.end_ns: int | None = None

    @property
    def is_untouched(self) -> bool:
        """Return whether the record still equals the span."""
        return PARTS.isdisjoint(self.__dict__)

    @property
    def _has_own_attributes(self) -> bool:
        parts = self.__dict__
        return "_attributes" in parts or parts.get("_written", ENDED) is not ENDED

    @property
    def attributes(self) -> Any:
        """A read-only view, which changes nothing: exporters still read the record."""
        return super().attributes if self._has_own_attributes else MappingProxyType(self.make_attributes())

    @property
    def dropped_attributes(self) -> int:
        """Zero for a record."""
        return super().dropped_attributes if self._has_own_attributes else 0

    @property
    def resource(self) -> Any:
        """A copy of the tracer's with a known hash, unless a processor has put another one here."""
        return self.__dict__.get("_resource") or with_known_hash(self.record.plan.tracer.resource)

    @property
    def instrumentation_scope(self) -> Any:
        """The tracer's, unless a processor has put another one here."""
        return self.__dict__.get("_instrumentation_scope") or self.record.plan.tracer._instrumentation_scope  # noqa: SLF001 - as the SDK's tracer passes it

    def raw_attribute(self, name: str) -> Any:
        """Return an attribute that all messages of the plan have, without deriving the others."""
        return self.record.plan.constants.get(name)

    def make_attributes(self) -> dict[str, Any]:
        """Return all attributes, in a dict of the caller's own."""
        raise NotImplementedError

    def make_links(self) -> Sequence[Any]:
        """Return the links; most records have none."""
        return ()

    def _make_context(self) -> SpanContext:
        known: SpanContext | None = self.__dict__.get("_made_context")
        if known is None:
            record = self.record
            context = context_of(record.ids, record.flags, record.trace_state, remote=False)
            known = self.__dict__.setdefault("_made_context", context)
        return known

    def _make_parent(self) -> SpanContext | None:
        if "_made_parent" not in self.__dict__:  # an encoder reads it several times
            self.__dict__["_made_parent"] = self.record.parent
        parent: SpanContext | None = self.__dict__["_made_parent"]
        return parent

    _context = context = _Derived(_make_context)
    _attributes = _Derived(lambda self: self.__dict__.setdefault("_attributes", self.make_attributes()))
    _name = name = _Derived(attrgetter("record.plan.name"))
    _parent = parent = _Derived(_make_parent)
    _start_time = start_time = _Derived(attrgetter("record.start_ns"))
    _end_time = end_time = _Derived(attrgetter("end_ns"))
    _resource = _Derived(attrgetter("record.plan.tracer.resource"))
    _instrumentation_scope = _Derived(attrgetter("record.plan.tracer._instrumentation_scope"))
    _instrumentation_info = _Derived(attrgetter("record.plan.tracer.instrumentation_info"))
    _kind = kind = _Derived(attrgetter("record.plan.kind"))
    _links = _Derived(lambda self: self.make_links())
    _events: Any = _Derived(lambda _: ())
    _status = status = _Derived(lambda _: _UNSET_STATUS)

    def __copy__(self) -> ReadableSpan:
        """Return a plain span with the same parts."""
        return copy_span(self, dict(self.attributes or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadableSpan:
        """Return the same with copies of its parts; the record leads to the tracer, and that to locks."""
        return copy.deepcopy(copy.copy(self), memo)

    def otlp_head(self, parent_id: bytes | None) -> list[bytes]:
        """Return ids, trace state, name, kind and times as fields of a ``Span``; ``parent_id`` is 8 bytes."""
        record = self.record
        ids = record.ids
        parts = [TRACE_ID, ids[:16], SPAN_ID, ids[16:]]
        if record.trace_state:
            parts.append(delimited(3, text_bytes(record.trace_state.to_header())))
        if parent_id is not None:
            parts += (PARENT_ID, parent_id)
        parts += (record.plan.head, pack_times(START, record.start_ns, END, self.end_ns or 0))
        return parts

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message in pieces; ``None`` where the span must be read instead."""
        raise NotImplementedError

    def to_native(self, dialect: str) -> NativeRecord | None:  # noqa: ARG002 - most records have a template of it
        """Return the native records; ``None`` where the span must be mapped and encoded as any other."""
        return None


PARTS: Final = frozenset(name for name, part in vars(RecordSpan).items() if isinstance(part, _Derived))
"""The attributes of an instance of which a part was read, and may have been changed."""
UNREAD: Final = 2
"""The instance attributes of a span of which nothing was read: its record, its end."""


def _forward(name: str) -> Any:
    """Return a method that calls the one of this name of the SDK span."""

    def write(self: WritableRecordSpan, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._writable(), name)(*args, **kwargs)

    return write


class WritableRecordSpan(RecordSpan, trace.Span):
    """The current span of a handler: the first write builds an SDK span with the same ids, parts and start."""

    @property
    def written(self) -> Any:
        """The SDK span, if anything was written before the end of this one."""
        span = self.__dict__.get("_written")
        return None if span is ENDED else span

    def end_as_record(self, end_ns: int) -> bool:
        """End it; return ``False`` where it was written to, so that the SDK span has to end instead."""
        if not PARTS.isdisjoint(self.__dict__):  # a part was read, and may have been changed
            self._writable()
        if self.__dict__.setdefault("_written", ENDED) is not ENDED:  # one atomic step: other threads may write
            return False
        self.end_ns = end_ns
        return True

    def _writable(self) -> trace.Span:
        span = self.__dict__.get("_written")
        if span is None:
            attributes = self.__dict__.get("_attributes") or self.make_attributes()
            opened = open_sdk_span(self.record, self._make_context(), attributes, self.make_links())
            span = self.__dict__.setdefault("_written", opened)
            self.__dict__.pop("_attributes", None)  # reads go to the SDK span from now on
        if span is ENDED:
            _log.warning("Writing to an ended span.")
            return trace.INVALID_SPAN
        return span  # type: ignore[no-any-return]  # the only other value

    def get_span_context(self) -> SpanContext:
        """Return the ids."""
        return self._make_context()

    def is_recording(self) -> bool:
        """Return whether it has not ended."""
        span = self.__dict__.get("_written")
        return span is None or (span is not ENDED and bool(span.is_recording()))

    def end(self, end_time: int | None = None) -> None:
        """End the SDK span, as any write does; where a handler ends it, its status decides the outcome."""
        span: Any = self._writable()
        attributes = getattr(span, "attributes", None) or {}
        if (
            attributes.get(semconv.MQTRACE_TRACE_TYPE) == semconv.TRACE_TYPE_SUB
            and semconv.MQTRACE_CONTEXT_CODE not in attributes
        ):
            is_success = span.status.status_code is not StatusCode.ERROR
            code = ContextCode.SUCCESS if is_success else ContextCode.FAILED
            span.set_attributes({semconv.MQTRACE_SUCCESS: is_success, semconv.MQTRACE_CONTEXT_CODE: code.name})
        span.end(end_time)

    set_attribute = _forward("set_attribute")
    set_attributes = _forward("set_attributes")
    add_event = _forward("add_event")
    add_link = _forward("add_link")
    update_name = _forward("update_name")
    set_status = _forward("set_status")
    record_exception = _forward("record_exception")
    __exit__ = _forward("__exit__")


class Event(NamedTuple):
    """Any event that is neither a sent message nor handled ones, with its attributes as they were set.

    ``ids`` are trace id and span id, 24 bytes; the links are valid ones.
    """

    plan: SpanShape
    ids: bytes
    parent: SpanContext | None
    flags: int
    trace_state: trace.TraceState | None
    start_ns: int
    attributes: Mapping[str, Any]
    links: Sequence[trace.Link]


class EventSpan(WritableRecordSpan):
    """The span of one event, open until :meth:`end_with`."""

    record: Event
    _outcome: Mapping[str, Any] = {}

    def __init__(self, record: Event) -> None:
        super().__init__(record)
        self.is_record = semconv.MQTRACE_TRACE_TYPE in record.attributes  # else not every exporter of ours wants it

    def end_with(self, attributes: Mapping[str, Any], end_ns: int) -> bool:
        """End it with what was learned since its start; ``False`` where the SDK span has to end instead."""
        self._outcome = attributes
        return self.end_as_record(end_ns)

    def make_attributes(self) -> dict[str, Any]:
        """Return all attributes."""
        return {**self.record.attributes, **self._outcome}

    def make_links(self) -> Sequence[trace.Link]:
        """Return the links."""
        return self.record.links

    def raw_attribute(self, name: str) -> Any:
        """Return one attribute without making the others."""
        if self.written is not None:
            return self.attributes.get(name)
        return self._outcome.get(name, self.record.attributes.get(name))

    def to_otlp(self) -> Sequence[bytes] | None:
        """Return the ``Span`` message in pieces; ``None`` where the span must be read instead."""
        if not self.is_untouched or self.written is not None:
            return None
        record, parent = self.record, self.record.parent
        parts = self.otlp_head(None if parent is None else parent.span_id.to_bytes(8, "big"))
        parts += (encode_attributes({**record.attributes, **self._outcome}), encode_links(record.links))
        parts.append(LOCAL_PARENT if parent is None or not parent.is_remote else REMOTE_PARENT)
        return parts
