"""OTLP bytes of the events of the native trace.

Of twenty attributes of a record three or four differ from one message to the next, so each attribute is encoded once
for each value; only ids and keys are put together every time, behind a head that is ready. No span object is built.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.forwarder.span_fields import (
    ATTRIBUTE_FIELDS,
    BEAN_FIELDS,
    FIELDS,
    NS_PER_MS,
    SCOPE,
    meaning_of,
    rare_attributes,
    server_of,
    speakable,
)
from otel_mqtrace import semconv
from otel_mqtrace.hooks.attributes import add_rocketmq_fields
from otel_mqtrace.model import KEY_SEPARATOR, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, bean_attributes, context_attributes
from otel_mqtrace.wire.otlp.bounded_cache import BoundedCache
from otel_mqtrace.wire.otlp.protobuf import (
    ARRAY_VALUE,
    FIXED32,
    FIXED64,
    TEXT_VALUE,
    VARINT,
    attribute,
    attribute_heads,
    delimited,
    tag,
    text_bytes,
    texts,
    varint,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opentelemetry.util.types import AttributeValue

    from bridge.forwarder.pairing import Event
    from bridge.forwarder.span_fields import OtlpSpanFields, SpanRules

__all__ = ["Request", "requests_of", "span_bytes"]


_MOST_SPANS: Final = 2_048
_MOST_BYTES: Final = 3 << 20
"""Of one request: a gRPC receiver takes 4 MiB unless told otherwise. A larger span goes alone."""
_SPAN_AT_MOST_BEFORE: Final = 12  # bytes of the tag and the length before a span
_ATTRIBUTES: Final = 9  # the field of a span
_OF_ONE_MESSAGE: Final = ("msg_id", "offset_msg_id", "request_id", "transaction_id")
_INT64: Final = 1 << 63
_SERVICE_NAME: Final = "service.name"
_ERROR: Final = 2
_HAS_IS_REMOTE, _IS_REMOTE = 0x100, 0x200


@dataclass(frozen=True, slots=True)
class Request:
    """One ``ExportTraceServiceRequest``: its events and its bytes; its length is the number of spans."""

    events: Sequence[Event]
    body: bytes

    def __len__(self) -> int:
        return len(self.events)


def requests_of(events: Sequence[Event], rules: SpanRules) -> Iterator[Request]:
    """Write ``events`` in requests that no receiver finds too large: it would refuse them again and again."""
    first, size = 0, 0
    by_service: dict[bytes, list[bytes]] = {}
    for number, event in enumerate(events):
        meaning = meaning_of(event, rules)
        span = span_bytes(meaning, rules.system)
        if number > first and (number - first >= _MOST_SPANS or size + len(span) > _MOST_BYTES):
            yield Request(events[first:number], _request(by_service))
            first, size, by_service = number, 0, {}
        resource = _RESOURCES[meaning.service]
        spans = by_service.get(resource)
        if spans is None:
            spans = by_service[resource] = [_SCOPE]
            size += len(resource) + len(_SCOPE) + len(_SCHEMA_URL)
        spans += (_SPAN, varint(len(span)), span)
        size += len(span) + _SPAN_AT_MOST_BEFORE
    if first < len(events):
        yield Request(events[first:], _request(by_service))


def _request(by_service: Mapping[bytes, Sequence[bytes]]) -> bytes:
    parts: list[bytes] = []
    for resource, spans in by_service.items():
        scope_spans = sum(map(len, spans)) + len(_SCHEMA_URL)
        before = resource + tag(2) + varint(scope_spans)
        parts += (tag(1), varint(len(before) + scope_spans), before, *spans, _SCHEMA_URL)
    return b"".join(parts)


_RESOURCES: Final = BoundedCache[str, bytes](
    lambda service: delimited(1, attribute(1, _SERVICE_NAME, service)),
)
_SCOPE: Final = delimited(1, delimited(1, text_bytes(SCOPE)))
_SPAN: Final = tag(2)
_SCHEMA_URL: Final = delimited(3, text_bytes(semconv.SCHEMA_URL))


# -- one span ------------------------------------------------------------------------------------------------------
_TRACE_ID: Final = tag(1) + varint(16)
_SPAN_ID: Final = tag(2) + varint(8)
_PARENT_ID: Final = tag(4) + varint(8)
_TIMES: Final = Struct("<BQBQ")
_START, _END = tag(7, FIXED64)[0], tag(8, FIXED64)[0]
_again = itemgetter(*map(FIELDS.index, ("tags", "keys", "msg_type")))


def span_bytes(meaning: OtlpSpanFields, system: str) -> bytes:
    """Return the ``Span`` that says ``meaning``; ``system`` is ``messaging.system``."""
    said, trace_type, topic, group_name, store_host, trace_id, span_id, parent_id, start_ms, end_ms, *_ = meaning
    kind = _kind(trace_type, system)
    parts = [_TRACE_ID, trace_id, _SPAN_ID, span_id]
    if parent_id is not None:
        parts += (_PARENT_ID, parent_id)
    parts += (kind.names[topic], _times(start_ms, end_ms))
    parts += [write(value) for value, write in zip(said, _FIELDS, strict=False) if value is not None]
    parts.append(kind.operations[group_name])
    if system == semconv.SYSTEM_ROCKETMQ:
        parts += [write(value) for value, write in zip(_again(said), _FIELDS_AGAIN, strict=True) if value is not None]
        parts.append(_NAMESPACE)
    if store_host is not None:
        parts.append(_SERVERS[store_host])
    if meaning.messages > 1 or meaning.half is not None or meaning.failure is not None:
        parts.append(_attributes(rare_attributes(meaning)))
    parts.append(_ENDS[parent_id is None, meaning.failure is None])
    return b"".join(parts)


def _times(start_ms: int, end_ms: int) -> bytes:
    if start_ms:
        return _TIMES.pack(_START, start_ms * NS_PER_MS, _END, end_ms * NS_PER_MS)
    return _TIMES.pack(_START, 0, _END, end_ms * NS_PER_MS)[9 if end_ms else 18 :]  # a zero is not written


def _end(*, is_root: bool, is_good: bool) -> bytes:
    status = b"" if is_good else tag(3, VARINT) + varint(_ERROR)
    flags = _HAS_IS_REMOTE if is_root else _HAS_IS_REMOTE | _IS_REMOTE  # said of the parent
    return delimited(15, status) + tag(16, FIXED32) + flags.to_bytes(4, "little")


_ENDS: Final = {
    (is_root, is_good): _end(is_root=is_root, is_good=is_good) for is_root in (True, False) for is_good in (True, False)
}


# -- what a kind of record says the same of all messages --------------------------------------------------------------
class _Kind(NamedTuple):
    """``names`` are name and kind of the span by topic, ``operations`` the attributes of the operation by group."""

    names: BoundedCache[str | None, bytes]
    operations: BoundedCache[str | None, bytes]


@lru_cache(maxsize=64)
def _kind(trace_type: TraceType, system: str) -> _Kind:
    operation = OPERATIONS[trace_type]
    kind = tag(6, VARINT) + varint(operation.kind.value + 1)

    def name(topic: str | None) -> bytes:
        return delimited(5, text_bytes(operation.span_name(topic))) + kind

    def said_of_operation(group_name: str | None) -> bytes:
        said = context_attributes(TraceContext(trace_type=trace_type, group_name=group_name))
        said.pop(semconv.MQTRACE_GROUP_NAME, None)  # a field of the record
        return _attributes({**said, semconv.MESSAGING_SYSTEM: system})

    return _Kind(BoundedCache(name), BoundedCache(said_of_operation))


_NAMESPACE: Final = attribute(_ATTRIBUTES, semconv.MESSAGING_ROCKETMQ_NAMESPACE, "")
_SERVERS: Final = BoundedCache[str, bytes](lambda store_host: _attributes(server_of(speakable(store_host))))


def _attributes(said: Mapping[str, AttributeValue]) -> bytes:
    return b"".join([attribute(_ATTRIBUTES, name, value) for name, value in said.items() if _is_encodable(value)])


def _is_encodable(value: AttributeValue) -> bool:
    """Whether OTLP can say ``value``: a record may carry numbers that int64 cannot."""
    return not isinstance(value, int) or -_INT64 <= value < _INT64


# -- fields of records ---------------------------------------------------------------------------------------------
def _attributes_of(field: str, value: Any) -> dict[str, AttributeValue]:
    """Return the one attribute that says a field, from the table that says it on every span."""
    if field in BEAN_FIELDS:
        return bean_attributes(TraceBean(**{field: value}))
    said = context_attributes(TraceContext(trace_type=TraceType.PUB, **{field: value}))
    of_operation = context_attributes(TraceContext(trace_type=TraceType.PUB))
    return {name: value for name, value in said.items() if name not in of_operation}


def _said_again(field: str, value: Any) -> dict[str, AttributeValue]:
    """Return what RocketMQ's own names say of a field."""
    said = _attributes_of(field, value)
    ours = set(said)
    add_rocketmq_fields(said, {})
    return {name: value for name, value in said.items() if name not in ours}


