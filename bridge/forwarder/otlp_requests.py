"""The OTLP requests of native trace events, written without span objects.

Most of a span is what earlier spans had, so it is encoded once and cached, in three ways:

* by value, where the values of a field repeat: topics, tags, sizes, costs;
* by the values of several fields together, where neighbours repeat together: broker, client, type, group;
* by length, where a text hardly repeats, as ids and keys do: only what stands before the text is cached.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.trace import StatusCode

from bridge.forwarder.span_fields import encodable, rare_attributes, server_of, span_fields
from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.hooks.attributes import add_rocketmq_fields
from otel_mqtrace.model import KEY_SEPARATOR, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, bean_attributes, context_attributes
from otel_mqtrace.wire.native.decode import MODEL_FIELDS
from otel_mqtrace.wire.otlp.protobuf import (
    ARRAY_VALUE,
    TEXT_VALUE,
    VARINT,
    BoundedCache,
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

SCOPE: Final = "bridge.forwarder"
"""The instrumentation scope of every span."""
MOST_SPANS: Final = 2_048
_MOST_BYTES: Final = 3 << 20
"""Limit of one request: a gRPC receiver's default is 4 MiB. A larger span goes alone."""
_SPAN_AT_MOST_BEFORE: Final = 12  # bytes of the tag and the length before a span
_INT64: Final = 1 << 63
_TIME_BYTES: Final = 9  # a tag and a fixed64; a time of zero is not written
_SERVICE_NAME: Final = "service.name"


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
    shared = _shared_parts(rules.system)
    for number, event in enumerate(events):
        fields = span_fields(event, rules)
        span = span_bytes(fields, shared[fields.trace_type])
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


_RESOURCES: Final = BoundedCache[str, bytes](lambda service: delimited(1, attribute(1, _SERVICE_NAME, service)))
_SCOPE: Final = delimited(1, delimited(1, text_bytes(SCOPE)))
_SPAN: Final = tag(2)
_SCHEMA_URL: Final = delimited(3, text_bytes(semconv.SCHEMA_URL))


# -- one span ------------------------------------------------------------------------------------------------------
def span_bytes(fields: OtlpSpanFields, shared: _SharedParts) -> bytes:  # noqa: C901 - a branch for each field
    """Return the ``Span`` of ``fields``: attributes in the order of ``MODEL_FIELDS``, then those of several fields."""
    values, _, topic, group_name, store_host, trace_id, span_id, parent_id, start_ms, end_ms, *_ = fields
    _, msg_id, offset_msg_id, tags, keys, _, _, _, _, body_length, msg_type, transaction_id, *_ = values
    parts = [TRACE_ID, trace_id, SPAN_ID, span_id]
    if parent_id is not None:
        parts += (PARENT_ID, parent_id)
    times = pack_times(START, start_ms * NS_PER_MS, END, end_ms * NS_PER_MS)
    parts += (shared.name_and_kind[topic], times if start_ms else times[_TIME_BYTES if end_ms else 2 * _TIME_BYTES :])
    if topic is not None:
        parts.append(_TOPIC[topic])
    if msg_id is not None:
        text = msg_id.encode("utf-8", "replace")
        parts += (_BEFORE_MSG_ID[len(text)], text)
    if offset_msg_id is not None:
        text = offset_msg_id.encode("utf-8", "replace")
        parts += (_BEFORE_OFFSET_MSG_ID[len(text)], text)
    if tags is not None:
        parts.append(_TAGS[tags])
    if keys is not None:
        array = _KEY_ARRAY[keys]
        parts += (_BEFORE_KEYS[len(array)], array)
    parts.append(_HOST_TO_RETRIES[values[_HOST_TO_RETRIES.fields]])
    if body_length is not None:
        parts.append(_BODY_LENGTH[body_length])
    if transaction_id is None:
        parts.append(_TYPE_TO_GROUP[values[_TYPE_TO_GROUP.fields]])
    else:
        text = transaction_id.encode("utf-8", "replace")
        parts += (_TYPE[msg_type], _BEFORE_TRANSACTION_ID[len(text)], text)
        parts.append(_STATE_TO_GROUP[values[_STATE_TO_GROUP.fields]])
    request_id, cost_ms, success, context_code = values[_REQUEST_TO_CODE]
    if request_id is not None:
        text = request_id.encode("utf-8", "replace")
        parts += (_BEFORE_REQUEST_ID[len(text)], text)
    if cost_ms is not None:
        parts.append(_COST[cost_ms])
    parts.append(shared.outcome[success, context_code, group_name, tags])
    if keys is not None and shared.repeats_keys:
        parts += (_BEFORE_ROCKETMQ_KEYS[len(array)], array)
    parts.append(shared.end[msg_type, store_host, fields.messages, fields.half, fields.failure, parent_id is None])
    return b"".join(parts)


