"""This module knows OpenTelemetry's side of the native Kafka exporter: spans come in, trace messages are delivered."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from bridge.codec.native import DIALECTS, encode_context
from bridge.exporters.native_spans import SpanPacker, has_record
from bridge.exporters.spool import Spool
from bridge.exporters.spooled import SpooledDelivery
from bridge.exporters.trace_producer import MessageDelivery, TraceProducer
from otel_mqtrace._clock import MonotonicNs, SystemClock
from otel_mqtrace._errors import UsageError
from otel_mqtrace.config import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from bridge.exporters.batching import Encode
    from otel_mqtrace._clock import Clock
    from otel_mqtrace.spans.stats import ExportOutcome

__all__ = ["NativeKafkaSpanExporter"]

_logger = logging.getLogger(__name__)
_NS_PER_MS: Final = 1_000_000


class NativeKafkaSpanExporter(SpanExporter):
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

    A wrong value is told once, and what the environment or the default says is used: no exporter is lost for it.
    ``export`` returns ``SUCCESS`` only when the broker has acknowledged, or the spool taken, all of the batch.
    """

    exports_starts: Final = True
    ledger_side: Final = "native"
    component_type: Final = "bridge.exporters.native_kafka.NativeKafkaSpanExporter"

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
        self._settings = Settings.from_env(
            {**said, "create_trace_topic": create_trace_topic}, choices={"dialect": DIALECTS}
        )
        self._timeout_ms = export_timeout_millis
        self._clock = clock or SystemClock()
        self._packer = SpanPacker(
            encode=encode,
            dialect=self._settings.dialect,
            max_message_bytes=self._settings.max_message_bytes,
            region_id=region_id,
        )
        self._delivery = self._way_out(bootstrap_servers, kafka_config, spool_dir)
        self._outcome: ExportOutcome | None = None
        self._told: set[str] = set()

    def wants(self, span: ReadableSpan) -> bool:
        """Whether ``span`` has a native record as far as it has come; others are not offered to this lane."""
        return has_record(span)

    def export(self, spans: Sequence[ReadableSpan], timeout_millis: float | None = None) -> SpanExportResult:
        """Send ``spans`` and wait for the broker's word, at most ``timeout_millis``."""
        deadline = self._deadline(self._timeout_ms if timeout_millis is None else timeout_millis)
        packed = self._packer.pack(spans)
        undelivered = self._delivery.deliver(packed.messages, deadline).messages if packed.messages else ()
        self._outcome = self._packer.settle(spans, packed, undelivered)
        if packed.first_error is not None:
            self._tell_once(packed.first_error)
        return SpanExportResult.FAILURE if undelivered else SpanExportResult.SUCCESS

    def take_outcome(self) -> ExportOutcome | None:
        """Return the fate of the last batch, span by span, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Return totals: spans, messages, undelivered_messages, body_bytes, replaced, keys_left_out, refused.

        With a spool also, in messages: spooled, replayed, replay_refused, spool_waiting.
        """
        spooled = self._delivery.stats() if isinstance(self._delivery, SpooledDelivery) else {}
        return self._packer.counts.as_dict() | spooled

    def on_idle(self) -> None:
        """Replay what the spool holds, if it is time to."""
        self._delivery.idle()

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        """Return whether nothing is on its way, nor in the spool; ``export`` has waited already."""
        return self._delivery.flush(self._deadline(timeout_millis))

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Refuse further batches, end a running ``export`` early, let the producer go within ``timeout_millis``."""
        self._delivery.close(self._deadline(timeout_millis))

    def after_fork(self) -> None:
        """In a child: build a producer of one's own when needed, and never touch the parent's."""
        self._delivery.after_fork()
        self._told = set()
        self._packer.after_fork()

    def _way_out(
        self,
        bootstrap_servers: str | None,
        kafka_config: str | Path | Mapping[str, Any] | None,
        spool_dir: str | Path | None,
    ) -> MessageDelivery:
        producer = TraceProducer(
            self._settings,
            dialect=self._packer.dialect,
            bootstrap_servers=bootstrap_servers,
            kafka_config=kafka_config,
            timeout_ms=self._timeout_ms,
            clock=self._clock,
        )
        directory = spool_dir or self._settings.spool_dir
        if directory is None:
            return producer
        try:
            spool = Spool(directory, max_bytes=self._settings.spool_bytes)
        except UsageError as error:
            _logger.warning("mqtrace: an outage of the trace broker will lose traces: %s", error)
            return producer
        return SpooledDelivery(producer, spool, timeout_ms=self._timeout_ms, clock=self._clock)

    def _tell_once(self, text: str) -> None:
        level = logging.DEBUG if text in self._told else logging.WARNING
        self._told.add(text)
        _logger.log(level, "mqtrace: native traces are not delivered: %s (said once; counted in stats())", text)

    def _deadline(self, timeout_ms: float) -> MonotonicNs:
        return MonotonicNs(self._clock.monotonic_ns() + int(timeout_ms * _NS_PER_MS))
