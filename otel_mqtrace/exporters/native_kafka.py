"""The native Kafka exporter: trace messages to a topic by a producer of our own, never traced, within a deadline.

The producer is built at the first delivery, by the thread that delivers: an application that never sends a message
never opens a connection, and a forked child opens its own.
"""

from __future__ import annotations

import logging
from concurrent.futures import wait
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace import semconv
from otel_mqtrace._clock import MonotonicNs, SystemClock, seconds_until
from otel_mqtrace._errors import (
    MissingExtraError,
    MqTraceError,
    PeerError,
    UsageError,
    raised_failure,
    reraise_from_signal_handler,
)
from otel_mqtrace._workers import call_blocking, never_collect
from otel_mqtrace.client_properties import (
    application_kafka_config,
    error_name,
    merge_properties,
    servers_of,
    without_password,
)
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_delivery import PATIENCE_MS, MessageDelivery, NativeExporter, Undelivered, with_spool
from otel_mqtrace.wire.native import encode_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.exporters.packing import Encode, TraceMessage

_logger = logging.getLogger(__name__)
_LOOKUP_S: Final = 1.0  # a close waits so long for a look-up
_POLL_S: Final = 0.05
_HEADROOM_BYTES: Final = 64 * 1024
"""Room for headers and framing above the value, in the producer's own bound."""
_DEFAULT_MAX_REQUEST_BYTES: Final = 1_000_000
_REPORT_SHARE: Final = 0.8
"""Part of the export timeout after which librdkafka gives a message up: its verdict arrives while we still wait."""
_SETTLE_S: Final = 1.0
_TOPIC_WAIT_NS: Final = 10_000_000_000
_REJECTED: Final = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG", "INVALID_RECORD", "RECORD_LIST_TOO_LARGE"})
"""Errors of the message itself, which no later attempt avoids."""
_PURGED: Final = "_PURGE_QUEUE"
"""The code of a message that a purge found in the producer's queue: it was never sent."""
_FATAL: Final = "_FATAL"
"""The code under which a producer refuses each message after a fatal error."""
_DEFAULTS: Final[Mapping[str, Any]] = {
    "client.id": "mqtrace-native",
    "compression.type": "lz4",
    "enable.idempotence": True,  # a retry must not double a record: doubles are what the reconciliation looks for
    "linger.ms": 5,
    "reconnect.backoff.max.ms": 2_000,  # a spool probes for two seconds whether the broker is back
    "topic.metadata.propagation.max.ms": 5_000,  # a missing topic is reported before the export times out
    "log_level": 0,  # our own lines are rate-limited, librdkafka's are not
}


_NO_TOPIC: Final = (
    "the trace topic {topic} does not exist: create it, let MQTRACE_CREATE_TRACE_TOPIC=true create it, or name another "
    "one in MQTRACE_TRACE_TOPIC"
)
_NO_ANSWER: Final = (
    "the broker at {servers} did not take what is for the trace topic {topic} in time: see that it runs and can be "
    "reached from here, or name another one in MQTRACE_BOOTSTRAP_SERVERS"
)
_NOT_ALLOWED: Final = (
    "the broker at {servers} does not let this client write to the trace topic {topic} ({code}): allow it, or give "
    "other credentials in the file of MQTRACE_KAFKA_CONFIG"
)
_ANY_OTHER: Final = "the broker at {servers} did not take what is for the trace topic {topic}: {text}"
_TEXTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC"), _NO_TOPIC),
    **dict.fromkeys(("_MSG_TIMED_OUT", "_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN"), _NO_ANSWER),
    **dict.fromkeys((_PURGED, "_PURGE_INFLIGHT"), _NO_ANSWER),  # it was our own purge, at the deadline
    **dict.fromkeys(("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED"), _NOT_ALLOWED),
    **dict.fromkeys(("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED"), _NOT_ALLOWED),
}
"""librdkafka's name of an error → what it means here."""


def connection_of(kafka_config: Path | Mapping[str, Any] | None, servers: str | None) -> dict[str, Any]:
    """Return client properties with ``bootstrap.servers``. They may hold passwords: never log them.

    A dedicated trace broker never inherits the application's credentials: once an address is given, in ``servers`` or
    in ``kafka_config``, the application's own settings stay out.

    Raises:
        UsageError: no address is known, nothing gives a token, or the properties file cannot be read.
    """
    try:
        properties = merge_properties(kafka_config, servers)
    except UsageError as error:
        raise UsageError(f"{error}: correct MQTRACE_KAFKA_CONFIG") from error
    if not servers_of(properties):
        properties = {**(application_kafka_config() or {}), **properties}
    if not servers_of(properties):
        raise UsageError("no broker is known for the trace topic: set MQTRACE_BOOTSTRAP_SERVERS")
    if _needs_token(properties):  # the client would wait for one in silence
        raise UsageError(
            f"the broker at {without_password(servers_of(properties))} requires a token (OAUTHBEARER), and the "
            "application's oauth_cb is not called for traces: give an oauth_cb in kafka_config, or sasl.oauthbearer "
            "settings in the file of MQTRACE_KAFKA_CONFIG"
        )
    return properties


