"""The attribute names of each field of an event; the first name that is there wins.

Ours first, then the registry's names (semantic conventions 1.44), then those of OpenTelemetry's Java agent for RocketMQ
and Kafka (old conventions, the default; new ones; both with ``messaging/dup``; captured headers). A name on the link of
the message wins over one on the span.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from otel_mqtrace import semconv

HEADER_PREFIX: Final = "messaging.header."
"""Message properties captured as headers: string arrays under their own names."""

TRACE_TOPIC_NAMES: Final = ("RMQ_SYS_TRACE_TOPIC",)
TRACE_TOPIC_PREFIX: Final = "rmq_sys_TRACE_DATA_"


@dataclass(frozen=True, slots=True)
class Alias:
    """Attribute names of one field, in order of precedence; ``arrays`` hold a JSON array of texts."""

    names: tuple[str, ...]
    arrays: tuple[str, ...] = ()


ALIASES: Final[dict[str, Alias]] = {
    "msg_id": Alias(
        (semconv.MESSAGING_MESSAGE_ID, "messaging.message_id"),
        (f"{HEADER_PREFIX}{semconv.HEADER_UNIQ_KEY}",),
    ),
    "offset_msg_id": Alias((semconv.MQTRACE_OFFSET_MSG_ID,)),
    "topic": Alias((semconv.MESSAGING_DESTINATION_NAME, semconv.LEGACY_DESTINATION)),
    "group_name": Alias(
        (
            *(semconv.MQTRACE_GROUP_NAME, semconv.MESSAGING_CONSUMER_GROUP_NAME),
            *("messaging.consumer.group", semconv.LEGACY_KAFKA_CONSUMER_GROUP, semconv.LEGACY_ROCKETMQ_CLIENT_GROUP),
        ),
    ),
    "attempt_id": Alias((semconv.MQTRACE_REQUEST_ID,)),
    "retry_times": Alias((semconv.MQTRACE_RETRY_TIMES,)),
    "region_id": Alias((semconv.MQTRACE_REGION_ID,), (f"{HEADER_PREFIX}MSG_REGION",)),
    "tags": Alias(
        (semconv.MQTRACE_TAGS, "messaging.rocketmq.message.tag"),
        (f"{HEADER_PREFIX}{semconv.HEADER_TAGS}",),
    ),
    "keys": Alias(
        (),
        (semconv.MQTRACE_KEYS, "messaging.rocketmq.message.keys", f"{HEADER_PREFIX}{semconv.HEADER_KEYS}"),
    ),
    "store_host": Alias((semconv.MQTRACE_STORE_HOST, "messaging.rocketmq.broker_address")),
    "client_host": Alias((semconv.MQTRACE_CLIENT_HOST,)),
    "body_length": Alias(
        (semconv.MESSAGING_MESSAGE_BODY_SIZE, "messaging.message.payload_size_bytes"),
    ),
    "msg_type": Alias((semconv.MQTRACE_MSG_TYPE,)),
    "registry_msg_type": Alias(("messaging.rocketmq.message.type",)),
    "cost_ms": Alias((semconv.MQTRACE_COST_TIME,)),
    "success": Alias((semconv.MQTRACE_SUCCESS,)),
    "context_code": Alias((semconv.MQTRACE_CONTEXT_CODE,)),
    "transaction_id": Alias((semconv.MQTRACE_TRANSACTION_ID,)),
    "transaction_state": Alias((semconv.MQTRACE_TRANSACTION_STATE,)),
    "from_transaction_check": Alias((semconv.MQTRACE_FROM_TRANSACTION_CHECK,)),
    "trace_type": Alias((semconv.MQTRACE_TRACE_TYPE,)),
    "system": Alias((semconv.MESSAGING_SYSTEM,)),
    "operation": Alias((semconv.MESSAGING_OPERATION_TYPE, "messaging.operation")),
    "operation_name": Alias((semconv.MESSAGING_OPERATION_NAME,)),
    "old_operation": Alias(("messaging.operation",)),
    "error_type": Alias((semconv.ERROR_TYPE,)),
    "send_result": Alias(("messaging.rocketmq.send_result",)),
    "batch_count": Alias((semconv.MESSAGING_BATCH_MESSAGE_COUNT,)),
    "partition": Alias(
        (
            *(semconv.MESSAGING_DESTINATION_PARTITION_ID, "messaging.kafka.destination.partition"),
            semconv.LEGACY_KAFKA_PARTITION,
        ),
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
