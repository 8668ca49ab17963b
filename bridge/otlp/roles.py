"""The names of the attributes of messaging spans, and the role of a span: which event it records, and how it ended.

The first name that is there wins: ours, then the registry's names (semantic conventions 1.44), then those of
OpenTelemetry's Java agent for RocketMQ and Kafka (old conventions, the default; new ones; both with ``messaging/dup``;
captured headers). A name on the link of the message wins over one on the span.

Our own spans carry their role (``mqtrace.trace_type``); others are judged by operation and span kind. A span about no
message (a poll, the parent of a batch send, other instrumentation, the trace topic's own traffic) gets the ``scope``
that names the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from otel_mqtrace import semconv
from otel_mqtrace.model import ContextCode, MessageType

_HEADER: Final = semconv.CAPTURED_HEADER_PREFIX
TRACE_TOPIC_NAMES: Final = ("RMQ_SYS_TRACE_TOPIC",)
TRACE_TOPIC_PREFIX: Final = "rmq_sys_TRACE_DATA_"


@dataclass(frozen=True, slots=True)
class Alias:
    """Attribute names of one field, in order of precedence; ``arrays`` hold a JSON array of texts."""

    names: tuple[str, ...]
    arrays: tuple[str, ...] = ()


ALIASES: Final[dict[str, Alias]] = {
    "msg_id": Alias((semconv.MESSAGING_MESSAGE_ID, "messaging.message_id"), (f"{_HEADER}{semconv.HEADER_UNIQ_KEY}",)),
    "offset_msg_id": Alias((semconv.MQTRACE_OFFSET_MSG_ID,)),
    "topic": Alias((semconv.MESSAGING_DESTINATION_NAME, semconv.LEGACY_DESTINATION)),
    "group_name": Alias(
        (
            *(semconv.MQTRACE_GROUP_NAME, semconv.MESSAGING_CONSUMER_GROUP_NAME),
            *("messaging.consumer.group", semconv.LEGACY_KAFKA_CONSUMER_GROUP, semconv.LEGACY_ROCKETMQ_CLIENT_GROUP),
        )
    ),
    "attempt_id": Alias((semconv.MQTRACE_REQUEST_ID,)),
    "retry_times": Alias((semconv.MQTRACE_RETRY_TIMES,)),
    "region_id": Alias((semconv.MQTRACE_REGION_ID,), (f"{_HEADER}MSG_REGION",)),
    "tags": Alias((semconv.MQTRACE_TAGS, semconv.MESSAGING_ROCKETMQ_MESSAGE_TAG), (f"{_HEADER}{semconv.HEADER_TAGS}",)),
    "keys": Alias(
        (), (semconv.MQTRACE_KEYS, semconv.MESSAGING_ROCKETMQ_MESSAGE_KEYS, f"{_HEADER}{semconv.HEADER_KEYS}")
    ),
    "store_host": Alias((semconv.MQTRACE_STORE_HOST, "messaging.rocketmq.broker_address")),
    "client_host": Alias((semconv.MQTRACE_CLIENT_HOST,)),
    "body_length": Alias((semconv.MESSAGING_MESSAGE_BODY_SIZE, "messaging.message.payload_size_bytes")),
    "msg_type": Alias((semconv.MQTRACE_MSG_TYPE,)),
    "registry_msg_type": Alias((semconv.MESSAGING_ROCKETMQ_MESSAGE_TYPE,)),
    "cost_ms": Alias((semconv.MQTRACE_COST_TIME,)),
    "success": Alias((semconv.MQTRACE_SUCCESS,)),
    "context_code": Alias((semconv.MQTRACE_CONTEXT_CODE,)),
    "transaction_id": Alias((semconv.MQTRACE_TRANSACTION_ID,)),
    "transaction_state": Alias((semconv.MQTRACE_TRANSACTION_STATE,)),
    "from_transaction_check": Alias((semconv.MQTRACE_FROM_TRANSACTION_CHECK,)),
    "trace_type": Alias((semconv.MQTRACE_TRACE_TYPE,)),
    "system": Alias((semconv.MESSAGING_SYSTEM,)),
    "operation": Alias((semconv.MESSAGING_OPERATION_TYPE, semconv.LEGACY_OPERATION)),
    "operation_name": Alias((semconv.MESSAGING_OPERATION_NAME,)),
    "old_operation": Alias((semconv.LEGACY_OPERATION,)),
    "error_type": Alias((semconv.ERROR_TYPE,)),
    "send_result": Alias(("messaging.rocketmq.send_result",)),
    "batch_count": Alias((semconv.MESSAGING_BATCH_MESSAGE_COUNT,)),
    "partition": Alias(
        (
            *(semconv.MESSAGING_DESTINATION_PARTITION_ID, "messaging.kafka.destination.partition"),
            semconv.LEGACY_KAFKA_PARTITION,
        )
    ),
    "kafka_offset": Alias((semconv.MESSAGING_KAFKA_OFFSET, semconv.LEGACY_KAFKA_OFFSET)),
    "half": Alias((semconv.MQTRACE_HALF,)),
    "thread_name": Alias(("thread.name",)),
}

NAMING_FIELDS: Final = ("msg_id", "kafka_offset", "offset_msg_id")
"""The fields by which a link names a message."""

OPERATIONS: Final[dict[str, str]] = {
    "publish": "publish",
    "send": "publish",
    "create": "publish",
    "process": "consume",
    "deliver": "consume",
    "receive": "POLL",
    "settle": "SETTLE",
}
"""``messaging.operation.type`` (or the old ``messaging.operation``) → kind of event, or the scope it falls out by."""


_OUR_KINDS: Final = {
    semconv.TRACE_TYPE_PUB: "publish",
    semconv.TRACE_TYPE_SUB: "consume",
    semconv.TRACE_TYPE_END_TRANSACTION: "transaction_end",
    semconv.TRACE_TYPE_RECALL: "recall",
}
_EVENTS: Final = frozenset(_OUR_KINDS.values())
_SPAN_KINDS: Final = {"PRODUCER": "publish", "CONSUMER": "consume"}
_NOT_MESSAGING: Final = "NOT_MESSAGING"
_REGISTRY_TYPES: Final = {
    "normal": MessageType.NORMAL.value,
    "fifo": MessageType.ORDER.value,
    "delay": MessageType.DELAY.value,
    "transaction": MessageType.TRANS_HALF.value,
}
AGENT_SCOPES: Final = "io.opentelemetry."
"""How the scopes of the Java agent's spans begin."""
_AGENT: Final = "java-agent"
_OLD_AGENT: Final = f"{_AGENT}-old"
_CODES: Final = frozenset(code.name for code in ContextCode)
# RocketMQ calls a delivery that took too long successful (ConsumeReturnType.TIME_OUT with success=true), spans do not.
_SUCCESSFUL_CODES: Final = (ContextCode.SUCCESS.name, ContextCode.TIME_OUT.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFacts:
    """The fields of a span with few distinct values.

    Attributes:
        is_span: the span exists and is readable.
        span_kind: its ``kind`` in ``schemas.SPAN``.
        library: its ``scope`` in ``schemas.SPAN``.
        status: as in ``schemas.SPAN``.
        is_trace_traffic: it sends to a trace topic, or takes from one.
        has_id: the span itself has a message id.
        linked: it has links.
        unnamed: it has links, and none names a message.

    The others are fields of ``ALIASES``.
    """

    is_span: bool
    span_kind: str | None = None
    library: str | None = None
    status: str | None = None
    is_trace_traffic: bool | None = None
    has_id: bool = False
    linked: bool = False
    unnamed: bool = False
    trace_type: str | None = None
    system: str | None = None
    operation: str | None = None
    operation_name: str | None = None
    old_operation: str | None = None
    error_type: str | None = None
    send_result: str | None = None
    half: str | None = None
    context_code: str | None = None
    success: str | None = None
    from_transaction_check: str | None = None
    msg_type: str | None = None
    registry_msg_type: str | None = None


FACT_FIELDS: Final = tuple(name for name in SpanFacts.__slots__ if name in ALIASES)
"""Those of them that are fields of ``ALIASES``."""


class EventRole(NamedTuple):
    """The role of its messages; ``None`` is unknown.

    Attributes:
        has_ended: the span has the end of the call; one made of its first half lacks it.
        is_alone: with an unknown message count, it was this message only.

    The others are columns of ``schemas.EVENT``.
    """

    kind: str | None
    half: str | None
    scope: str | None
    writer: str
    msg_type: str | None
    success: bool | None
    context_code: str | None
    from_transaction_check: bool | None
    has_ended: bool
    is_alone: bool


def role_of(facts: SpanFacts) -> EventRole | None:
    """Return the role of a span, ``None`` where there is none."""
    if not facts.is_span:
        return None
    kind, writer = _kind(facts), _writer(facts)
    half = facts.half if facts.half in {"before", "after"} else "whole"
    is_event, has_ended = kind in _EVENTS, half != "before"
    success, context_code = _ending(facts, kind, writer) if has_ended else (None, None)
    registry_type = _REGISTRY_TYPES.get((facts.registry_msg_type or "").lower())
    is_child_of_old_batch = writer == _OLD_AGENT and kind == "consume" and facts.linked
    return EventRole(
        kind=kind if is_event else None,
        half=half if is_event else None,
        scope="TRACE_TRAFFIC" if facts.is_trace_traffic else None if is_event else kind,
        writer=writer,
        msg_type=registry_type if facts.msg_type is None else facts.msg_type,
        success=success,
        context_code=context_code,
        from_transaction_check=None if facts.from_transaction_check is None else facts.from_transaction_check == "true",
        has_ended=has_ended,
        is_alone=not (is_child_of_old_batch or (facts.operation or "").lower() == "create"),
    )


def _kind(facts: SpanFacts) -> str:
    """Return the kind of event, or in upper case the scope of a span that is not an event."""
    if (ours := _OUR_KINDS.get(facts.trace_type or "")) is not None:
        return ours
    if facts.operation is None:
        return _NOT_MESSAGING if facts.system is None else _SPAN_KINDS.get(facts.span_kind or "", _NOT_MESSAGING)
    found = OPERATIONS.get(facts.operation.lower(), _NOT_MESSAGING)
    return "BATCH_PARENT" if found == "publish" and facts.unnamed and not facts.has_id else found


def _writer(facts: SpanFacts) -> str:
    if facts.trace_type is not None or facts.library == semconv.SCOPE:
        return "mqtrace"
    is_agent = (facts.library or "").startswith(AGENT_SCOPES)
    if is_agent and facts.operation_name is not None:
        return f"{_AGENT}-new"
    return _OLD_AGENT if is_agent and facts.old_operation is not None else "other"


def _ending(facts: SpanFacts, kind: str, writer: str) -> tuple[bool | None, str | None]:
    """Return whether the call succeeded, and the code of a delivery: as our spans say, else by status and error."""
    success, code = None, None
    has_failed = facts.error_type is not None or facts.status == "ERROR"
    if kind == "publish" and facts.send_result is not None:
        success = facts.send_result == "SEND_OK"
    elif kind == "publish":
        success = False if has_failed else None if writer.startswith(_AGENT) else True
    elif kind == "consume":
        if facts.error_type in _CODES:
            code = facts.error_type
        elif not has_failed and facts.status is not None and writer != _OLD_AGENT:  # whose spans lack it
            code = ContextCode.SUCCESS.name
        success = code in _SUCCESSFUL_CODES if code else False if has_failed else None
    return (
        success if facts.success is None else facts.success == "true",
        code if facts.context_code is None else facts.context_code,
    )
