"""A TraceContext as span attributes and back: the contract's table, both ways.

What is equal for all messages of one operation stands on the span; the rest stands on the message's link under the
same name. A span for one message carries everything itself, and its links carry nothing of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, Final, TypeVar

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.model import (
    KEY_SEPARATOR,
    ContextCode,
    MessageType,
    TraceBean,
    TraceContext,
    TraceType,
    TransactionState,
)

_E = TypeVar("_E", bound=Enum)
Attributes = dict[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class Operation:
    """How one kind of operation looks as a span; ``type`` is ``None`` where the registry has no operation type."""

    trace_type: str | None
    name: str
    type: str | None
    kind: SpanKind

    def span_name(self, topic: str | None) -> str:
        """Return ``{operation} {topic}``, or the operation alone without a single topic."""
        return f"{self.name} {topic}" if topic else self.name


_SUB: Final = Operation(semconv.TRACE_TYPE_SUB, "process", "process", SpanKind.CONSUMER)
OPERATIONS: Final[Mapping[TraceType, Operation]] = {
    TraceType.PUB: Operation(semconv.TRACE_TYPE_PUB, "send", "send", SpanKind.PRODUCER),
    TraceType.SUB_BEFORE: _SUB,
    TraceType.SUB_AFTER: _SUB,
    TraceType.END_TRANSACTION: Operation(semconv.TRACE_TYPE_END_TRANSACTION, "end_transaction", None, SpanKind.CLIENT),
    TraceType.RECALL: Operation(semconv.TRACE_TYPE_RECALL, "recall", None, SpanKind.CLIENT),
}


# -- one field, one attribute, one way to write it and one to read it ----------------------------------------------
@dataclass(frozen=True, slots=True)
class _Row:
    field: str
    attribute: str
    write: Callable[[Any], AttributeValue | None]
    read: Callable[[object], Any]


def _same(value: AttributeValue) -> AttributeValue:
    return value


_name: Final = attrgetter("name")
_value: Final = attrgetter("value")


def keys_attribute(keys: str) -> AttributeValue | None:
    """Return space-separated keys as an attribute, or ``None`` when there is none."""
    return tuple(keys.split(KEY_SEPARATOR)) if keys else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _boolean(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _joined(value: object) -> str | None:
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence) and value:
        return KEY_SEPARATOR.join(str(part) for part in value)
    return None


def _member(by_text: Mapping[str, _E]) -> Callable[[object], _E | None]:
    return lambda value: by_text.get(value) if isinstance(value, str) else None


_BEAN_ROWS: Final = (
    _Row("topic", semconv.MESSAGING_DESTINATION_NAME, _same, _text),
    _Row("msg_id", semconv.MESSAGING_MESSAGE_ID, _same, _text),
    _Row("offset_msg_id", semconv.MQTRACE_OFFSET_MSG_ID, _same, _text),
    _Row("tags", semconv.MQTRACE_TAGS, _same, _text),
    _Row("keys", semconv.MQTRACE_KEYS, keys_attribute, _joined),
    _Row("store_host", semconv.MQTRACE_STORE_HOST, _same, _text),
    _Row("client_host", semconv.MQTRACE_CLIENT_HOST, _same, _text),
    _Row("store_time_ms", semconv.MQTRACE_STORE_TIME, _same, _integer),
    _Row("retry_times", semconv.MQTRACE_RETRY_TIMES, _same, _integer),
    _Row("body_length", semconv.MESSAGING_MESSAGE_BODY_SIZE, _same, _integer),
    _Row("msg_type", semconv.MQTRACE_MSG_TYPE, _value, _member({each.value: each for each in MessageType})),
    _Row("transaction_id", semconv.MQTRACE_TRANSACTION_ID, _same, _text),
    _Row("transaction_state", semconv.MQTRACE_TRANSACTION_STATE, _name, _member(TransactionState.__members__)),
    _Row("from_transaction_check", semconv.MQTRACE_FROM_TRANSACTION_CHECK, _same, _boolean),
)
_CONTEXT_ROWS: Final = (
    _Row("region_id", semconv.MQTRACE_REGION_ID, _same, _text),
    _Row("region_name", semconv.MQTRACE_REGION_NAME, _same, _text),
    _Row("group_name", semconv.MQTRACE_GROUP_NAME, _same, _text),
    _Row("request_id", semconv.MQTRACE_REQUEST_ID, _same, _text),
    _Row("cost_ms", semconv.MQTRACE_COST_TIME, _same, _integer),
    _Row("success", semconv.MQTRACE_SUCCESS, _same, _boolean),
    _Row("context_code", semconv.MQTRACE_CONTEXT_CODE, _name, _member(ContextCode.__members__)),
)
MESSAGE_ATTRIBUTES: Final = frozenset(
    {
        *(row.attribute for row in _BEAN_ROWS),
        semconv.MESSAGING_DESTINATION_PARTITION_ID,
        semconv.MESSAGING_KAFKA_OFFSET,
        semconv.MESSAGING_KAFKA_MESSAGE_KEY,
        semconv.MESSAGING_KAFKA_MESSAGE_TOMBSTONE,
        semconv.LEGACY_DESTINATION,
        semconv.LEGACY_KAFKA_PARTITION,
        semconv.LEGACY_KAFKA_OFFSET,
    }
)
"""The attributes of one message; a link with any of them stands for a message."""
RECORD_ATTRIBUTES: Final = frozenset(
    {semconv.MQTRACE_TRACE_TYPE, semconv.LEGACY_DESTINATION, *(row.attribute for row in (*_BEAN_ROWS, *_CONTEXT_ROWS))}
)
"""The attributes that a trace record is read from."""


def _write(rows: Iterable[_Row], source: object) -> Attributes:
    written: Attributes = {}
    for row in rows:
        value = getattr(source, row.field)
        if value is not None and (attribute := row.write(value)) is not None:
            written[row.attribute] = attribute
    return written


# -- TraceContext to span ------------------------------------------------------------------------------------------
def bean_attributes(bean: TraceBean) -> Attributes:
    """Return the attributes of one message; absent values have none."""
    return _write(_BEAN_ROWS, bean)


def bean_of(attributes: Mapping[str, object]) -> TraceBean:
    """Return the message of ``attributes``: the inverse of :func:`bean_attributes`."""
    values = _read(_BEAN_ROWS, attributes)
    if values["topic"] is None:  # a span may have its old names only
        values["topic"] = _text(attributes.get(semconv.LEGACY_DESTINATION))
    return TraceBean(**values)


def context_attributes(trace_ctx: TraceContext) -> Attributes:
    """Return what belongs to the operation as a whole: names, region, group, request, cost and outcome."""
    operation = OPERATIONS[trace_ctx.trace_type]
    written = _write(_CONTEXT_ROWS, trace_ctx)
    written[semconv.MQTRACE_TRACE_TYPE] = operation.trace_type or ""
    written[semconv.MESSAGING_OPERATION_NAME] = operation.name
    if operation.type is not None:
        written[semconv.MESSAGING_OPERATION_TYPE] = operation.type
    if operation.kind is SpanKind.CONSUMER and trace_ctx.group_name is not None:
        written[semconv.MESSAGING_CONSUMER_GROUP_NAME] = trace_ctx.group_name
    return written


_NEVER_SHARED: Final = frozenset(
    {semconv.MESSAGING_MESSAGE_ID, semconv.MESSAGING_KAFKA_OFFSET, semconv.MESSAGING_KAFKA_MESSAGE_KEY}
)
"""What names one message, even where the names of several happen to be the same."""


def share_attributes(messages: Sequence[Attributes]) -> tuple[Attributes, Sequence[Attributes]]:
    """Return the attributes of the span of several messages, equal for all, and of each message's link; one has none.

    What names a message stays on its link whenever there are several, so that it differs from any other link.
    """
    if len(messages) < 2:  # noqa: PLR2004 - one message has nothing to share
        return messages[0] if messages else {}, ()
    first = messages[0]
    shared = {
        name: value
        for name, value in first.items()
        if name not in _NEVER_SHARED and all(each.get(name) == value for each in messages)
    }
    return shared, [{name: value for name, value in each.items() if name not in shared} for each in messages]


def compute_cost_ms(start_ns: int, end_ns: int, messages: int = 1) -> int:
    """Return what RocketMQ calls costTime: elapsed whole milliseconds divided by the number of messages."""
    return (end_ns // NS_PER_MS - start_ns // NS_PER_MS) // max(messages, 1)


# -- reading a span -------------------------------------------------------------------------------------------------
_ATTRIBUTES: Final = ReadableSpan.attributes


def readable_span(offered: Any) -> ReadableSpan:
    """Return ``offered`` or, where it is the record of a start, its started span."""
    make: Callable[[], ReadableSpan] | None = getattr(offered, "started_span", None)
    span: ReadableSpan = offered if make is None else make()
    return span


def raw_attribute(span: ReadableSpan, name: str) -> Any:
    """Return one attribute of ``span``; the span of a record does not derive the others for it."""
    read: Callable[[str], Any] | None = getattr(span, "raw_attribute", None)
    return attributes_of(span).get(name) if read is None else read(name)


def attributes_of(span: ReadableSpan) -> Mapping[str, object]:
    """Return the attributes of ``span`` for many reads.

    The SDK's own mapping raises inside for a missing name, which costs more than all the rest. A span class with its
    own ``attributes``, which may leave out secrets, is read by those.
    """
    plain: Mapping[str, object] | None = None
    if getattr(type(span), "attributes", None) is _ATTRIBUTES:
        plain = getattr(kept_attributes(span), "_dict", None)
    return (span.attributes or {}) if plain is None else plain


def kept_attributes(span: object) -> Any:
    """Return what ``span`` keeps its attributes in, ``None`` where that is unknown; the public mapping is a view."""
    return getattr(span, "_attributes", None)


_PARTS: Final = (
    "name",
    "context",
    "parent",
    "resource",
    "events",
    "links",
    "kind",
    "status",
    "start_time",
    "end_time",
    "instrumentation_scope",
)


def copy_span(span: ReadableSpan, attributes: Mapping[str, AttributeValue], **changed: Any) -> ReadableSpan:
    """Return a plain span with the parts of ``span``, but for the ``changed`` ones, and with these attributes."""
    return ReadableSpan(attributes=attributes, **{name: getattr(span, name) for name in _PARTS} | changed)


# -- span to TraceContext ------------------------------------------------------------------------------------------
_TRACE_TYPES: Final[Mapping[tuple[str, bool], TraceType]] = {
    (semconv.TRACE_TYPE_PUB, True): TraceType.PUB,
    (semconv.TRACE_TYPE_SUB, False): TraceType.SUB_BEFORE,
    (semconv.TRACE_TYPE_SUB, True): TraceType.SUB_AFTER,
    (semconv.TRACE_TYPE_END_TRANSACTION, True): TraceType.END_TRANSACTION,
    (semconv.TRACE_TYPE_RECALL, True): TraceType.RECALL,
}
"""Trace type of a span, and whether it has ended → type of its record."""
_GROUP_NAMES: Final = (
    semconv.MESSAGING_CONSUMER_GROUP_NAME,
    semconv.LEGACY_KAFKA_CONSUMER_GROUP,
    semconv.LEGACY_ROCKETMQ_CLIENT_GROUP,
)
"""Where a group stands that has no name of ours."""
_NO_OUTCOME: Final = {"cost_ms": None, "success": None, "context_code": None}


def trace_context_of(span: ReadableSpan) -> TraceContext | None:
    """Return the trace record a span stands for, or ``None`` when it stands for none (yet).

    One bean per message link, in link order; a span without message links is one message itself.
    """
    attributes = attributes_of(span)
    word = attributes.get(semconv.MQTRACE_TRACE_TYPE)
    trace_type = _TRACE_TYPES.get((word, span.end_time is not None)) if isinstance(word, str) else None
    if trace_type is None:
        return None
    beans = _beans(attributes, span)
    values = _read(_CONTEXT_ROWS, attributes)
    if values["group_name"] is None:
        values["group_name"] = next(filter(None, (_text(attributes.get(name)) for name in _GROUP_NAMES)), None)
    if trace_type is TraceType.SUB_BEFORE:
        values |= _NO_OUTCOME
    else:
        if values["success"] is None:
            values["success"] = span.status.status_code is not StatusCode.ERROR
            if trace_type is TraceType.SUB_AFTER and not values["success"] and values["context_code"] is None:
                values["context_code"] = ContextCode.FAILED  # the handler ended the span itself: no code is SUCCESS
        if values["cost_ms"] is None and span.start_time is not None and span.end_time is not None:
            values["cost_ms"] = compute_cost_ms(span.start_time, span.end_time, len(beans))
    stamp_ns = span.end_time if trace_type is TraceType.SUB_AFTER else span.start_time
    timestamp_ms = None if stamp_ns is None else stamp_ns // NS_PER_MS
    return TraceContext(trace_type=trace_type, timestamp_ms=timestamp_ms, beans=beans, **values)


def _beans(attributes: Mapping[str, object], span: ReadableSpan) -> tuple[TraceBean, ...]:
    per_message = [
        link.attributes for link in span.links if link.attributes and not MESSAGE_ATTRIBUTES.isdisjoint(link.attributes)
    ]
    if not per_message:
        return (bean_of(attributes),)
    return tuple(bean_of({**attributes, **own}) for own in per_message)


def _read(rows: Iterable[_Row], attributes: Mapping[str, object]) -> dict[str, Any]:
    get = attributes.get  # most fields are not there, and what is not there reads as None
    return {row.field: None if (value := get(row.attribute)) is None else row.read(value) for row in rows}
