"""OTLP bytes of the events of the native trace; no span object is built.

Of twenty attributes of a record three or four differ from one message to the next. Runs of the others are encoded once
for each combination of their values; only ids, keys and times are put together every time.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bridge.forwarder.span_fields import NS_PER_MS, SCOPE, encodable, rare_attributes, server_of, span_fields
from otel_mqtrace import semconv
from otel_mqtrace.hooks.attributes import add_rocketmq_fields
from otel_mqtrace.model import KEY_SEPARATOR, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, bean_attributes, context_attributes
from otel_mqtrace.wire.native.decode import MODEL_FIELDS
from otel_mqtrace.wire.otlp.bounded_cache import BoundedCache
from otel_mqtrace.wire.otlp.protobuf import (
    ARRAY_VALUE,
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
from otel_mqtrace.wire.otlp.sdk_spans import END, PARENT_ID, SPAN_FLAGS, SPAN_ID, START, TRACE_ID, pack_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opentelemetry.util.types import AttributeValue

    from bridge.forwarder.pairing import Event, Half
    from bridge.forwarder.span_fields import OtlpSpanFields, SpanRules


MOST_SPANS: Final = 2_048
_MOST_BYTES: Final = 3 << 20
"""Limit of one request: a gRPC receiver's default is 4 MiB. A larger span goes alone."""
_SPAN_AT_MOST_BEFORE: Final = 12  # bytes of the tag and the length before a span
_ATTRIBUTES: Final = 9  # the field of a span
_INT64: Final = 1 << 63
_SERVICE_NAME: Final = "service.name"
_ERROR: Final = 2
_MAX_CACHED_VALUES: Final = 4_096
_MAX_CACHED_BYTES: Final = 1_024


class Request(NamedTuple):
    """One ``ExportTraceServiceRequest``: its events and its bytes; its length is the number of spans."""

    events: Sequence[Event]
    body: bytes

    def __len__(self) -> int:
        return len(self.events)


def requests_of(events: Sequence[Event], rules: SpanRules) -> Iterator[Request]:
    """Write ``events`` in requests that no receiver finds too large: it would refuse them again and again."""
    first, size = 0, 0
    by_service: dict[bytes, list[bytes]] = {}
    kinds = _kinds(rules.system)
    for number, event in enumerate(events):
        fields = span_fields(event, rules)
        span = span_bytes(fields, kinds[fields.trace_type])
        length = len(span)
        if number > first and (number - first >= MOST_SPANS or size + length > _MOST_BYTES):
            yield Request(events[first:number], _request(by_service))
            first, size, by_service = number, 0, {}
        resource = _RESOURCES[fields.service]
        spans = by_service.get(resource)
        if spans is None:
            spans = by_service[resource] = [_SCOPE]
            size += len(resource) + len(_SCOPE) + len(_SCHEMA_URL)
        spans += (_SPAN, varint(length), span)
        size += length + _SPAN_AT_MOST_BEFORE
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


# -- attributes ----------------------------------------------------------------------------------------------------
class _Run(dict[tuple[Any, ...], bytes]):
    """The bytes that ``write`` returns for several values together; large ones are written each time."""

    def __init__(self, write: Callable[..., bytes]) -> None:
        super().__init__()
        self._write = write

    def __missing__(self, values: tuple[Any, ...]) -> bytes:
        written = self._write(*values)
        if len(written) <= _MAX_CACHED_BYTES:
            if len(self) >= _MAX_CACHED_VALUES:
                self.clear()
            self[values] = written
        return written


def _attributes(values: Mapping[str, AttributeValue]) -> bytes:
    return b"".join([attribute(_ATTRIBUTES, name, value) for name, value in values.items() if _is_encodable(value)])


def _is_encodable(value: AttributeValue) -> bool:
    """Return whether OTLP can encode ``value``: a record may carry numbers beyond int64."""
    return not isinstance(value, int) or -_INT64 <= value < _INT64