class _SharedParts(NamedTuple):
    """The parts of a span that many records of one type share.

    ``name_and_kind`` are those of the span by topic. ``outcome`` are attributes by success, context code, group and
    tags; ``end`` the following attributes, status and flags by message type, host, messages, half, failure and whether
    the span is the root.
    """

    repeats_keys: bool
    name_and_kind: BoundedCache[str | None, bytes]
    outcome: _Together
    end: _Together


@lru_cache(maxsize=16)
def _shared_parts(system: str) -> dict[TraceType, _SharedParts]:
    return {trace_type: _shared_by(trace_type, system) for trace_type in TraceType}


def _shared_by(trace_type: TraceType, system: str) -> _SharedParts:
    operation = OPERATIONS[trace_type]
    kind = tag(6, VARINT) + varint(operation.kind.value + 1)
    is_rocketmq = system == semconv.SYSTEM_ROCKETMQ

    def name_and_kind(topic: str | None) -> bytes:
        return delimited(5, text_bytes(operation.span_name(topic))) + kind

    def outcome(success: Any, context_code: Any, group_name: str | None, tags: str | None) -> bytes:
        attributes = context_attributes(TraceContext(trace_type=trace_type, group_name=group_name))
        attributes.pop(semconv.MQTRACE_GROUP_NAME, None)  # a field of the record
        again = _rocketmq_attributes("tags", tags) if is_rocketmq and tags is not None else {}
        system_and_tags = _attributes({**attributes, semconv.MESSAGING_SYSTEM: system, **again})
        return _OUTCOME[success, context_code] + system_and_tags

    def end(  # noqa: PLR0913, PLR0917 - the key of the cache
        msg_type: Any,
        store_host: str | None,
        messages: int,
        half: Half | None,
        failure: str | None,
        is_root: bool,  # noqa: FBT001 - as in the key
    ) -> bytes:
        again = _rocketmq_attributes("msg_type", msg_type) if is_rocketmq and msg_type is not None else {}
        server = {} if store_host is None else server_of(encodable(store_host))
        attributes = {**server, **rare_attributes(messages, half, failure)}
        status = b"" if failure is None else tag(3, VARINT) + varint(StatusCode.ERROR.value)
        parts = (_attributes(again), _NAMESPACE if is_rocketmq else b"", _attributes(attributes), delimited(15, status))
        return b"".join((*parts, SPAN_FLAGS[not is_root]))

    return _SharedParts(is_rocketmq, BoundedCache(name_and_kind), _Together(outcome), _Together(end))


# -- attributes ----------------------------------------------------------------------------------------------------
class _Together(dict[tuple[Any, ...], bytes]):
    """The bytes that ``write`` returns for several values together; large ones are written each time."""

    _MOST_ENTRIES: Final = 4_096
    _MOST_BYTES: Final = 1_024

    def __init__(self, write: Callable[..., bytes]) -> None:
        super().__init__()
        self._write = write

    def __missing__(self, values: tuple[Any, ...]) -> bytes:
        written = self._write(*values)
        if len(written) <= self._MOST_BYTES:
            if len(self) >= self._MOST_ENTRIES:
                self.clear()
            self[values] = written
        return written