def _writer(
    field: str, attributes: Callable[[str, Any], dict[str, AttributeValue]] = _attributes_of
) -> Callable[[Any], bytes]:
    if field in _OF_ONE_MESSAGE:
        return _text_writer(next(iter(attributes(field, "text"))))
    if field == "keys":
        return _keys_writer(next(iter(attributes(field, "text"))))
    return BoundedCache[Any, bytes](lambda value: _attributes(attributes(field, value))).__getitem__


def _text_writer(name: str) -> Callable[[str], bytes]:
    heads = attribute_heads(_ATTRIBUTES, name, TEXT_VALUE)

    def write(text: str) -> bytes:
        value = text.encode("utf-8", "replace")
        return heads[len(value)] + value

    return write


_ARRAYS: Final = BoundedCache[str, bytes](lambda keys: texts(keys.split(KEY_SEPARATOR)))


def _keys_writer(name: str) -> Callable[[str], bytes]:
    heads = attribute_heads(_ATTRIBUTES, name, ARRAY_VALUE)

    def write(keys: str) -> bytes:
        array = _ARRAYS[keys]
        return heads[len(array)] + array

    return write


_FIELDS: Final = tuple(map(_writer, ATTRIBUTE_FIELDS))
_FIELDS_AGAIN: Final = tuple(_writer(field, _said_again) for field in ("tags", "keys", "msg_type"))