def _attributes_of(field: str, value: Any) -> dict[str, AttributeValue]:
    if field in TraceBean.__dataclass_fields__:
        return bean_attributes(TraceBean(**{field: value}))
    attributes = context_attributes(TraceContext(trace_type=TraceType.PUB, **{field: value}))
    of_operation = context_attributes(TraceContext(trace_type=TraceType.PUB))
    return {name: value for name, value in attributes.items() if name not in of_operation}


def _registry_attributes(field: str, value: Any) -> dict[str, AttributeValue]:
    """Return the attributes of a field under RocketMQ's own names."""
    attributes = _attributes_of(field, value)
    ours = set(attributes)
    add_rocketmq_fields(attributes, {})
    return {name: value for name, value in attributes.items() if name not in ours}


def _heads(field: str, kind: int = TEXT_VALUE, attributes: Any = _attributes_of) -> BoundedCache[int, bytes]:
    """Return what stands before a value of so many bytes of a field that hardly repeats."""
    return attribute_heads(_ATTRIBUTES, next(iter(attributes(field, "text"))), kind)


def _field(field: str) -> BoundedCache[Any, bytes]:
    return BoundedCache(lambda value: _attributes(_attributes_of(field, value)))


def _run(which: slice) -> _Run:
    fields = MODEL_FIELDS[which]

    def write(*values: Any) -> bytes:
        pairs = [(field, value) for field, value in zip(fields, values, strict=True) if value is not None]
        return b"".join([_attributes(_attributes_of(*pair)) for pair in pairs])

    return _Run(write)


_at: Final = MODEL_FIELDS.index
_HOST_FIELDS: Final = slice(_at("store_host"), _at("body_length"))
_KIND_FIELDS: Final = slice(_at("msg_type"), _at("request_id"))
_SUCCESS: Final = _at("success")
_TRANSACTION_ID, _REQUEST_ID = _at("transaction_id"), _at("request_id")
_AFTER_FIELDS: Final = slice(_TRANSACTION_ID + 1, _REQUEST_ID)
_TOPICS, _TAGS, _LENGTHS, _COSTS = map(_field, ("topic", "tags", "body_length", "cost_ms"))
_HOSTS, _KINDS, _OUTCOMES = map(_run, (_HOST_FIELDS, _KIND_FIELDS, slice(_SUCCESS, _SUCCESS + 2)))
_BEFORE_TRANSACTION, _AFTER_TRANSACTION = map(_run, (slice(_at("msg_type"), _TRANSACTION_ID), _AFTER_FIELDS))
_MSG_IDS, _OFFSET_MSG_IDS = _heads("msg_id"), _heads("offset_msg_id")
_REQUEST_IDS, _TRANSACTION_IDS = _heads("request_id"), _heads("transaction_id")
_KEYS, _KEYS_AGAIN = _heads("keys", ARRAY_VALUE), _heads("keys", ARRAY_VALUE, _registry_attributes)
_ARRAYS: Final = BoundedCache[str, bytes](lambda keys: texts(keys.split(KEY_SEPARATOR)))
_NAMESPACE: Final = attribute(_ATTRIBUTES, semconv.MESSAGING_ROCKETMQ_NAMESPACE, "")


# -- one span ------------------------------------------------------------------------------------------------------
class _Kind(NamedTuple):
    """The parts of a span that many records of one type share.

    ``names`` are name and kind of the span by topic. ``outcomes`` are attributes by success, context code, group and
    tags; ``ends`` the following status and flags by message type, host, messages, half, failure and whether it is the
    root.
    """

    repeats_keys: bool
    names: BoundedCache[str | None, bytes]
    outcomes: _Run
    ends: _Run


@lru_cache(maxsize=16)
def _kinds(system: str) -> dict[TraceType, _Kind]:
    return {trace_type: _kind(trace_type, system) for trace_type in TraceType}


