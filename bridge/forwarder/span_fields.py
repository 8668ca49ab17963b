"""The fields of the span of a native trace event: stable ids, times, service, outcome."""

from __future__ import annotations

from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from hashlib import blake2b
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace.hooks.tracing import host_and_port
from otel_mqtrace.model import ContextCode, TraceBean, TraceContext, TraceType
from otel_mqtrace.wire.native.layout import ABSENT_TEXTS
from otel_mqtrace.wire.otlp.bounded_cache import BoundedCache

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bridge.forwarder.pairing import Event, Half, Record

__all__ = [
    "ATTRIBUTE_FIELDS",
    "BEAN_FIELDS",
    "CONTEXT_FIELDS",
    "FIELDS",
    "NS_PER_MS",
    "OTHER_ERROR",
    "SCOPE",
    "UNKNOWN_SERVICE",
    "OtlpSpanFields",
    "SpanRules",
    "call_id",
    "event_id",
    "ids_of",
    "joined",
    "meaning_of",
    "rare_attributes",
    "root_span_id",
    "server_of",
    "speakable",
    "trace_id_of",
]


_SEPARATOR: Final = "\x01"  # the one character that no field holds
_OF_TRACE: Final = blake2b(f"trace{_SEPARATOR}".encode(), digest_size=16)
_OF_SEND: Final = blake2b(f"{TraceType.PUB.value}{_SEPARATOR}".encode(), digest_size=8)
_OF_CALL: Final = blake2b(f"Sub{_SEPARATOR}".encode(), digest_size=8)
_OF_OTHER: Final = blake2b(digest_size=8)
"""Digests that have read what all of a kind begin with: a copy costs half of a new one."""


def joined(words: Iterable[str]) -> str:
    """Return ``words`` as one text that no other words give."""
    return _SEPARATOR.join(words)


def ids_of(subject: str) -> tuple[bytes, bytes]:
    """Return the trace of a message, and the span of its send, which its other spans have for a parent, seen or not.

    ``subject`` is the message id; of a record without one, all that it says.
    """
    return _IDS[subject]


def call_id(subject: str, *told_apart_by: str) -> bytes:
    """Return the span id of a listener call, of which both halves say the same."""
    return _digest(_OF_CALL, joined((subject, *told_apart_by)))


def event_id(words: Iterable[str], subject: str) -> bytes:
    """Return the span id of any other event: by everything that its record says."""
    return _digest(_OF_OTHER, joined((*words, subject)))


def trace_id_of(msg_id: str) -> int:
    """Return the trace that everything about the message belongs to."""
    return int.from_bytes(ids_of(msg_id)[0], "big")


def root_span_id(msg_id: str) -> int:
    """Return the span id of the message's send, which its other spans have for a parent, seen or not."""
    return int.from_bytes(ids_of(msg_id)[1], "big")


def _digest(of_kind: blake2b, words: str) -> bytes:
    digest = of_kind.copy()
    digest.update(words.encode("utf-8", "replace"))
    made = digest.digest()
    return made if any(made) else made[:-1] + b"\x01"  # zero is no id


_IDS: Final = BoundedCache[str, tuple[bytes, bytes]](
    lambda subject: (_digest(_OF_TRACE, subject), _digest(_OF_SEND, subject)),
)
"""A message's records come close together, and each of them asks."""


UNKNOWN_SERVICE: Final = "unknown_service"
"""Service of a record that names no group, in the words of OpenTelemetry's resource conventions."""
OTHER_ERROR: Final = "_OTHER"
"""The registry's ``error.type`` of a failure that has no name: ``Pub`` and ``Recall`` say no more than that."""
SCOPE: Final = "bridge.forwarder"
"""The instrumentation scope of every span."""
NS_PER_MS: Final = 1_000_000

BEAN_FIELDS: Final = tuple(each.name for each in fields(TraceBean))
CONTEXT_FIELDS: Final = tuple(each.name for each in fields(TraceContext) if each.name not in {"trace_type", "beans"})
_NO_ATTRIBUTE: Final = ("timestamp_ms", "access_channel")
ATTRIBUTE_FIELDS: Final = (*BEAN_FIELDS, *(name for name in CONTEXT_FIELDS if name not in _NO_ATTRIBUTE))
"""What a record says that becomes an attribute each, in the order of the attributes."""
FIELDS: Final = (*ATTRIBUTE_FIELDS, *_NO_ATTRIBUTE)
"""All that a record of one type says, in the order of :attr:`OtlpSpanFields.said`."""

_MAX_MS: Final = (1 << 63) // NS_PER_MS - 1  # what OTLP's consumers can say, the year 2262
_LISTENER_CALL: Final = (TraceType.SUB_BEFORE, TraceType.SUB_AFTER)
_of_bean = attrgetter(*BEAN_FIELDS)
_of_context = attrgetter(*FIELDS[len(BEAN_FIELDS) :])
_as_in_model = itemgetter(*map(FIELDS.index, (*CONTEXT_FIELDS, *BEAN_FIELDS)))
_NAMES: Final = ("topic", "msg_id", "store_host", "group_name", "request_id", "timestamp_ms")
_named = itemgetter(*map(FIELDS.index, (*_NAMES, "cost_ms", "success", "context_code")))


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRules:
    """What the records cannot say of themselves.

    ``service_name`` is the service of every span; ``None`` takes the group's name. ``system`` is ``messaging.system``.
    ``stamped_after`` are patterns of producer groups whose clients take the time of a ``Pub`` after the send, as Go's.
    """

    service_name: str | None = None
    system: str = semconv.SYSTEM_ROCKETMQ
    stamped_after: tuple[str, ...] = ()


