"""One successful send: the tuple recorded of it, and the native record, OTLP bytes and span that follow from it."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from otel_mqtrace import semconv
from otel_mqtrace.model import MessageType, TraceType
from otel_mqtrace.wire.native.template import record_template
from otel_mqtrace.wire.otlp.protobuf import (
    FIXED32,
    FIXED64,
    TEXT_VALUE,
    VARINT,
    attribute_heads,
    delimited,
    number_attribute,
    tag,
    text_bytes,
    varint,
)
from otel_mqtrace.wire.otlp.sdk_spans import encode_attributes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.util.types import AttributeValue

__all__ = ["LeaderSource", "NativeRecord", "SendPlan", "Sent", "SentSpan"]

_SPAN_ATTRIBUTE: Final = 9
_VARYING: Final = ("timestamp_ms", "msg_id", "offset_msg_id", "body_length", "cost_ms")
_NS_PER_MS: Final = 1_000_000
_MAX_COST_MS: Final = 1 << 31
_KIND: Final = tag(6, VARINT) + varint(SpanKind.PRODUCER.value + 1)
_TRACE_ID, _SPAN_ID, _PARENT_ID = tag(1) + varint(16), tag(2) + varint(8), tag(4) + varint(8)
_START, _END = tag(7, FIXED64)[0], tag(8, FIXED64)[0]
_pack_times: Final = Struct("<BQBQ").pack
_UNSET: Final = delimited(15, b"") + tag(16, FIXED32)
_LOCAL_PARENT: Final = _UNSET + (0x100).to_bytes(4, "little")
_REMOTE_PARENT: Final = _UNSET + (0x300).to_bytes(4, "little")
_MSG_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MESSAGING_MESSAGE_ID, TEXT_VALUE)
_REQUEST_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MQTRACE_REQUEST_ID, TEXT_VALUE)
_OFFSET_ID: Final = attribute_heads(_SPAN_ATTRIBUTE, semconv.MQTRACE_OFFSET_MSG_ID, TEXT_VALUE)
_offset: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MESSAGING_KAFKA_OFFSET)
_store_time: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MQTRACE_STORE_TIME)
_cost: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MQTRACE_COST_TIME)
_body_size: Final = number_attribute(_SPAN_ATTRIBUTE, semconv.MESSAGING_MESSAGE_BODY_SIZE)


class LeaderSource(Protocol):
    """Who leads a partition, as far as it is known now."""

    @property
    def cluster_id(self) -> str | None:
        """What the cluster calls itself."""
        ...

    def of(self, topic: str | None, partition: int | None) -> str | None:
        """Return ``host:port`` of the leader."""
        ...

    def want(self, topic: str) -> None:
        """Have the leaders of ``topic`` looked up."""
        ...


class Sent(NamedTuple):
    """One message between ``produce()`` and its delivery report.

    ``ids`` are trace id and span id, 24 bytes. ``parent`` is the span it was sent under. ``body_length`` is in bytes,
    ``None`` for a tombstone. ``found`` are the headers that say something of the message: ``TAGS`` and ``KEYS``.
    ``generation`` counts the forks before it: a child does not end what its parent sent.
    """

    plan: SendPlan
    ids: bytes
    parent: SpanContext | None
    flags: int
    msg_id: str
    start_ns: int
    body_length: int | None
    key: object
    found: Mapping[str, Any]
    ambient: Any
    generation: int


class NativeRecord(NamedTuple):
    """One encoded record with what its trace message is grouped and found by."""

    topic: str
    region_id: str
    body: bytes
    keys: frozenset[str]


class _Place(NamedTuple):
    """What all messages of a partition say, as long as its leader stays."""

    attributes: bytes
    templates: dict[str, tuple[str, tuple[int, ...]] | None]
    """Dialect → :func:`record_template`."""
    store_host: str | None
    partition_id: str


class SendPlan:
    """What all messages of one producer and topic have in common, worked out once.

    Args:
        topic: Where they are sent.
        ground: The tracer and its processors, resource and scope; the plan holds while they stay.
        constants: Attributes that never change.
        leaders: Who knows the partitions' leaders; ``None`` when nobody does.
        server: Named as the store host while no leader is known.
        attributes_of: Returns all attributes of one span.
        new_id: Draws request ids.
    """

    def __init__(  # noqa: PLR0913 - collaborators by their names
        self,
        topic: str,
        *,
        ground: Any,
        constants: Mapping[str, AttributeValue],
        leaders: LeaderSource | None,
        server: str | None,
        attributes_of: Callable[[SentSpan], dict[str, Any]],
        new_id: Callable[[], str],
    ) -> None:
        self.topic = topic
        self.ground = ground
        self.tracer = ground.tracer
        self.name = f"send {topic}"
        self.constants = {**constants, semconv.MQTRACE_SUCCESS: True}
        self.attributes_of = attributes_of
        self.new_id = new_id
        self._leaders = leaders
        self._server = server
        self.head = delimited(5, text_bytes(self.name)) + _KIND
        self._constant = encode_attributes(self.constants)
        self._places: dict[tuple[int, str | None, str | None], _Place] = {}

    def facts_of(self, partition: int) -> tuple[str | None, str | None, str]:
        """Return the store host and the cluster's id, as known now, and a new request id."""
        leaders = self._leaders
        if leaders is None:
            return self._server, None, self.new_id()
        return leaders.of(self.topic, partition) or self._server, leaders.cluster_id, self.new_id()

    def place(self, partition: int, store_host: str | None, cluster_id: str | None) -> _Place:
        """Return what all messages of ``partition`` say."""
        place = self._places.get((partition, store_host, cluster_id))
        if place is None:
            said = {
                semconv.MESSAGING_DESTINATION_PARTITION_ID: str(partition),
                semconv.MQTRACE_STORE_HOST: store_host,
                semconv.MESSAGING_KAFKA_CLUSTER_ID: cluster_id,
            }
            known = encode_attributes({name: value for name, value in said.items() if value is not None})
            place = _Place(self._constant + known, {}, store_host, f"{self.topic}-{partition}@")
            if len(self._places) >= _MAX_PLACES:
                self._places.clear()
            self._places[partition, store_host, cluster_id] = place
        return place

    def template(self, place: _Place, dialect: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the native record with its constants filled in; ``None`` where it must be encoded as a whole."""
        try:
            return place.templates[dialect]
        except KeyError:
            said = self.constants
            constants = {
                "region_id": said.get(semconv.MQTRACE_REGION_ID),
                "group_name": said.get(semconv.MQTRACE_GROUP_NAME),
                "topic": self.topic,
                "tags": None,
                "keys": None,
                "store_host": place.store_host,
                "client_host": said.get(semconv.MQTRACE_CLIENT_HOST),
                "msg_type": MessageType.NORMAL,
                "success": True,
            }
            is_plain = None not in (constants["region_id"], constants["group_name"]) and self.topic.isprintable()
            made = record_template(dialect, TraceType.PUB, constants, _VARYING) if is_plain else None
            place.templates[dialect] = made
            return made


_MAX_PLACES: Final = 4_096


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
_UNSET_STATUS: Final = Status(StatusCode.UNSET)


class SentSpan(ReadableSpan):
    """The ended span of one successful send, read from its record.

    It holds the record and where the message lies; every attribute of the SDK's span is derived from them when it is
    read. Nothing of the record is used any more for whoever has read, and could change, the attributes.
    """

    def __init__(self, sent: Sent, end_ns: int, partition: int, offset: int) -> None:
        self.sent = sent
        self.end_ns = end_ns
        self.partition = partition
        self.offset = offset

    @property
    def facts(self) -> tuple[str | None, str | None, str]:
        """Store host, cluster id, request id: the same for all who ask, as of the first of them."""
        known: tuple[str | None, str | None, str] | None = self.__dict__.get("_facts")
        if known is None:
            known = self.__dict__.setdefault("_facts", self.sent.plan.facts_of(self.partition))
        return known

    def as_it_came(self, name: str) -> Any:
        """Return an attribute that all messages of the plan have."""
        return self.sent.plan.constants.get(name)

    def _make_context(self) -> SpanContext:
        known: SpanContext | None = self.__dict__.get("_ids")
        if known is None:
            ids, flags = self.sent.ids, _FLAGS[self.sent.flags]
            trace_id, span_id = int.from_bytes(ids[:16], "big"), int.from_bytes(ids[16:], "big")
            known = self.__dict__.setdefault("_ids", SpanContext(trace_id, span_id, is_remote=False, trace_flags=flags))
        return known

    def _make_attributes(self) -> dict[str, Any]:
        made: dict[str, Any] = self.__dict__.setdefault("_attributes", self.sent.plan.attributes_of(self))
        return made

    _context = _Derived(_make_context)
    _attributes = _Derived(_make_attributes)
    _name = _Derived(lambda self: self.sent.plan.name)
    _parent = _Derived(lambda self: self.sent.parent)
    _start_time = _Derived(lambda self: self.sent.start_ns)
    _end_time = _Derived(lambda self: self.end_ns)
    _resource = _Derived(lambda self: self.sent.plan.tracer.resource)
    _instrumentation_scope = _Derived(lambda self: self.sent.plan.tracer._instrumentation_scope)  # noqa: SLF001 - as the SDK's tracer passes it
    _instrumentation_info = _Derived(lambda self: self.sent.plan.tracer.instrumentation_info)
    _kind = SpanKind.PRODUCER
    _status = _UNSET_STATUS
    _events = ()
    _links = ()

    def to_native(self, dialect: str) -> NativeRecord | None:
        """Return its native record; ``None`` where the span must be mapped and encoded as any other."""
        if not _OVERRIDES.isdisjoint(vars(self)):
            return None
        sent = self.sent
        if sent.found:
            return None
        plan = sent.plan
        store_host, cluster_id, _ = self.facts
        place = plan.place(self.partition, store_host, cluster_id)
        template = plan.template(place, dialect)
        start_ms = sent.start_ns // _NS_PER_MS
        cost_ms = self.end_ns // _NS_PER_MS - start_ms
        if template is None or not 0 <= cost_ms < _MAX_COST_MS:
            return None
        text, order = template
        values = (start_ms, sent.msg_id, f"{place.partition_id}{self.offset}", sent.body_length or 0, cost_ms)
        body = text % tuple([values[each] for each in order])
        return NativeRecord(
            plan.topic, str(plan.constants[semconv.MQTRACE_REGION_ID]), body.encode(), frozenset((sent.msg_id,))
        )

    def to_otlp(self) -> bytes | None:
        """Return the ``Span`` message; ``None`` where somebody may have changed what the span says."""
        if not _OVERRIDES.isdisjoint(vars(self)):
            return None
        plan, ids, parent, _, msg_id, start_ns, body_length, *_ = sent = self.sent
        store_host, cluster_id, request_id = self.facts
        place = plan.place(self.partition, store_host, cluster_id)
        start_ms = start_ns // _NS_PER_MS
        cost_ms = self.end_ns // _NS_PER_MS - start_ms
        message, request = msg_id.encode(), request_id.encode()
        offset_id = f"{place.partition_id}{self.offset}".encode("utf-8", "replace")
        parts = [_TRACE_ID, ids[:16], _SPAN_ID, ids[16:]]
        if parent is not None:
            parts += (_PARENT_ID, parent.span_id.to_bytes(8, "big"))
        parts += (
            plan.head,
            _pack_times(_START, start_ns, _END, self.end_ns),
            place.attributes,
            _MSG_ID[len(message)],
            message,
            _body_size(body_length or 0),
            _offset(self.offset),
            _OFFSET_ID[len(offset_id)],
            offset_id,
            _cost(cost_ms),
            _REQUEST_ID[len(request)],
            request,
            _store_time(start_ms + cost_ms // 2),
        )
        if sent.key is not None or sent.found or body_length is None:
            parts.append(_encode_rare(self))
        parts.append(_LOCAL_PARENT if parent is None or not parent.is_remote else _REMOTE_PARENT)
        return b"".join(parts)


_FLAGS: Final = tuple(map(TraceFlags, range(4)))
_RARE: Final = (
    semconv.MESSAGING_KAFKA_MESSAGE_KEY,
    semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
    semconv.MQTRACE_TAGS,
    semconv.MQTRACE_KEYS,
)


def _encode_rare(span: SentSpan) -> bytes:
    attributes = span.sent.plan.attributes_of(span)
    return encode_attributes({name: attributes[name] for name in _RARE if name in attributes})