class _FieldsTogether(_Together):
    """The attributes of neighbours in ``MODEL_FIELDS``, from ``first`` to ``last``, by their values."""

    def __init__(self, first: str, last: str) -> None:
        super().__init__(self._attributes)
        self.fields = slice(MODEL_FIELDS.index(first), MODEL_FIELDS.index(last) + 1)
        """Where they are among the values of a record."""

    def _attributes(self, *values: Any) -> bytes:
        pairs = zip(MODEL_FIELDS[self.fields], values, strict=True)
        return b"".join([_attributes(_attributes_of(*pair)) for pair in pairs if pair[1] is not None])


def _attributes(values: Mapping[str, AttributeValue]) -> bytes:
    return b"".join([attribute(_ATTRIBUTES, name, value) for name, value in values.items() if _is_encodable(value)])


def _is_encodable(value: AttributeValue) -> bool:
    """Return whether OTLP can encode ``value``: a record may carry numbers beyond int64."""
    return not isinstance(value, int) or -_INT64 <= value < _INT64


def _attributes_of(field: str, value: Any) -> dict[str, AttributeValue]:
    if field in TraceBean._fields:
        return bean_attributes(TraceBean(**{field: value}))
    attributes = context_attributes(TraceContext(trace_type=TraceType.PUB, **{field: value}))
    of_operation = context_attributes(TraceContext(trace_type=TraceType.PUB))
    return {name: value for name, value in attributes.items() if name not in of_operation}


def _rocketmq_attributes(field: str, value: Any) -> dict[str, AttributeValue]:
    """Return the attributes of a field under the registry's names for RocketMQ."""
    attributes = _attributes_of(field, value)
    ours = set(attributes)
    add_rocketmq_fields(attributes, {})
    return {name: value for name, value in attributes.items() if name not in ours}


def _by_value(field: str) -> BoundedCache[Any, bytes]:
    return BoundedCache(lambda value: _attributes(_attributes_of(field, value)))


def _before_value(field: str, kind: int = TEXT_VALUE, attributes: Any = _attributes_of) -> BoundedCache[int, bytes]:
    """Return what stands before a value of so many bytes."""
    return attribute_heads(_ATTRIBUTES, next(iter(attributes(field, "text"))), kind)


_ATTRIBUTES: Final = 9  # the field of a span
_REQUEST_TO_CODE: Final = slice(MODEL_FIELDS.index("request_id"), MODEL_FIELDS.index("context_code") + 1)
_TOPIC, _TAGS, _BODY_LENGTH, _TYPE, _COST = map(_by_value, ("topic", "tags", "body_length", "msg_type", "cost_ms"))
_BEFORE_MSG_ID, _BEFORE_OFFSET_MSG_ID, _BEFORE_TRANSACTION_ID, _BEFORE_REQUEST_ID = map(
    _before_value, ("msg_id", "offset_msg_id", "transaction_id", "request_id")
)
_KEY_ARRAY: Final = BoundedCache[str, bytes](lambda keys: texts(keys.split(KEY_SEPARATOR)))
_BEFORE_KEYS: Final = _before_value("keys", ARRAY_VALUE)
_BEFORE_ROCKETMQ_KEYS: Final = _before_value("keys", ARRAY_VALUE, _rocketmq_attributes)
_HOST_TO_RETRIES: Final = _FieldsTogether("store_host", "retry_times")
_TYPE_TO_GROUP: Final = _FieldsTogether("msg_type", "group_name")  # of a record without a transaction
_STATE_TO_GROUP: Final = _FieldsTogether("transaction_state", "group_name")
_OUTCOME: Final = _FieldsTogether("success", "context_code")
_NAMESPACE: Final = attribute(_ATTRIBUTES, semconv.MESSAGING_ROCKETMQ_NAMESPACE, "")
