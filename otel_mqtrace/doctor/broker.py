"""The checks of the trace topic's brokers: its configuration, and the skew of their clocks."""

from __future__ import annotations

import logging
import re
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.instrumentation.utils import suppress_instrumentation

from otel_mqtrace._clock import NS_PER_MS, SystemClock
from otel_mqtrace._errors import MqTraceError, PeerError, UsageError
from otel_mqtrace.client_properties import error_name, error_text, fetch_metadata, merge_properties, servers_of
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.message_id import new_unique_id
from otel_mqtrace.rocketmq.client import RemotingClient
from otel_mqtrace.rocketmq.commands import is_unknown_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

    from otel_mqtrace.config import Settings
    from otel_mqtrace.doctor.findings import Checkup

_TIMEOUT_S: Final = 4.0
_DESCRIBE_TIMEOUT_S: Final = 2.0
_MOST_SKEW_MS: Final = 1_000
_EXPORTER, _ROCKETMQ_EXPORTER = "mqtrace_native", "mqtrace_native_rocketmq"
_LANE: Final = NativeKafkaSpanExporter.__name__
_SPOOLED: Final = "wait on disk"
"""What each failure of an exporter with a spool has in its line: a spool may be set in code."""
_NO_CONTROLLER: Final = "not measured: the brokers name no controller, which would answer"
_WILL_BE_CREATED: Final = "the trace topic is missing and will be created by the first export"
_SERVER: Final = re.compile(r"\s*((\w+://)?(\[.+\]|[^\s:/]*)(:\s*\d+)?(/.*)?\s*)?")
"""What librdkafka takes for an address, but for an IPv6 one without brackets."""
_LEGAL_TOPIC: Final = {
    "Kafka": (re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}"), "249 letters, digits, dots, hyphens and underscores"),
    "RocketMQ": (re.compile(r"[A-Za-z0-9%|_-]{1,127}"), "127 letters, digits, hyphens, underscores, % and |"),
}
_quiet: Final = logging.getLogger("otel_mqtrace.doctor.client")


def examine_broker(checkup: Checkup, settings: Settings, *, servers: str | None, probe: bool) -> None:
    """Check the brokers of the trace topic; ``servers`` is the application's own address, if it is known.

    Without ``probe`` nothing is written. Passwords go to the brokers only.
    """
    if _EXPORTER not in settings.exporters:
        checkup.facts["broker"] = "not used: mqtrace_native is not among the exporters"
        return
    if not _check_name(checkup, settings, "Kafka"):
        return
    connection = _resolve_connection(checkup, settings, servers)
    if connection is None:
        return
    try:
        from confluent_kafka import KafkaException  # noqa: PLC0415 - optional extra
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - optional extra
    except ImportError:
        checkup.facts["broker"] = "not checked: this needs the 'kafka' extra"
        return
    reasons: list[str] = []
    silent: dict[str, Any] = {
        "log_level": 0,
        "error_cb": lambda error: reasons.append(error.str()),
        "client.id": "mqtrace-doctor",
    }
    with suppress_instrumentation():
        try:
            admin = AdminClient({**connection, **silent, "allow.auto.create.topics": False}, logger=_quiet)
        except (KafkaException, TypeError, ValueError) as error:
            checkup.add("kafka_config_refused", where="MQTRACE_KAFKA_CONFIG", error=error_text(error))
            return
        try:
            cluster = fetch_metadata(admin, None, _TIMEOUT_S)
        except KafkaException as error:
            why, tried = reasons[-1] if reasons else error_text(error), servers_of(connection)
            _report_unreachable(checkup, settings, why, tried, is_of_application=tried == servers)
            return
        facts: dict[str, Any] = {
            "cluster_id": cluster.cluster_id,
            "brokers": len(cluster.brokers),
            "topic": settings.trace_topic,
        }
        checkup.facts["broker"] = facts
        # without a controller the client waits for one until its time is over: EmbeddedKafka has none
        has_controller = cluster.controller_id in cluster.brokers
        topic = cluster.topics.get(settings.trace_topic)
        if topic is not None and topic.error is None and topic.partitions:
            facts["partitions"] = len(topic.partitions)
            facts["configuration"] = _read_configuration(checkup, settings, admin) if has_controller else _NO_CONTROLLER
        elif settings.create_trace_topic:
            facts["note"] = _WILL_BE_CREATED
        else:
            checkup.add("trace_topic_missing", where="MQTRACE_TRACE_TOPIC", topic=settings.trace_topic)
        if not probe:
            facts["clock"] = "not measured: no message is written without --probe"
        else:
            facts["clock"] = (
                _measure_skew(checkup, admin, {**connection, **silent}) if has_controller else _NO_CONTROLLER
            )


