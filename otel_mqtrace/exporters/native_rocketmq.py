"""The native RocketMQ exporter: a broker's trace topic, which mqadmin and the dashboard show."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import SystemClock
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_delivery import NativeDeliveryExporter, with_spool
from otel_mqtrace.exporters.packing import SpanPacker
from otel_mqtrace.exporters.rocketmq_delivery import RocketMqTraceProducer
from otel_mqtrace.model import AccessChannel
from otel_mqtrace.wire.native import DIALECTS, encode_context

if TYPE_CHECKING:
    from pathlib import Path

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.exporters.delivery import MessageDelivery
    from otel_mqtrace.exporters.packing import Encode

__all__ = ["NativeRocketMqSpanExporter"]

_logger = logging.getLogger(__name__)


class NativeRocketMqSpanExporter(NativeDeliveryExporter):
    """Writes spans with ``mqtrace.trace_type`` as trace messages to a RocketMQ broker, as its own clients do.

    Args:
        namesrv: Name servers, ``host:port[;host:port…]``; else ``MQTRACE_NAMESRV``.
        access_key: Else ``MQTRACE_ROCKETMQ_ACCESS_KEY``; for brokers with access control.
        secret_key: Else ``MQTRACE_ROCKETMQ_SECRET_KEY``.
        trace_topic: Else ``MQTRACE_TRACE_TOPIC``.
        access_channel: ``LOCAL``, or ``CLOUD``: every region's records go to ``rmq_sys_TRACE_DATA_<region>``, and
            ``trace_topic`` does not count, as with RocketMQ's ``AccessChannel``. Records are written in LOCAL's form,
            which every reader understands.
        dialect: Which RocketMQ release's records to write; else ``MQTRACE_DIALECT``.
        region_id: Region of contexts that have none.
        max_message_bytes: Bound of a trace message's body, in encoded bytes; else ``MQTRACE_MAX_MESSAGE_BYTES``.
        create_trace_topic: Create the topic if it is missing; else ``MQTRACE_CREATE_TRACE_TOPIC``. RocketMQ's own
            topics only the brokers make: ``traceTopicEnable=true`` there.
        export_timeout_millis: How long ``export`` tries unless it is told.
        spool_dir: Where messages wait on disk while no broker answers; else ``MQTRACE_SPOOL_DIR``. Not over ``CLOUD``.
        encode: The encoder; a test or a demo may wrap it.
        clock: Time.

    A wrong value is a warning, and the environment's or the default is used: no exporter is lost for it.
    ``export`` returns ``SUCCESS`` only when a broker has acknowledged, or the spool taken, all of the batch.
    """

    component_type: Final = "otel_mqtrace.exporters.native_rocketmq.NativeRocketMqSpanExporter"

    def __init__(  # noqa: PLR0913 - plain keyword values, as declarative configuration gives them
        self,
        *,
        namesrv: str | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        trace_topic: str | None = None,
        access_channel: str = AccessChannel.LOCAL.value,
        dialect: str | None = None,
        region_id: str | None = None,
        max_message_bytes: int | None = None,
        create_trace_topic: bool | None = None,
        export_timeout_millis: float = 30_000,
        spool_dir: str | Path | None = None,
        encode: Encode = encode_context,
        clock: Clock | None = None,
    ) -> None:
        connection = {"namesrv": namesrv, "rocketmq_access_key": access_key, "rocketmq_secret_key": secret_key}
        said = {"trace_topic": trace_topic, "dialect": dialect, "max_message_bytes": max_message_bytes}
        settings = Settings.from_env(
            {**connection, **said, "create_trace_topic": create_trace_topic}, choices={"dialect": DIALECTS}
        )
        clock = clock or SystemClock()
        packer = SpanPacker(
            encode=encode,
            dialect=settings.dialect,
            max_message_bytes=settings.max_message_bytes,
            region_id=region_id,
        )
        channel = _channel(access_channel)
        producer = RocketMqTraceProducer(
            settings, dialect=packer.dialect, access_channel=channel, timeout_ms=export_timeout_millis, clock=clock
        )
        delivery: MessageDelivery = producer
        if channel is AccessChannel.LOCAL:
            delivery = with_spool(producer, settings, spool_dir, timeout_ms=export_timeout_millis, clock=clock)
            producer.failures.has_spool = delivery is not producer
        elif spool_dir or settings.spool_dir:
            _logger.warning(
                "mqtrace: an outage of the trace broker will lose traces: a spool does not keep the region, which "
                "names the topic over CLOUD"
            )
        super().__init__(packer, delivery, timeout_ms=export_timeout_millis, clock=clock)


def _channel(said: str) -> AccessChannel:
    try:
        return AccessChannel(str(said).upper())
    except ValueError:
        _logger.warning("mqtrace: access_channel = %r: one of LOCAL, CLOUD was expected; 'LOCAL' is used", said)
        return AccessChannel.LOCAL
