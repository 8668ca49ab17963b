"""The fields of the spans of native trace events: stable ids, times, service, outcome."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS
from otel_mqtrace.hooks.tracing import host_and_port
from otel_mqtrace.model import ContextCode, TraceType
from otel_mqtrace.wire.native.decode import MODEL_FIELDS
from otel_mqtrace.wire.native.layout import FORMS
from otel_mqtrace.wire.otlp.protobuf import BoundedCache

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.forwarder.pairing import Event, Half

UNKNOWN_SERVICE: Final = "unknown_service"
"""Service of a record that names no group, in the words of OpenTelemetry's resource conventions."""
OTHER_ERROR: Final = "_OTHER"
"""The registry's ``error.type`` of a failure without a name, as of ``Pub`` and ``Recall``."""
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
        values = _fill_from(values, early)
    topic, msg_id, store_host, group_name, request_id, cost_ms, success, code = _named(values)
    subject = msg_id or _join(trace_type, *_id_values(values))
    trace_id, root_id = _IDS[subject]
    is_send = trace_type is _PUB
    if is_send and is_root:
        span_id, parent_id = root_id, None
    elif trace_type is _SUB_AFTER or trace_type is _SUB_BEFORE:
        call_id = request_id if request_id is not None else _join("", trace_type, *_id_values(values))
        span_id, parent_id = _digest(_OF_CALL, f"{subject}{_SEPARATOR}{call_id}"), root_id
    else:
        span_id, parent_id = _digest(_OF_OTHER, _join(trace_type, *_id_values(values), subject)), root_id
    cost_ms = cost_ms if cost_ms is not None and cost_ms > 0 else 0
    if is_send and rules.stamped_after and stamp_ms is not None and _is_stamped_after(group_name, rules):
        stamp_ms -= cost_ms
    start_ms, end_ms = _find_times(trace_type, began_ms, stamp_ms, cost_ms, origin.arrival_ms)
    failure = OTHER_ERROR if success is False else None
    if code is not None and code is not ContextCode.SUCCESS:
        failure = code.name  # TIME_OUT is a failure, although RocketMQ writes success with it
    service = rules.service_name or group_name or UNKNOWN_SERVICE
    what, ids = (values, trace_type, topic, group_name, store_host if is_send else None), (trace_id, span_id, parent_id)
    return _new_fields((*what, *ids, start_ms, end_ms, service, failure, messages, half))


_new_fields: Final[Callable[[tuple[Any, ...]], OtlpSpanFields]] = partial(tuple.__new__, OtlpSpanFields)
"""``OtlpSpanFields._make``, without Python code: it is called for every span."""


def _fill_from(late: tuple[Any, ...], early: tuple[Any, ...]) -> tuple[Any, ...]:
    values = list(late)
    for at in _OF_FIRST_HALF:
        if values[at] is None:
            values[at] = early[at]
    return tuple(values)


def _find_times(
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


def _join(*words: object) -> str:
    return _SEPARATOR.join(map(str, words))


_IDS: Final = BoundedCache[str, tuple[bytes, bytes]](
    lambda subject: (_digest(_OF_TRACE, subject), _digest(_OF_SEND, subject))
)
"""Message id (else all fields of the record) → trace id, and span id of its send, the others' parent."""


def trace_id_of(msg_id: str) -> str:
    """Return the id, in hex, of the trace that everything about the message belongs to."""
    return _IDS[msg_id][0].hex()