def examine_rocketmq(checkup: Checkup, settings: Settings) -> None:
    """Check that a RocketMQ takes messages for the trace topic; nothing is sent."""
    if _ROCKETMQ_EXPORTER not in settings.exporters or not _check_name(checkup, settings, "RocketMQ"):
        return
    try:
        checkup.facts["rocketmq"] = {"topic": settings.trace_topic, "queues": _count_queues(settings)}
    except MqTraceError as error:
        if not is_unknown_topic(error):
            checkup.add("broker_unreachable/rocketmq", where="MQTRACE_NAMESRV", error=error)
        elif settings.create_trace_topic:
            checkup.facts["rocketmq"] = _WILL_BE_CREATED
        else:
            checkup.add("trace_topic_missing/rocketmq", where="MQTRACE_TRACE_TOPIC", error=error)


def _check_name(checkup: Checkup, settings: Settings, system: str) -> bool:
    legal, allowed = _LEGAL_TOPIC[system]
    if legal.fullmatch(settings.trace_topic):
        return True
    where, topic = "MQTRACE_TRACE_TOPIC", repr(settings.trace_topic)
    checkup.add("trace_topic_missing/name", where=where, system=system, topic=topic, allowed=allowed)
    return False


def _count_queues(settings: Settings) -> int:
    """Return how many queues a message of the trace topic can go to; raise ``MqTraceError`` without any."""
    if not settings.namesrv:
        raise UsageError("no name server is set")
    keys: dict[str, Any] = {"access_key": settings.rocketmq_access_key, "secret_key": settings.rocketmq_secret_key}
    with closing(RemotingClient(settings.namesrv, **keys, timeout_ms=_TIMEOUT_S * 1e3)) as client:
        # To a name server without brokers no topic exists.
        queues = len(client.writable(settings.trace_topic)) if client.masters() else 0
    if not queues:
        raise PeerError(f"no broker with a master takes messages for {settings.trace_topic}")
    return queues


def _report_unreachable(checkup: Checkup, settings: Settings, why: str, tried: str, *, is_of_application: bool) -> None:
    """Report that the brokers do not answer, unless they took records of the command: they may be embedded in it."""
    reports = checkup.facts.get("processes", ())
    processors = [each for report in reports for each in report["processors"]]
    has_spooled = any(_SPOOLED in each for report in reports for each in report["warnings"])
    exported = sum(lane["exported"] for each in processors for name, lane in each.items() if name.startswith(_LANE))
    if exported and settings.spool_dir is None and not has_spooled:  # a spool exports without brokers
        checkup.facts["broker"] = "took the records of the command, and does not answer since it ended"
        return
    where = "the application's own brokers" if is_of_application else "MQTRACE_BOOTSTRAP_SERVERS"
    if not all(map(_SERVER.fullmatch, tried.split(","))):
        why = f"{why}; an address is not HOST:PORT"
    checkup.add("broker_unreachable", where=where, error=why)


def _resolve_connection(checkup: Checkup, settings: Settings, servers: str | None) -> dict[str, Any] | None:
    try:
        properties = merge_properties(settings.kafka_config, settings.bootstrap_servers)
    except UsageError as error:
        checkup.add("kafka_config_unreadable", where="MQTRACE_KAFKA_CONFIG", error=error)
        return None
    if servers_of(properties):
        return properties
    if servers is None:
        checkup.facts["broker"] = (
            "not checked: MQTRACE_BOOTSTRAP_SERVERS is not set, and no traced client has named a broker "
            "(mqtrace doctor -- COMMAND takes those of the application's first client)"
        )
        return None
    return {**properties, "bootstrap.servers": servers}


