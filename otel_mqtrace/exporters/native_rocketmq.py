"""The native RocketMQ exporter: trace messages spread over queues and retried on other brokers, within a deadline.

Connections are opened at the first delivery: an application that never sends a message never opens one, and a forked
child opens its own.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass
from threading import Event, Lock
from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace._clock import SystemClock, compute_deadline, seconds_until
from otel_mqtrace._errors import MqTraceError, PeerError, UsageError
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_delivery import MessageDelivery, NativeExporter, Undelivered, with_spool
from otel_mqtrace.message_id import new_unique_id
from otel_mqtrace.rocketmq.client import Outgoing, RemotingClient
from otel_mqtrace.rocketmq.commands import RefusedError, ResponseCode, is_unknown_topic
from otel_mqtrace.wire.native import encode_context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from otel_mqtrace._clock import Clock, MonotonicNs
    from otel_mqtrace.exporters.packing import Encode, TraceMessage
    from otel_mqtrace.rocketmq.commands import Queue

_logger = logging.getLogger(__name__)
_GROUP: Final = "mqtrace-native"
_SEND_TIMEOUT_MS: Final = 5_000  # as Java's trace producer
_SHUN_MS: Final = 30_000
_TOPIC_WAIT_MS: Final = 5_000  # a missing topic is reported before the export times out
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0
_REJECTED: Final = frozenset({ResponseCode.MESSAGE_ILLEGAL})
"""Errors of the message itself, which no later attempt and no other broker avoids."""


@dataclass(slots=True)
class _Attempt:
    """One message on its way; every try has the same properties, and so the same unique id, which shows repeats."""

    message: TraceMessage
    properties: Mapping[str, str]
    is_sent: bool = False
    error: PeerError | None = None

    @property
    def is_open(self) -> bool:
        return not (self.is_sent or self.is_rejected)

    @property
    def is_rejected(self) -> bool:
        return isinstance(self.error, RefusedError) and self.error.code in _REJECTED


class RocketMqTraceProducer(MessageDelivery):
    """Delivers to the trace topic of a RocketMQ.

    A message that one broker refuses is tried with another, and again after a pause that grows to two seconds, until
    the deadline or for ``timeout_ms``; at most five seconds for a topic that never existed.
    """

    def __init__(self, settings: Settings, *, timeout_ms: float, clock: Clock) -> None:
        super().__init__(clock)
        # Held by a function: a crash report that prints the exporter's attributes must show no secret key.
        self._open_client: Callable[[str], RemotingClient] = lambda namesrv: RemotingClient(
            namesrv,
            access_key=settings.rocketmq_access_key,
            secret_key=settings.rocketmq_secret_key,
            timeout_ms=min(timeout_ms, _SEND_TIMEOUT_MS),
            clock=clock,
        )
        self._settings = settings.without_secrets()
        self._topic = settings.trace_topic
        self._timeout_ms = timeout_ms
        self._client: RemotingClient | None = None
        self._turns = itertools.count()
        self._has_existed = False
        self._shunned: dict[str, MonotonicNs] = {}
        self._delivering = Lock()
        self._closed = Event()

    def close(self, deadline: MonotonicNs) -> None:
        """Refuse further messages, end a running ``deliver`` early, close the connections by ``deadline``."""
        self._closed.set()
        if self._client is not None:
            self._client.interrupt()
        if self._delivering.acquire(timeout=seconds_until(self._clock, deadline)):
            try:
                if self._client is not None:
                    self._client.close()
            finally:
                self._delivering.release()

    def after_fork(self) -> None:
        """In a child: the client opens new connections, without the parent's pause."""
        super().after_fork()
        self._delivering = Lock()
        closed, self._closed = self._closed, Event()
        if closed.is_set():
            self._closed.set()

    def deliver(self, messages: Sequence[TraceMessage], deadline: MonotonicNs) -> Undelivered:
        """Send ``messages`` and return those that were not acknowledged by ``deadline``. One thread at a time does."""
        if not self._delivering.acquire(timeout=seconds_until(self._clock, deadline)):
            return Undelivered(tuple(messages))
        try:
            attempts = [self._make_attempt(message) for message in messages]
            self._deliver(self._connect(), attempts, min(deadline, compute_deadline(self._clock, self._timeout_ms)))
        except MqTraceError as error:
            self.failures.report(str(error), kind=_kind_of(error))
            return Undelivered(tuple(messages))
        finally:
            self._delivering.release()
        for each in attempts:
            if each.error is not None and not each.is_sent:
                self.failures.report(str(each.error), kind=_kind_of(each.error))
        return Undelivered(
            tuple(each.message for each in attempts if each.is_open),
            tuple(each.message for each in attempts if each.is_rejected),
        )

    def _deliver(self, client: RemotingClient, attempts: Sequence[_Attempt], deadline: MonotonicNs) -> None:
        no_such_topic = min(deadline, compute_deadline(self._clock, _TOPIC_WAIT_MS))
        pause_s = _FIRST_PAUSE_S
        while True:
            another_may_do = self._send_waiting(client, [each for each in attempts if each.is_open], deadline)
            waiting = [each for each in attempts if each.is_open]
            if not waiting:
                return
            if another_may_do:
                continue
            # a topic that did exist returns with its broker; one look-up gives all that wait the same error
            is_missing = not self._has_existed and is_unknown_topic(waiting[0].error)
            until = no_such_topic if is_missing else deadline
            if seconds_until(self._clock, until) <= pause_s or self._closed.wait(pause_s):
                return
            self._shunned.clear()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _send_waiting(self, client: RemotingClient, waiting: Sequence[_Attempt], deadline: MonotonicNs) -> bool:
        """Send all that wait once; return whether that has shown a broker to fail that was not known to.

        Such a broker is shunned for thirty seconds, or until no other is left.
        """
        try:
            queues = self._find_queues(client, deadline)
        except PeerError as error:
            for each in waiting:
                each.error = error
            return False
        now_ns = self._clock.monotonic_ns()
        shunned = {broker for broker, until_ns in self._shunned.items() if until_ns > now_ns}
        candidates = [queue for queue in queues if queue.broker not in shunned] or queues
        posted = [
            Outgoing(
                queue=candidates[next(self._turns) % len(candidates)],
                body=each.message.value,
                properties=each.properties,
            )
            for each in waiting
        ]
        errors = client.send(posted, group=_GROUP, deadline=deadline)
        failing: set[str] = set()
        for each, outgoing, each.error in zip(waiting, posted, errors, strict=True):
            each.is_sent = each.error is None
            if each.is_open:
                failing.add(outgoing.queue.broker)
        if failing:
            client.forget_route(self._topic)
            self._shunned |= dict.fromkeys(failing, compute_deadline(self._clock, _SHUN_MS))
        return bool(failing - shunned)

    def _find_queues(self, client: RemotingClient, deadline: MonotonicNs) -> Sequence[Queue]:
        """Return the queues of the trace topic, which is created if configured; raise ``PeerError`` without any."""
        topic = self._topic
        try:
            queues = client.writable(topic, deadline=deadline)
        except PeerError as refusal:
            if not (is_unknown_topic(refusal) and self._settings.create_trace_topic):
                raise
            try:
                client.create_topic(topic, deadline=deadline)
                queues = client.writable(topic, deadline=deadline)
            except PeerError as error:
                _logger.debug("the trace topic %s was not created: %s", topic, error)
                raise refusal from None
        self._has_existed = True
        if not queues:
            raise PeerError(f"no broker with a master takes messages for {topic}")
        return queues

    def _make_attempt(self, message: TraceMessage) -> _Attempt:
        properties = {
            semconv.HEADER_KEYS: message.keys,
            semconv.HEADER_UNIQ_KEY: new_unique_id(),
            semconv.HEADER_DIALECT: self._settings.dialect,
        }
        return _Attempt(message, {name: value for name, value in properties.items() if value})

    def _connect(self) -> RemotingClient:
        if self._closed.is_set():
            raise PeerError("the native exporter was shut down")
        if self._client is None:
            if not self._settings.namesrv:
                raise UsageError("no name server is known for the trace topic: set MQTRACE_NAMESRV")
            self._client = self._open_client(self._settings.namesrv)
            if self._closed.is_set():  # meanwhile, before there was a client
                self._client.interrupt()
        return self._client


