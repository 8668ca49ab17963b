"""Spans of native trace events: their fields (stable ids, times, service, outcome), and their OTLP bytes.

No span object is built. Of twenty attributes of a record three or four differ from one message to the next. Runs of the
others are encoded once for each combination of their values; only ids, keys and times are put together every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.hooks.attributes import add_rocketmq_fields
from otel_mqtrace.hooks.tracing import host_and_port
from otel_mqtrace.model import KEY_SEPARATOR, ContextCode, TraceBean, TraceContext, TraceType
from otel_mqtrace.spans.mapping import OPERATIONS, bean_attributes, context_attributes
from otel_mqtrace.wire.native.decode import MODEL_FIELDS
from otel_mqtrace.wire.native.layout import FORMS
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

UNKNOWN_SERVICE: Final = "unknown_service"
"""Service of a record that names no group, in the words of OpenTelemetry's resource conventions."""
OTHER_ERROR: Final = "_OTHER"
"""The registry's ``error.type`` of a failure without a name, as of ``Pub`` and ``Recall``."""
SCOPE: Final = "bridge.forwarder"
"""The instrumentation scope of every span."""
_MAX_MS: Final = (1 << 63) // NS_PER_MS - 1  # the limit of OTLP's consumers, the year 2262
_PUB, _SUB_BEFORE, _SUB_AFTER = TraceType.PUB, TraceType.SUB_BEFORE, TraceType.SUB_AFTER
_TIMESTAMP_MS: Final = MODEL_FIELDS.index("timestamp_ms")
_NAMES: Final = ("topic", "msg_id", "store_host", "group_name", "request_id", "cost_ms", "success", "context_code")
_named = itemgetter(*map(MODEL_FIELDS.index, _NAMES))
_OF_FIRST_HALF: Final = tuple(map(MODEL_FIELDS.index, {name for form in FORMS[_SUB_BEFORE] for name in form.fields}))
_REGION: Final = MODEL_FIELDS.index("region_id")
_ID_FIELDS: Final = (
    _TIMESTAMP_MS,
    *range(_REGION, _TIMESTAMP_MS),
    MODEL_FIELDS.index("access_channel"),
    *range(_REGION),
)
_id_values: Final = itemgetter(*_ID_FIELDS)  # another order would give a message other ids than the last run did


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRules:
    """Facts that the records lack.

    ``service_name`` is the service of every span; ``None`` takes the group's name. ``system`` is ``messaging.system``.
    ``stamped_after`` are patterns of producer groups whose clients take the time of a ``Pub`` after the send, as Go's.
    """

    service_name: str | None = None
    system: str = semconv.SYSTEM_ROCKETMQ
    stamped_after: tuple[str, ...] = ()


class OtlpSpanFields(NamedTuple):
    """The fields of one span.

    ``values`` are those of ``MODEL_FIELDS``, of both halves where there are two. ``parent_id`` is ``None`` for the root
    of the trace. ``store_host`` is the broker that a send went to. ``failure`` is the ``error.type``. Texts may hold
    what UTF-8 cannot carry: see :func:`encodable`.
    """

    values: tuple[Any, ...]
    trace_type: TraceType
    topic: str | None
    group_name: str | None
    store_host: str | None
    trace_id: bytes
    span_id: bytes
    parent_id: bytes | None
    start_ms: int
    end_ms: int
    service: str
    failure: str | None
    messages: int
    half: Half | None


def span_fields(event: Event, rules: SpanRules) -> OtlpSpanFields:
    """Return what ``event`` means: the same for the same records, wherever they were read."""
    (origin, _, trace_type, messages, values), before, half, is_root = event
    stamp_ms, began_ms = values[_TIMESTAMP_MS], None
    if before is not None:  # the later half wins, the earlier one fills what it leaves out
        *_, early = before
        began_ms = early[_TIMESTAMP_MS]
        values = _filled(values, early)
    topic, msg_id, store_host, group_name, request_id, cost_ms, success, code = _named(values)
    subject = msg_id or _joined(trace_type, *_id_values(values))
    trace_id, root_id = _IDS[subject]
    is_send = trace_type is _PUB
    if is_send and is_root:
        span_id, parent_id = root_id, None
    elif trace_type is _SUB_AFTER or trace_type is _SUB_BEFORE:
        call_id = request_id if request_id is not None else _joined("", trace_type, *_id_values(values))
        span_id, parent_id = _digest(_OF_CALL, f"{subject}{_SEPARATOR}{call_id}"), root_id
    else:
        span_id, parent_id = _digest(_OF_OTHER, _joined(trace_type, *_id_values(values), subject)), root_id
    cost_ms = cost_ms if cost_ms is not None and cost_ms > 0 else 0
    if is_send and rules.stamped_after and stamp_ms is not None and _is_stamped_after(group_name, rules):
        stamp_ms -= cost_ms
    start_ms, end_ms = _times(trace_type, began_ms, stamp_ms, cost_ms, origin.arrival_ms)
    failure = OTHER_ERROR if success is False else None
    if code is not None and code is not ContextCode.SUCCESS:
        failure = code.name  # TIME_OUT is a failure, although RocketMQ writes success with it
    service = rules.service_name or group_name or UNKNOWN_SERVICE
    what, ids = (values, trace_type, topic, group_name, store_host if is_send else None), (trace_id, span_id, parent_id)
    return _new_fields((*what, *ids, start_ms, end_ms, service, failure, messages, half))