def _needs_token(properties: Mapping[str, Any]) -> bool:
    """Return whether the client authenticates by OAUTHBEARER, and nothing in its properties gives it a token."""
    is_sasl = "sasl" in str(properties.get("security.protocol")).lower()
    mechanism = properties.get("sasl.mechanisms") or properties.get("sasl.mechanism")
    return is_sasl and mechanism == "OAUTHBEARER" and not any("oauth" in name for name in properties)


class TraceProducer(MessageDelivery):
    """Delivers to ``settings.trace_topic`` of the broker that :func:`connection_of` finds.

    ``timeout_ms`` is what librdkafka may take for a message at most, and may be lowered until the first delivery.
    """

    def __init__(self, settings: Settings, *, timeout_ms: float, clock: Clock) -> None:
        super().__init__(clock)
        self._settings = settings.without_secrets()
        given, servers = settings.kafka_config, settings.bootstrap_servers
        # Read later, when the application may have changed its working directory.
        config = Path(given).absolute() if isinstance(given, str) else given
        # Held by functions: a crash report that prints the exporter's attributes must show no password.
        self._connection: Callable[[], Mapping[str, Any]] = lambda: connection_of(config, servers)
        self._properties: Callable[[], Mapping[str, Any]] = dict
        self.timeout_ms = timeout_ms
        self._producer: Any = None
        self._create_topic = settings.create_trace_topic
        self._closed = self._has_raised = False

    def flush(self, deadline: MonotonicNs) -> bool:
        """Return whether nothing is on its way; ``deliver`` has waited already."""
        producer = self._producer
        if producer is None:
            return True
        self._serve(producer.flush, seconds_until(self._clock, deadline))
        return not len(producer)

    def close(self, deadline: MonotonicNs) -> None:
        """Refuse further messages, end a running ``deliver`` early, close the producer by ``deadline``."""
        self._closed = True
        producer, self._producer = self._producer, None
        if producer is None:
            return
        self._serve(producer.flush, seconds_until(self._clock, deadline))
        if len(producer):
            producer.purge(in_queue=True, in_flight=True, blocking=False)

    def after_fork(self) -> None:
        """In a child: build its own producer when needed, and never touch the parent's."""
        super().after_fork()
        inherited, self._producer = self._producer, None
        if inherited is not None:
            never_collect(inherited)  # its destructor would join threads that do not exist here, and hang

    def deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Undelivered:
        """Send ``messages`` and return those that were not acknowledged by ``deadline``."""
        try:
            producer = self._connect(deadline)
        except MqTraceError as error:
            self.failures.report(str(error))
            return Undelivered(tuple(messages))
        delivery = _Reports(messages)
        for position, message in enumerate(messages):
            if not self._produce(producer, message, delivery.reporter(position), deadline):
                break
        while (delivery.waiting or _PURGED in delivery.errors) and self._can_wait(deadline):
            # The client's purge does not wait for its own end: the one of the last delivery may still take a message.
            for position in delivery.take_purged():
                self._produce(producer, messages[position], delivery.reporter(position), deadline)
            self._serve(producer.poll, _POLL_S)
        if delivery.waiting:
            # A message that is given up must not arrive later: purged ones are reported at once.
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            self._serve(producer.poll, _SETTLE_S)
        if _FATAL in delivery.errors:
            self._producer = None
        topic, servers = self._settings.trace_topic, without_password(servers_of(self._properties()))
        for code, text in list(delivery.errors.items()):
            failure = _TEXTS.get(code, _ANY_OTHER).format(topic=topic, servers=servers, code=code, text=text)
            self.failures.report(failure)
        return delivery.undelivered()

    def _produce(
        self, producer: Any, message: TraceMessage, report: Callable[[Any, Any], None], deadline: MonotonicNs
    ) -> bool:
        headers = [
            (semconv.HEADER_KEYS, message.keys.encode("utf-8", "replace")),
            (semconv.HEADER_DIALECT, self._settings.dialect.encode()),
        ]
        while True:
            try:
                producer.produce(self._settings.trace_topic, value=message.value, headers=headers, on_delivery=report)
            except BufferError:
                if not self._can_wait(deadline):
                    return False
                self._serve(producer.poll, _POLL_S)
            except Exception as error:  # noqa: BLE001 - KafkaException: refused in the call, and reported like the others
                report(error, None)
                return True
            else:
                return True

    def _serve(self, method: Callable[[float], object], timeout_s: float) -> None:
        """Serve delivery reports by the client's ``poll`` or ``flush``, which raise what any callback does.

        A producer with a fatal error sends nothing any more, so the next one is new.
        """
        try:
            call_blocking(method, timeout_s)
        except:  # noqa: E722 - a fatal KafkaException, or what a callback in kafka_config raised, perhaps a KafkaError
            reraise_from_signal_handler()
            error = raised_failure()
            cause: Any = error.args[0] if error.args else None
            if hasattr(cause, "fatal") and cause.fatal():
                self._producer = None
            else:
                level, self._has_raised = logging.DEBUG if self._has_raised else logging.WARNING, True
                _logger.log(level, "mqtrace: a callback of the trace producer raised %r (logged once)", error)

    def _connect(self, deadline: MonotonicNs) -> Any:
        if self._closed:
            raise PeerError("the native exporter was shut down")
        if self._producer is None:
            properties = self._connection()
            self._properties = lambda: properties
            self._producer = self._build_producer(properties)
        producer = self._producer  # a shutdown meanwhile takes it away
        if self._create_topic:
            self._create_topic = not self._ensure_topic(deadline)
        return producer

    def _build_producer(self, properties: Mapping[str, Any]) -> Any:
        try:
            # Not confluent_kafka.Producer: that name may be the instrumented one.
            from confluent_kafka.cimpl import KafkaException, Producer  # noqa: PLC0415 - optional extra
        except ImportError as error:
            raise MissingExtraError("the exporter mqtrace_native", "kafka") from error
        bounds = {
            "message.max.bytes": max(_DEFAULT_MAX_REQUEST_BYTES, self._settings.max_message_bytes + _HEADROOM_BYTES),
            "message.timeout.ms": max(1, int(self.timeout_ms * _REPORT_SHARE)),
        }
        try:
            return Producer({**_DEFAULTS, **bounds, **properties}, logger=_logger)
        except (KafkaException, TypeError, ValueError, SystemError) as error:  # SystemError: of an unprintable text
            shown = without_password(servers_of(properties))
            servers = shown.encode("utf-8", "backslashreplace").decode()  # for log files
            fix = "correct MQTRACE_BOOTSTRAP_SERVERS, or the properties in kafka_config or MQTRACE_KAFKA_CONFIG"
            raise PeerError(
                f"the trace producer for {servers} cannot be built: {error.__cause__ or error}: {fix}"
            ) from error

    def _ensure_topic(self, deadline: MonotonicNs) -> bool:
        """Create the trace topic if it is not there; ``False`` without an answer: the next export tries again.

        At most half of the time until ``deadline``: the topic may exist, and the rest is for sending.
        """
        topic = self._settings.trace_topic
        now = self._clock.monotonic_ns()
        give_up = MonotonicNs(now + min((deadline - now) // 2, _TOPIC_WAIT_NS))
        try:
            from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - optional extra
            from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415 - optional extra

            admin = AdminClient({**self._properties(), "log_level": 0}, logger=_logger)
            if self._has_topic(admin, give_up):
                return True
            answer = admin.create_topics([NewTopic(topic, -1, -1)])[topic]
            while not answer.done():
                if not self._can_wait(give_up):
                    return False
                wait([answer], _POLL_S)
            answer.result()
        except Exception as error:  # noqa: BLE001 - there already, or not ours to create: sending will show
            _logger.debug("the trace topic %s was not created: %s", topic, error)
        return True

    def _has_topic(self, admin: Any, give_up: MonotonicNs) -> bool:
        """Return whether the trace topic is there, maybe made by this question; its creation waits for a controller."""
        topic, left_s = self._settings.trace_topic, (give_up - self._clock.monotonic_ns()) / 1e9
        try:
            return admin.list_topics(topic, timeout=max(0.0, min(left_s, _LOOKUP_S))).topics[topic].error is None
        except Exception as error:  # noqa: BLE001 - no broker answers
            _logger.debug("the trace topic %s was not found: %s", topic, error)
            return False

    def _can_wait(self, deadline: MonotonicNs) -> bool:
        return not self._closed and self._clock.monotonic_ns() < deadline


class _Reports:
    """The delivery reports of one batch; a report that comes after we gave up changes nothing any more.

    They come to the thread that delivers, and to one that closes the exporter meanwhile.
    """

    def __init__(self, messages: Sequence[TraceMessage]) -> None:
        self._messages = messages
        self._outcomes: dict[int, str | None] = {}
        """Position of a message → the name of its error, ``None`` where it was delivered."""
        self.waiting: set[int] = set()
        self.errors: dict[str, str] = {}

    def reporter(self, position: int) -> Callable[[Any, Any], None]:
        """Return the callback for one message, which counts as on its way from now on."""
        self.waiting.add(position)

        def report(error: Any, _message: Any) -> None:
            self.waiting.discard(position)
            self._outcomes[position] = name = None if error is None else error_name(error)
            if name is not None:
                self.errors[name] = str(error)

        return report

    def take_purged(self) -> list[int]:
        """Return the positions of messages that a purge found in the queue, once, and forget why."""
        purged = [position for position, name in list(self._outcomes.items()) if name == _PURGED]
        for position in purged:
            del self._outcomes[position]
        self.errors.pop(_PURGED, None)
        return purged

    def undelivered(self) -> Undelivered:
        outcomes = [(message, self._outcomes.get(position, "")) for position, message in enumerate(self._messages)]
        return Undelivered(
            tuple(message for message, error in outcomes if error is not None and error not in _REJECTED),
            tuple(message for message, error in outcomes if error in _REJECTED),
        )


class NativeKafkaSpanExporter(NativeExporter):
    """Writes spans with ``mqtrace.trace_type`` as RocketMQ trace messages to a Kafka trace topic.

    Args:
        bootstrap_servers: The trace broker, one text or a list; else ``MQTRACE_BOOTSTRAP_SERVERS``, else the
            application's own.
        kafka_config: Client properties, or the path of a properties file (TLS, SASL); else ``MQTRACE_KAFKA_CONFIG``.
        trace_topic: Else ``MQTRACE_TRACE_TOPIC``.
        create_trace_topic: Create the topic if it is missing; else ``MQTRACE_CREATE_TRACE_TOPIC``.
        export_timeout_millis: How long ``export`` waits for delivery reports by default.
        spool_dir: Where messages wait on disk while the broker does not answer; else ``MQTRACE_SPOOL_DIR``.
        spool_bytes: Most bytes that wait there; else ``MQTRACE_SPOOL_BYTES``.

    The other arguments are those of :class:`~otel_mqtrace.exporters.native_delivery.NativeExporter`.
    ``export`` returns ``SUCCESS`` only when the broker has acknowledged, or the spool taken, all of the batch.
    """

    component_type: Final = "otel_mqtrace.exporters.native_kafka.NativeKafkaSpanExporter"

    def __init__(  # noqa: PLR0913 - plain keyword values, as declarative configuration gives them
        self,
        *,
        bootstrap_servers: str | Sequence[str] | None = None,
        kafka_config: str | Path | Mapping[str, Any] | None = None,
        trace_topic: str | None = None,
        dialect: str | None = None,
        region_id: str | None = None,
        max_message_bytes: int | None = None,
        create_trace_topic: bool | None = None,
        export_timeout_millis: float = 30_000,
        spool_dir: str | Path | None = None,
        spool_bytes: int | None = None,
        encode: Encode = encode_context,
        clock: Clock | None = None,
    ) -> None:
        connection = {"bootstrap_servers": bootstrap_servers, "kafka_config": kafka_config}
        topic = {"trace_topic": trace_topic, "create_trace_topic": create_trace_topic}
        records = {"dialect": dialect, "region_id": region_id, "max_message_bytes": max_message_bytes}
        spool = {"spool_dir": spool_dir, "spool_bytes": spool_bytes}
        settings = Settings.from_env({**connection, **topic, **records, **spool})
        clock = clock or SystemClock()
        with suppress(ImportError):  # the first export reports it; a child forked during its import would hang
            import_module("confluent_kafka.admin")
        producer = TraceProducer(settings, timeout_ms=export_timeout_millis, clock=clock)
        delivery = with_spool(producer, settings, broker="kafka", timeout_ms=export_timeout_millis, clock=clock)
        if delivery is not producer:
            producer.timeout_ms = min(producer.timeout_ms, PATIENCE_MS)  # its answer must come while the spool waits
        super().__init__(
            settings, delivery, encode=encode, region_id=region_id, timeout_ms=export_timeout_millis, clock=clock
        )