def _kind(trace_type: TraceType, system: str) -> _Kind:
    operation = OPERATIONS[trace_type]
    kind = tag(6, VARINT) + varint(operation.kind.value + 1)
    is_rocketmq = system == semconv.SYSTEM_ROCKETMQ

    def name(topic: str | None) -> bytes:
        return delimited(5, text_bytes(operation.span_name(topic))) + kind

    def of_outcome(success: Any, context_code: Any, group_name: str | None, tags: str | None) -> bytes:
        outcome = _OUTCOMES[success, context_code]
        attributes = context_attributes(TraceContext(trace_type=trace_type, group_name=group_name))
        attributes.pop(semconv.MQTRACE_GROUP_NAME, None)  # a field of the record
        again = _registry_attributes("tags", tags) if is_rocketmq and tags is not None else {}
        return outcome + _attributes({**attributes, semconv.MESSAGING_SYSTEM: system, **again})

    def end(  # noqa: PLR0913, PLR0917 - the key of the run
        msg_type: Any,
        store_host: str | None,
        messages: int,
        half: Half | None,
        failure: str | None,
        is_root: bool,  # noqa: FBT001 - as in the key
    ) -> bytes:
        again = _registry_attributes("msg_type", msg_type) if is_rocketmq and msg_type is not None else {}
        server = {} if store_host is None else server_of(encodable(store_host))
        attributes = {**server, **rare_attributes(messages, half, failure)}
        status = b"" if failure is None else tag(3, VARINT) + varint(_ERROR)
        parts = (_attributes(again), _NAMESPACE if is_rocketmq else b"", _attributes(attributes), delimited(15, status))
        return b"".join((*parts, SPAN_FLAGS[not is_root]))

    return _Kind(is_rocketmq, BoundedCache(name), _Run(of_outcome), _Run(end))


def span_bytes(fields: OtlpSpanFields, kind: _Kind) -> bytes:  # noqa: C901 - a branch for each field
    """Return the ``Span`` of ``fields``."""
    values, _, topic, group_name, store_host, trace_id, span_id, parent_id, start_ms, end_ms, *_ = fields
    _, msg_id, offset_msg_id, tags, keys, _, _, _, _, body_length, msg_type, transaction_id, *_ = values
    parts = [TRACE_ID, trace_id, SPAN_ID, span_id]
    if parent_id is not None:
        parts += (PARENT_ID, parent_id)
    times = pack_times(START, start_ms * NS_PER_MS, END, end_ms * NS_PER_MS)
    parts += (kind.names[topic], times if start_ms else times[9 if end_ms else 18 :])  # a zero is not written
    if topic is not None:
        parts.append(_TOPICS[topic])
    if msg_id is not None:
        value = msg_id.encode("utf-8", "replace")
        parts += (_MSG_IDS[len(value)], value)
    if offset_msg_id is not None:
        value = offset_msg_id.encode("utf-8", "replace")
        parts += (_OFFSET_MSG_IDS[len(value)], value)
    if tags is not None:
        parts.append(_TAGS[tags])
    if keys is not None:
        array = _ARRAYS[keys]
        parts += (_KEYS[len(array)], array)
    parts.append(_HOSTS[values[_HOST_FIELDS]])
    if body_length is not None:
        parts.append(_LENGTHS[body_length])
    if transaction_id is None:
        parts.append(_KINDS[values[_KIND_FIELDS]])
    else:
        value = transaction_id.encode("utf-8", "replace")
        parts += (_BEFORE_TRANSACTION[msg_type,], _TRANSACTION_IDS[len(value)], value)
        parts.append(_AFTER_TRANSACTION[values[_AFTER_FIELDS]])
    request_id, cost_ms = values[_REQUEST_ID], values[_REQUEST_ID + 1]
    if request_id is not None:
        value = request_id.encode("utf-8", "replace")
        parts += (_REQUEST_IDS[len(value)], value)
    if cost_ms is not None:
        parts.append(_COSTS[cost_ms])
    parts.append(kind.outcomes[values[_SUCCESS], values[_SUCCESS + 1], group_name, tags])
    if keys is not None and kind.repeats_keys:
        parts += (_KEYS_AGAIN[len(array)], array)
    parts.append(kind.ends[msg_type, store_host, fields.messages, fields.half, fields.failure, parent_id is None])
    return b"".join(parts)
