"""The native Kafka exporter: trace messages on a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._clock import SystemClock
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.kafka_delivery import TraceProducer
from otel_mqtrace.exporters.native_delivery import NativeDeliveryExporter, with_spool
from otel_mqtrace.exporters.packing import SpanPacker
from otel_mqtrace.exporters.spooled import PATIENCE_MS
from otel_mqtrace.wire.native import DIALECTS, encode_context

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.exporters.packing import Encode

__all__ = ["NativeKafkaSpanExporter"]


class NativeKafkaSpanExporter(NativeDeliveryExporter):
    """Writes spans with ``mqtrace.trace_type`` as RocketMQ trace messages to a Kafka trace topic.

    Args:
        bootstrap_servers: The trace broker; else ``MQTRACE_BOOTSTRAP_SERVERS``, else the application's own.
        kafka_config: Client properties, or the path of a properties file (TLS, SASL); else ``MQTRACE_KAFKA_CONFIG``.
        trace_topic: Else ``MQTRACE_TRACE_TOPIC``.
        dialect: Which RocketMQ release's records to write; else ``MQTRACE_DIALECT``.
        region_id: Region of contexts that have none.
        max_message_bytes: Bound of a trace message's value, in encoded bytes; else ``MQTRACE_MAX_MESSAGE_BYTES``.
        create_trace_topic: Create the topic if it is missing; else ``MQTRACE_CREATE_TRACE_TOPIC``.
        export_timeout_millis: How long ``export`` waits for delivery reports unless it is told.
        spool_dir: Where messages wait on disk while the broker does not answer; else ``MQTRACE_SPOOL_DIR``.
        encode: The encoder; a test or a demo may wrap it.
        clock: Time.

    A wrong value is a warning, and the environment's or the default is used: no exporter is lost for it.
    ``export`` returns ``SUCCESS`` only when the broker has acknowledged, or the spool taken, all of the batch.
    """

    component_type: Final = "otel_mqtrace.exporters.native_kafka.NativeKafkaSpanExporter"

    def __init__(  # noqa: PLR0913 - plain keyword values, as declarative configuration gives them
        self,
        *,
        bootstrap_servers: str | None = None,
        kafka_config: str | Path | Mapping[str, Any] | None = None,
        trace_topic: str | None = None,
        dialect: str | None = None,
        region_id: str | None = None,
        max_message_bytes: int | None = None,
        create_trace_topic: bool | None = None,
        export_timeout_millis: float = 30_000,
        spool_dir: str | Path | None = None,
        encode: Encode = encode_context,
        clock: Clock | None = None,
    ) -> None:
        said = {"trace_topic": trace_topic, "dialect": dialect, "max_message_bytes": max_message_bytes}
        settings = Settings.from_env({**said, "create_trace_topic": create_trace_topic}, choices={"dialect": DIALECTS})
        clock = clock or SystemClock()
        packer = SpanPacker(
            encode=encode,
            dialect=settings.dialect,
            max_message_bytes=settings.max_message_bytes,
            region_id=region_id,
        )
        producer = TraceProducer(
            settings,
            dialect=packer.dialect,
            bootstrap_servers=bootstrap_servers,
            kafka_config=kafka_config,
            timeout_ms=export_timeout_millis,
            clock=clock,
        )
        delivery = with_spool(producer, settings, spool_dir, timeout_ms=export_timeout_millis, clock=clock)
        if delivery is not producer:
            producer.timeout_ms = min(producer.timeout_ms, PATIENCE_MS)  # its answer must come while the spool waits
            producer.failures.has_spool = True
        super().__init__(packer, delivery, timeout_ms=export_timeout_millis, clock=clock)