class OtlpSpanFields(NamedTuple):
    """What one span says. ``said`` are the values of ``FIELDS``, those of both halves where there are two.

    ``parent_id`` is ``None`` for the root of the trace. ``store_host`` is the broker that a send went to. ``failure``
    is the ``error.type`` of what went wrong. Texts may hold what UTF-8 cannot carry: see :func:`speakable`.
    """

    said: tuple[Any, ...]
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


def meaning_of(event: Event, rules: SpanRules) -> OtlpSpanFields:
    """Return what ``event`` means: the same for the same records, wherever they were read."""
    record, before = event.record, event.before
    trace_type = record.trace_ctx.trace_type
    said = _said(record)
    if before is not None:  # the later half wins, the earlier one fills what it leaves out
        said = tuple([late if late is not None else early for late, early in zip(said, _said(before), strict=True)])
    topic, msg_id, store_host, group_name, request_id, stamp_ms, cost_ms, success, code = _named(said)
    subject = msg_id or joined(_words(trace_type, said))
    trace_id, root_id = ids_of(subject)
    is_send = trace_type is TraceType.PUB
    is_root = is_send and event.is_root
    start_ms, end_ms = _times(event, stamp_ms, max(cost_ms or 0, 0), group_name, rules)
    return OtlpSpanFields(
        said,
        trace_type,
        topic,
        group_name,
        store_host if is_send else None,
        trace_id,
        root_id if is_root else _id_of(trace_type, subject, request_id, said),
        None if is_root else root_id,
        start_ms,
        end_ms,
        rules.service_name or group_name or UNKNOWN_SERVICE,
        _failure(code, success=success),
        record.messages,
        event.half,
    )


def speakable(text: str) -> str:
    """Return ``text`` with a question mark for each character that UTF-8 cannot carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _said(record: Record) -> tuple[Any, ...]:
    said: tuple[Any, ...] = _of_bean(record.bean) + _of_context(record.trace_ctx)
    if ABSENT_TEXTS.isdisjoint(said):
        return said
    return tuple([None if value in ABSENT_TEXTS else value for value in said])


def _words(trace_type: TraceType, said: tuple[Any, ...]) -> tuple[str, ...]:
    """Return everything that the record says, as words."""
    return tuple(map(str, (trace_type, *_as_in_model(said))))


def _id_of(trace_type: TraceType, subject: str, request_id: str | None, said: tuple[Any, ...]) -> bytes:
    if trace_type not in _LISTENER_CALL:
        return event_id(_words(trace_type, said), subject)
    return call_id(subject, request_id) if request_id is not None else call_id(subject, "", *_words(trace_type, said))


def _failure(code: ContextCode | None, *, success: bool | None) -> str | None:
    """Return the name of what went wrong; a call that took too long failed, although RocketMQ says success with it."""
    if code is not None and code is not ContextCode.SUCCESS:
        return code.name
    return OTHER_ERROR if success is False else None


def rare_attributes(meaning: OtlpSpanFields) -> dict[str, str | int]:
    """Return the attributes that few spans have: of a batch, of a half that stands alone, of a failure."""
    half = None if meaning.half is None else meaning.half.value
    batch = meaning.messages if meaning.messages > 1 else None
    said = {
        semconv.MESSAGING_BATCH_MESSAGE_COUNT: batch,
        semconv.MQTRACE_HALF: half,
        semconv.ERROR_TYPE: meaning.failure,
    }
    return {name: value for name, value in said.items() if value is not None}


# -- servers -------------------------------------------------------------------------------------------------------
def server_of(store_host: str) -> dict[str, str | int]:
    """Return the attributes that name the broker."""
    return _SERVERS[store_host]


def _server(store_host: str) -> dict[str, str | int]:
    try:
        address, port = host_and_port(store_host)
    except ValueError:  # digits that are no number
        address, port = store_host, None
    named = ((semconv.SERVER_ADDRESS, address), (semconv.SERVER_PORT, port))
    return {name: value for name, value in named if value is not None}


_SERVERS: Final = BoundedCache(_server)


# -- times ---------------------------------------------------------------------------------------------------------
def _times(
    event: Event, stamp_ms: int | None, cost_ms: int, group_name: str | None, rules: SpanRules
) -> tuple[int, int]:
    """Return start and end in epoch milliseconds; never an end before the start: clocks are set, and costs wrong."""
    record, before = event.record, event.before
    trace_type, arrival_ms = record.trace_ctx.trace_type, _sane(record.arrival_ms, 0)
    if trace_type is TraceType.SUB_AFTER:
        began_ms = None if before is None else before.trace_ctx.timestamp_ms
        ended_ms = record.trace_ctx.timestamp_ms
        if ended_ms is None:
            ended_ms = arrival_ms if began_ms is None else began_ms + cost_ms
        start_ms = ended_ms - cost_ms if began_ms is None else began_ms
    elif trace_type is TraceType.PUB:
        start_ms = arrival_ms - cost_ms if stamp_ms is None else stamp_ms
        if stamp_ms is not None and rules.stamped_after and _is_stamped_after(group_name, rules):
            start_ms -= cost_ms
        ended_ms = start_ms + cost_ms
    else:
        start_ms = ended_ms = arrival_ms if stamp_ms is None else stamp_ms
    start_ms = _sane(start_ms, arrival_ms)
    return start_ms, max(start_ms, _sane(ended_ms, start_ms))


def _is_stamped_after(group_name: str | None, rules: SpanRules) -> bool:
    return any(fnmatchcase(speakable(group_name or ""), pattern) for pattern in rules.stamped_after)


def _sane(stamp_ms: int, otherwise_ms: int) -> int:
    return stamp_ms if 0 <= stamp_ms <= _MAX_MS else otherwise_ms
