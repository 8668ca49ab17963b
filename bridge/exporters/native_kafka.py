"""This module knows how native trace messages reach a Kafka trace topic: with a producer of our own, never traced.

The producer is built at the first export, from the thread that exports, so that an application that never sends a
message never opens a connection, and a forked child opens its own.
"""

from __future__ import annotations

import ctypes
import logging
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from bridge.codec.native import DIALECTS, encode_context
from bridge.exporters.connection import connection_of
from bridge.exporters.native_spans import SpanPacker, has_record
from otel_mqtrace import semconv
from otel_mqtrace._clock import MonotonicNs, SystemClock
from otel_mqtrace._errors import MissingExtraError, MqTraceError, PeerError
from otel_mqtrace.config import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from bridge.exporters.batching import Encode, TraceMessage
    from otel_mqtrace._clock import Clock
    from otel_mqtrace.spans.stats import ExportOutcome

__all__ = ["NativeKafkaSpanExporter"]

_logger = logging.getLogger(__name__)
_NS_PER_MS: Final = 1_000_000
_POLL_S: Final = 0.05
_HEADROOM_BYTES: Final = 64 * 1024
"""Room for headers and framing above the value, in the producer's own bound."""
_DEFAULT_MAX_REQUEST_BYTES: Final = 1_000_000
_REPORT_SHARE: Final = 0.8
"""Part of the export timeout after which librdkafka gives a message up: its verdict arrives while we still wait."""
_SETTLE_S: Final = 1.0
_TOPIC_WAIT_NS: Final = 10_000_000_000
_DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "mqtrace-native",
    "compression.type": "lz4",
    "enable.idempotence": True,  # a retry must not double a record: doubles are what the reconciliation looks for
    "linger.ms": 5,
    "topic.metadata.propagation.max.ms": 5_000,  # a topic that is not there is told before the export times out
    "log_level": 0,  # our own lines are rate-limited, librdkafka's are not
}


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
        encode: The encoder; a test or a demo may wrap it.
        clock: Time.

    A wrong value is told once, and what the environment or the default says is used: no exporter is lost for it.
    ``export`` returns ``SUCCESS`` only when the broker has acknowledged every trace message of the batch.
    """

    exports_starts: Final = True
    ledger_side: Final = "native"

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
        encode: Encode = encode_context,
        clock: Clock | None = None,
    ) -> None:
        said = {"trace_topic": trace_topic, "dialect": dialect, "max_message_bytes": max_message_bytes}
        self._settings = Settings.from_env(
            {**said, "create_trace_topic": create_trace_topic}, choices={"dialect": DIALECTS}
        )
        self._bootstrap_servers = bootstrap_servers
        self._kafka_config = kafka_config
        self._timeout_ms = export_timeout_millis
        self._clock = clock or SystemClock()
        self._packer = SpanPacker(
            encode=encode,
            dialect=self._settings.dialect,
            max_message_bytes=self._settings.max_message_bytes,
            region_id=region_id,
        )
        self._producer: Any = None
        self._properties: Mapping[str, Any] = {}
        self._create_topic = self._settings.create_trace_topic
        self._closed = False
        self._outcome: ExportOutcome | None = None
        self._told: set[str] = set()

    def wants(self, span: ReadableSpan) -> bool:
        """Whether ``span`` has a native record as far as it has come; others are not offered to this lane."""
        return has_record(span)

    def export(self, spans: Sequence[ReadableSpan], timeout_millis: float | None = None) -> SpanExportResult:
        """Send ``spans`` and wait for the broker's word, at most ``timeout_millis``."""
        deadline = self._deadline(self._timeout_ms if timeout_millis is None else timeout_millis)
        packed = self._packer.pack(spans)
        undelivered = self._deliver(packed.messages, deadline) if packed.messages else []
        self._outcome = self._packer.settle(spans, packed, undelivered)
        if packed.first_error is not None:
            self._tell_once(packed.first_error)
        return SpanExportResult.FAILURE if undelivered else SpanExportResult.SUCCESS

    def take_outcome(self) -> ExportOutcome | None:
        """Return the fate of the last batch, span by span, once."""
        outcome, self._outcome = self._outcome, None
        return outcome

    def stats(self) -> dict[str, int | dict[str, int]]:
        """Return totals: spans, messages, undelivered_messages, body_bytes, replaced, keys_left_out, refused."""
        return self._packer.counts.as_dict()

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        """Return whether nothing is on its way; ``export`` has waited already."""
        return self._producer is None or self._producer.flush(timeout_millis / 1e3) == 0

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Refuse further batches, end a running ``export`` early, let the producer go within ``timeout_millis``."""
        self._closed = True
        producer, self._producer = self._producer, None
        if producer is not None and producer.flush(timeout_millis / 1e3):
            producer.purge(in_queue=True, in_flight=True, blocking=False)

    def after_fork(self) -> None:
        """In a child: build a producer of one's own when needed, and never touch the parent's."""
        inherited, self._producer = self._producer, None
        if inherited is not None:
            # Its destructor would join threads that do not exist here, for ever: let it never run.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(inherited))
        self._told = set()
        self._packer.after_fork()

    # -- delivery ----------------------------------------------------------------------------------------------------

    def _deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Sequence[TraceMessage]:
        """Send ``messages`` and return those that were not acknowledged by ``deadline``."""
        try:
            producer = self._connected(deadline)
        except MqTraceError as error:
            self._tell_once(str(error))
            return messages
        delivery = _Delivery(messages)
        for position, message in enumerate(messages):
            if not self._produce(producer, message, delivery.reporter(position), deadline):
                break
        while delivery.waiting and self._may_wait(deadline):
            producer.poll(_POLL_S)
        if delivery.waiting:
            # What is given up must not arrive later: purged messages are reported, and so settled, at once.
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            producer.poll(_SETTLE_S)
        for code, text in delivery.errors.items():
            self._tell_failure(code, text)
        return delivery.undelivered()

    def _produce(
        self, producer: Any, message: TraceMessage, report: Callable[[Any, Any], None], deadline: MonotonicNs
    ) -> bool:
        headers = [
            (semconv.HEADER_KEYS, message.keys.encode("utf-8", "replace")),
            (semconv.HEADER_DIALECT, self._packer.dialect.encode()),
        ]
        while True:
            try:
                producer.produce(self._settings.trace_topic, value=message.value, headers=headers, on_delivery=report)
            except BufferError:
                if not self._may_wait(deadline):
                    return False
                producer.poll(_POLL_S)
            except Exception as error:  # noqa: BLE001 - KafkaException: refused in the call, and told like a report
                report(error.args[0] if error.args else error, None)
                return True
            else:
                return True

    def _connected(self, deadline: MonotonicNs) -> Any:
        if self._closed:
            raise PeerError("the native exporter was shut down")
        if self._producer is None:
            self._properties = connection_of(
                self._settings, bootstrap_servers=self._bootstrap_servers, kafka_config=self._kafka_config
            )
            self._producer = self._build(self._properties)
        producer = self._producer  # a shutdown meanwhile takes it away
        if self._create_topic:
            self._create_topic = not self._topic_created(deadline)
        return producer

    def _build(self, properties: Mapping[str, Any]) -> Any:
        try:
            # Not confluent_kafka.Producer: that name may be the instrumented one.
            from confluent_kafka.cimpl import KafkaException, Producer  # noqa: PLC0415 - optional extra
        except ImportError as error:
            raise MissingExtraError("the exporter mqtrace_native", "kafka") from error
        bounds = {
            "message.max.bytes": max(_DEFAULT_MAX_REQUEST_BYTES, self._settings.max_message_bytes + _HEADROOM_BYTES),
            "message.timeout.ms": max(1, int(self._timeout_ms * _REPORT_SHARE)),
        }
        try:
            return Producer({**_DEFAULTS, **bounds, **properties}, logger=_logger)
        except (KafkaException, TypeError, ValueError) as error:
            raise PeerError(f"the trace producer cannot be built: {error}") from error

    def _topic_created(self, deadline: MonotonicNs) -> bool:
        """Ask for the trace topic; return ``False`` when no answer came and the next export has to ask again.

        At most half of the time until ``deadline``: the topic may be there, and then the rest is for sending.
        """
        topic = self._settings.trace_topic
        now = self._clock.monotonic_ns()
        give_up = MonotonicNs(now + min((deadline - now) // 2, _TOPIC_WAIT_NS))
        try:
            from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - optional extra
            from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415 - optional extra

            admin = AdminClient({**self._properties, "log_level": 0}, logger=_logger)
            answer = admin.create_topics([NewTopic(topic, -1, -1)])[topic]
            while not answer.done():
                if not self._may_wait(give_up):
                    return False
                wait([answer], _POLL_S)
            answer.result()
        except Exception as error:  # noqa: BLE001 - there already, or not ours to create: sending will tell
            _logger.debug("the trace topic %s was not created: %s", topic, error)
        return True

    # -- what is told ------------------------------------------------------------------------------------------------

    def _tell_failure(self, code: str, text: str) -> None:
        if code in {"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"}:
            topic = self._settings.trace_topic
            text = (
                f"the trace topic {topic} does not exist: create it, let MQTRACE_CREATE_TRACE_TOPIC=true create it, "
                "or name another one in MQTRACE_TRACE_TOPIC"
            )
        self._tell_once(text)

    def _tell_once(self, text: str) -> None:
        level = logging.DEBUG if text in self._told else logging.WARNING
        self._told.add(text)
        _logger.log(level, "mqtrace: native traces are not delivered: %s (said once; counted in stats())", text)

    def _deadline(self, timeout_ms: float) -> MonotonicNs:
        return MonotonicNs(self._clock.monotonic_ns() + int(timeout_ms * _NS_PER_MS))

    def _may_wait(self, deadline: MonotonicNs) -> bool:
        return not self._closed and self._clock.monotonic_ns() < deadline


class _Delivery:
    """The delivery reports of one batch; a report that comes after we gave up changes nothing any more."""

    def __init__(self, messages: Sequence[TraceMessage]) -> None:
        self._messages = messages
        self._delivered: set[int] = set()
        self.waiting: set[int] = set()
        self.errors: dict[str, str] = {}

    def reporter(self, position: int) -> Callable[[Any, Any], None]:
        """Return the callback for one message, which counts as on its way from now on."""
        self.waiting.add(position)

        def report(error: Any, _message: Any) -> None:
            self.waiting.discard(position)
            if error is None:
                self._delivered.add(position)
            else:
                self.errors[_name_of(error)] = str(error)

        return report

    def undelivered(self) -> Sequence[TraceMessage]:
        """Return the messages without a good report."""
        return [message for position, message in enumerate(self._messages) if position not in self._delivered]


def _name_of(error: Any) -> str:
    name = getattr(error, "name", None)
    return str(name()) if callable(name) else type(error).__name__
