"""Every attribute name, once: the registry's (semantic conventions 1.44) first, then our own.

Literals on purpose: the ``_incubating`` package moves names between releases, and a Spark executor must be able to
import this without OpenTelemetry. A test compares the registry's names with the installed conventions package.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SCOPE: Final = "otel_mqtrace"
"""The instrumentation scope of our spans and metrics."""

# -- registry: messaging ------------------------------------------------------------------------------------------
MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_DESTINATION_PARTITION_ID: Final = "messaging.destination.partition.id"
MESSAGING_CONSUMER_GROUP_NAME: Final = "messaging.consumer.group.name"
MESSAGING_BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
MESSAGING_CLIENT_ID: Final = "messaging.client.id"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_MESSAGE_BODY_SIZE: Final = "messaging.message.body.size"
MESSAGING_KAFKA_MESSAGE_KEY: Final = "messaging.kafka.message.key"
MESSAGING_KAFKA_MESSAGE_TOMBSTONE: Final = "messaging.kafka.message.tombstone"
MESSAGING_KAFKA_OFFSET: Final = "messaging.kafka.offset"
MESSAGING_KAFKA_CLUSTER_ID: Final = "messaging.kafka.cluster.id"
MESSAGING_ROCKETMQ_NAMESPACE: Final = "messaging.rocketmq.namespace"
MESSAGING_ROCKETMQ_MESSAGE_TAG: Final = "messaging.rocketmq.message.tag"
MESSAGING_ROCKETMQ_MESSAGE_KEYS: Final = "messaging.rocketmq.message.keys"
MESSAGING_ROCKETMQ_MESSAGE_TYPE: Final = "messaging.rocketmq.message.type"
MESSAGING_ROCKETMQ_MESSAGE_GROUP: Final = "messaging.rocketmq.message.group"
MESSAGING_ROCKETMQ_MESSAGE_DELAY_TIME_LEVEL: Final = "messaging.rocketmq.message.delay_time_level"
MESSAGING_ROCKETMQ_MESSAGE_DELIVERY_TIMESTAMP: Final = "messaging.rocketmq.message.delivery_timestamp"
MESSAGING_ROCKETMQ_CONSUMPTION_MODEL: Final = "messaging.rocketmq.consumption_model"
SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
ERROR_TYPE: Final = "error.type"

CAPTURED_HEADER_PREFIX: Final = "messaging.header."
"""A message header captured by ``capture_headers``: this and the header's name; the value is ``string[]``."""

# -- names of before 1.25, on request (OTEL_SEMCONV_STABILITY_OPT_IN), for dashboards of the old conventions
LEGACY_DESTINATION: Final = "messaging.destination"
LEGACY_DESTINATION_KIND: Final = "messaging.destination_kind"
LEGACY_OPERATION: Final = "messaging.operation"
LEGACY_CLIENT_ID: Final = "messaging.client_id"
LEGACY_KAFKA_PARTITION: Final = "messaging.kafka.partition"
LEGACY_KAFKA_OFFSET: Final = "messaging.kafka.message.offset"
LEGACY_KAFKA_CONSUMER_GROUP: Final = "messaging.kafka.consumer.group"
LEGACY_ROCKETMQ_CLIENT_GROUP: Final = "messaging.rocketmq.client_group"

# -- ours: the TraceContext and TraceBean fields that no convention has a name for -------------------------------
MQTRACE_TRACE_TYPE: Final = "mqtrace.trace_type"
MQTRACE_OFFSET_MSG_ID: Final = "mqtrace.offset_msg_id"
MQTRACE_TAGS: Final = "mqtrace.tags"
MQTRACE_KEYS: Final = "mqtrace.keys"
MQTRACE_GROUP_NAME: Final = "mqtrace.group_name"
MQTRACE_STORE_HOST: Final = "mqtrace.store_host"
MQTRACE_CLIENT_HOST: Final = "mqtrace.client_host"
MQTRACE_STORE_TIME: Final = "mqtrace.store_time"
MQTRACE_RETRY_TIMES: Final = "mqtrace.retry_times"
MQTRACE_MSG_TYPE: Final = "mqtrace.msg_type"
MQTRACE_COST_TIME: Final = "mqtrace.cost_time"
MQTRACE_SUCCESS: Final = "mqtrace.success"
MQTRACE_CONTEXT_CODE: Final = "mqtrace.context_code"
MQTRACE_REQUEST_ID: Final = "mqtrace.request_id"
MQTRACE_REGION_ID: Final = "mqtrace.region_id"
MQTRACE_REGION_NAME: Final = "mqtrace.region_name"
MQTRACE_TRANSACTION_ID: Final = "mqtrace.transaction_id"
MQTRACE_TRANSACTION_STATE: Final = "mqtrace.transaction_state"
MQTRACE_FROM_TRANSACTION_CHECK: Final = "mqtrace.from_transaction_check"
MQTRACE_SEND_OUTCOME: Final = "mqtrace.send_outcome"
"""Only on a send span that ended without the broker's answer: one of the ``SEND_*`` names below."""
SEND_NOT_AWAITED: Final = "not_awaited"
"""``delivery.report.only.error``, or an unseen default callback: the client reports no position."""
SEND_ABANDONED: Final = "abandoned"
"""The producer was closed or collected with the message still in flight."""

MQTRACE_HALF: Final = "mqtrace.half"
"""Only on a forwarded process span made from one half: ``before`` (no end was recorded) or ``after``."""

SYSTEM_ROCKETMQ: Final = "rocketmq"
"""The value of ``messaging.system`` for which the ``messaging.rocketmq.*`` names apply."""

# -- values of mqtrace.trace_type: the two Sub halves are the start and the end of one span ----------------------
TRACE_TYPE_PUB: Final = "Pub"
TRACE_TYPE_SUB: Final = "Sub"
TRACE_TYPE_END_TRANSACTION: Final = "EndTransaction"
TRACE_TYPE_RECALL: Final = "Recall"

# -- message headers: RocketMQ's property names (org.apache.rocketmq.common.message.MessageConst) ----------------
HEADER_UNIQ_KEY: Final = "UNIQ_KEY"
HEADER_TAGS: Final = "TAGS"
HEADER_KEYS: Final = "KEYS"
HEADER_DELAY: Final = "DELAY"
HEADER_RECONSUME_TIMES: Final = "RECONSUME_TIME"
HEADER_DIALECT: Final = "mqtrace.dialect"