def _read_configuration(checkup: Checkup, settings: Settings, admin: Any) -> str | dict[str, str | None]:
    from confluent_kafka import KafkaException  # noqa: PLC0415 - optional extra
    from confluent_kafka import admin as requests  # noqa: PLC0415 - optional extra

    kinds: Any = requests  # its stubs export none of these
    resource = kinds.ConfigResource(kinds.ResourceType.TOPIC, settings.trace_topic)
    try:
        entries = admin.describe_configs([resource], request_timeout=_DESCRIBE_TIMEOUT_S)[resource].result()
    except (KafkaException, TimeoutError) as error:
        return f"not measured: the brokers did not answer that request ({error_name(error)})"
    names = ("cleanup.policy", "message.timestamp.type", "retention.ms", "max.message.bytes")
    report = {name: entries[name].value for name in names if name in entries}
    _check_configuration(checkup, settings, report)
    return report


def _check_configuration(checkup: Checkup, settings: Settings, report: Mapping[str, str | None]) -> None:
    if "compact" in str(report.get("cleanup.policy")):
        checkup.add("trace_topic_compacted", where=settings.trace_topic)
    most = str(report.get("max.message.bytes") or "")
    if most.isdigit() and int(most) < settings.max_message_bytes:
        ours = settings.max_message_bytes
        checkup.add("trace_topic_too_small", where="MQTRACE_MAX_MESSAGE_BYTES", most=most, ours=ours)


def _measure_skew(checkup: Checkup, admin: Any, connection: dict[str, Any]) -> str | dict[str, float]:
    """Send two messages to a new topic whose messages the broker stamps, and delete the topic again."""
    from confluent_kafka import KafkaException, Producer  # noqa: PLC0415 - optional extra
    from confluent_kafka import admin as requests  # noqa: PLC0415 - optional extra

    name = f"mqtrace-doctor-{new_unique_id()}"
    kinds: Any = requests  # its stubs do not export the class
    topic = kinds.NewTopic(name, 1, 1, config={"message.timestamp.type": "LogAppendTime"})
    try:
        admin.create_topics([topic], request_timeout=_TIMEOUT_S)[name].result(_TIMEOUT_S)
    except (KafkaException, FutureTimeoutError) as error:
        return f"not measured: the brokers do not let us create a topic ({error_name(error)})"
    try:
        measured = _send_probe(Producer(connection, logger=_quiet), name)
    finally:
        try:
            problem = admin.delete_topics([name], request_timeout=_TIMEOUT_S)[name].exception(_TIMEOUT_S)
        except (KafkaException, FutureTimeoutError) as error:
            problem = error
        if problem is not None:
            left = f"{name} may be left: the brokers did not delete it ({error_name(problem)})"
            checkup.facts["broker"]["probe_topic"] = left
    if measured is None:
        return "not measured: the message was not taken"
    skew_ms, uncertain_ms = measured
    if abs(skew_ms) > _MOST_SKEW_MS + uncertain_ms:
        where = "the broker that leads the probe's topic"
        checkup.add("clock_skew", where=where, skew_ms=f"{skew_ms:.0f}")
    return {"skew_ms": skew_ms, "uncertain_ms": uncertain_ms}


def _send_probe(producer: Any, topic: str) -> tuple[float, float] | None:
    """Return how far the broker's stamp is from the middle of the call, and half the call, both in milliseconds."""
    clock = SystemClock()
    stamps: list[tuple[int, int]] = []

    def answered(error: Any, message: Any) -> None:
        if error is None:
            stamps.append((clock.wall_ns(), message.timestamp()[1]))

    producer.produce(topic, b"warm", on_delivery=lambda _error, _message: None)
    producer.flush(_TIMEOUT_S)
    before = clock.wall_ns()
    producer.produce(topic, b"probe", on_delivery=answered)
    producer.flush(_TIMEOUT_S)
    if not stamps:
        return None
    after, stamp_ms = stamps[0]
    middle_ms = (before + after) / 2 / NS_PER_MS
    return stamp_ms - middle_ms, (after - before) / 2 / NS_PER_MS