def _kind_of(error: MqTraceError) -> str:
    """Return what makes ``error`` one that was logged: a busy broker's remark has another number each time."""
    return f"{error.address} {error.code}" if isinstance(error, RefusedError) else str(error)


class NativeRocketMqSpanExporter(NativeExporter):
    """Writes spans with ``mqtrace.trace_type`` as trace messages to a RocketMQ broker, as its own clients do.

    Args:
        namesrv: Name servers, ``host:port[;host:port…]``; else ``MQTRACE_NAMESRV``.
        access_key: Else ``MQTRACE_ROCKETMQ_ACCESS_KEY``; for brokers with access control.
        secret_key: Else ``MQTRACE_ROCKETMQ_SECRET_KEY``.
        trace_topic: Else ``MQTRACE_TRACE_TOPIC``.
        create_trace_topic: Create the topic if it is missing; else ``MQTRACE_CREATE_TRACE_TOPIC``. RocketMQ's own
            topics only the brokers make: ``traceTopicEnable=true`` there.
        export_timeout_millis: How long ``export`` tries by default.
        spool_dir: Where messages wait on disk while no broker answers; else ``MQTRACE_SPOOL_DIR``.
        spool_bytes: Most bytes that wait there; else ``MQTRACE_SPOOL_BYTES``.

    The other arguments are those of :class:`~otel_mqtrace.exporters.native_delivery.NativeExporter`.
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
        connection = {"namesrv": namesrv, "rocketmq_access_key": access_key, "rocketmq_secret_key": secret_key}
        topic = {"trace_topic": trace_topic, "create_trace_topic": create_trace_topic}
        records = {"dialect": dialect, "region_id": region_id, "max_message_bytes": max_message_bytes}
        spool = {"spool_dir": spool_dir, "spool_bytes": spool_bytes}
        settings = Settings.from_env({**connection, **topic, **records, **spool})
        clock = clock or SystemClock()
        producer = RocketMqTraceProducer(settings, timeout_ms=export_timeout_millis, clock=clock)
        delivery = with_spool(producer, settings, broker="rocketmq", timeout_ms=export_timeout_millis, clock=clock)
        super().__init__(
            settings, delivery, encode=encode, region_id=region_id, timeout_ms=export_timeout_millis, clock=clock
        )