_new_fields: Final[Callable[[tuple[Any, ...]], OtlpSpanFields]] = partial(tuple.__new__, OtlpSpanFields)
"""``OtlpSpanFields._make``, without Python code: it is called for every span."""


def _filled(late: tuple[Any, ...], early: tuple[Any, ...]) -> tuple[Any, ...]:
    values = list(late)
    for at in _OF_FIRST_HALF:
        if values[at] is None:
            values[at] = early[at]
    return tuple(values)


def _times(
    trace_type: TraceType, began_ms: int | None, stamp_ms: int | None, cost_ms: int, arrival_ms: int
) -> tuple[int, int]:
    """Return start and end in epoch milliseconds; never an end before the start: clocks are set, and costs wrong."""
    if not 0 <= arrival_ms <= _MAX_MS:
        arrival_ms = 0
    if trace_type is _SUB_AFTER:
        end_ms = stamp_ms
        if end_ms is None:
            end_ms = arrival_ms if began_ms is None else began_ms + cost_ms
        start_ms = end_ms - cost_ms if began_ms is None else began_ms
    elif trace_type is _PUB:
        start_ms = arrival_ms - cost_ms if stamp_ms is None else stamp_ms
        end_ms = start_ms + cost_ms
    else:
        start_ms = end_ms = arrival_ms if stamp_ms is None else stamp_ms
    if not 0 <= start_ms <= _MAX_MS:
        start_ms = arrival_ms
    return start_ms, end_ms if start_ms <= end_ms <= _MAX_MS else start_ms


def _is_stamped_after(group_name: str | None, rules: SpanRules) -> bool:
    return any(fnmatchcase(encodable(group_name or ""), pattern) for pattern in rules.stamped_after)


def rare_attributes(messages: int, half: Half | None, failure: str | None) -> dict[str, str | int]:
    """Return the attributes that few spans have: of a batch, of a half that stands alone, of a failure."""
    attributes = {
        semconv.MESSAGING_BATCH_MESSAGE_COUNT: messages if messages > 1 else None,
        semconv.MQTRACE_HALF: None if half is None else half.value,
        semconv.ERROR_TYPE: failure,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def server_of(store_host: str) -> dict[str, str | int]:
    """Return the attributes that name the broker."""
    try:
        address, port = host_and_port(store_host)
    except ValueError:  # digits that are not a number
        address, port = store_host, None
    named = ((semconv.SERVER_ADDRESS, address), (semconv.SERVER_PORT, port))
    return {name: value for name, value in named if value is not None}


def encodable(text: str) -> str:
    """Return ``text`` with a question mark for each character that UTF-8 cannot carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


# -- ids -----------------------------------------------------------------------------------------------------------
_SEPARATOR: Final = "\x01"  # the one character that no field holds
_OF_TRACE: Final = blake2b(f"trace{_SEPARATOR}".encode(), digest_size=16)
_OF_SEND: Final = blake2b(f"{TraceType.PUB.value}{_SEPARATOR}".encode(), digest_size=8)
_OF_CALL: Final = blake2b(f"Sub{_SEPARATOR}".encode(), digest_size=8)
_OF_OTHER: Final = blake2b(digest_size=8)
"""Digests that have read what all of a kind begin with: a copy costs half of a new one."""


def _digest(of_kind: blake2b, words: str) -> bytes:
    digest = of_kind.copy()
    digest.update(words.encode("utf-8", "replace"))
    made = digest.digest()
    return made if any(made) else made[:-1] + b"\x01"  # an all-zero id is invalid


def _joined(*words: object) -> str:
    return _SEPARATOR.join(map(str, words))


def _ids_of(subject: str) -> tuple[bytes, bytes]:
    return _digest(_OF_TRACE, subject), _digest(_OF_SEND, subject)


_IDS: Final = BoundedCache(_ids_of)
"""Message id (else all fields of the record) → trace id, and span id of its send, the others' parent."""


def trace_id_of(msg_id: str) -> str:
    """Return the id, in hex, of the trace that everything about the message belongs to."""
    return _IDS[msg_id][0].hex()


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
