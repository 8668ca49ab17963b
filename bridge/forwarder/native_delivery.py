"""Turn spans into native trace messages and deliver them: to a Kafka or RocketMQ trace topic, or into a landing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bridge.addresses import Kind, parse_address
from bridge.forwarder.store_landing import open_landing
from bridge.otlp.contexts import contexts_of
from bridge.otlp.spans import parse_message, spans_of
from bridge.page.wording import plural
from bridge.storage.paths import as_path
from otel_mqtrace._clock import SystemClock, compute_deadline
from otel_mqtrace._errors import PeerError
from otel_mqtrace.config import Settings
from otel_mqtrace.exporters.native_delivery import DeliveryFailures
from otel_mqtrace.exporters.packing import Packing
from otel_mqtrace.landing import LandedMessage
from otel_mqtrace.spans.queue import ENCODE_ERROR, TOO_LARGE
from otel_mqtrace.wire.native import encode_context
from otel_mqtrace.wire.native.dialects import dialect_named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from bridge.forwarder.pairing import Position
    from bridge.forwarder.store_landing import Landing
    from otel_mqtrace.exporters.native_delivery import MessageDelivery
    from otel_mqtrace.exporters.packing import TraceMessage
    from otel_mqtrace.model import TraceContext


_DELIVER_AT: Final = 5_000
Write = Callable[["Sequence[TraceMessage]", int], None]
"""Delivers all messages, whose spans arrived at these epoch milliseconds, or raises an error."""
_FIXES: Final = {
    ENCODE_ERROR: "correct the span's attribute where it is set, or give another --dialect",
    TOO_LARGE: "raise MQTRACE_MAX_MESSAGE_BYTES",
}


@dataclass(slots=True)
class NativeCounts:
    """The outcome of the spans so far.

    ``without_record`` counts the spans that are not a message event, by reason. ``bad_spans`` counts spans that could
    not be read; ``first_bad`` is the place and the reason of the first. ``unreadable`` counts messages that are not
    OTLP, ``refused`` records that the format cannot carry, by reason; ``first_refused`` has, for each reason, the place
    of the first and what to do. ``replaced`` counts separator characters inside values that were written as ``_``.
    """

    spans: int = 0
    records: int = 0
    trace_messages: int = 0
    bad_spans: int = 0
    unreadable: int = 0
    replaced: int = 0
    without_record: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    first_refused: dict[str, str] = field(default_factory=dict)
    first_bad: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        counted = {name: dict(getattr(self, name)) for name in ("without_record", "refused")}
        plain = ("spans", "records", "trace_messages", "bad_spans", "unreadable", "replaced")
        return {name: getattr(self, name) for name in plain} | counted


class NativeForwarding:
    """Takes OTLP messages, and delivers the records of their spans. Not thread-safe.

    It has the methods of ``SpanForwarding``; spans do not wait for each other. ``trace_topics`` are those of
    :func:`~bridge.otlp.contexts.contexts_of`.
    """

    def __init__(
        self, write: Write, *, dialect: str, max_message_bytes: int, trace_topics: Collection[str] = ()
    ) -> None:
        self.counts = NativeCounts()
        self._write = write
        self._dialect = dialect_named(dialect).name
        self._max_message_bytes = max_message_bytes
        self._trace_topics = trace_topics
        self._ready: list[tuple[str, TraceContext]] = []  # place and content
        self._arrival_ms = 0  # the last of what is ready

    @property
    def has_delivered(self) -> bool:
        """Return whether any message was delivered."""
        return self.counts.trace_messages > 0

    @property
    def due(self) -> bool:
        """Return whether enough was taken to be worth a commit."""
        return len(self._ready) >= _DELIVER_AT

    def begin_pass(self) -> None:
        """Nothing waits."""

    def take(self, messages: Iterable[LandedMessage]) -> list[LandedMessage]:
        """Read the spans in ``messages``; all of them are new."""
        taken = list(messages)
        for message in taken:
            self._arrival_ms = max(self._arrival_ms, message.arrival_ms)
            resource_spans = parse_message(message.body)
            if resource_spans is None:
                self.counts.unreadable += 1
                continue
            for span in spans_of(resource_spans):
                self.counts.spans += 1
                if span["bad"] is not None:
                    name, reason, _ = span["bad"]
                    why = f"{name} is {reason}" if name else reason
                    self.counts.first_bad = self.counts.first_bad or f"{_place(message)}: {why}"
                    self.counts.bad_spans += 1
                    continue
                found = contexts_of(span, self._trace_topics)
                self._ready += ((_place(message), each) for each in found.contexts)
                if not found.contexts and found.scope is not None:
                    self.counts.without_record[found.scope] += 1
        return taken

    def expire(self, behind: Collection[int | None]) -> None:
        """Nothing waits."""

    def end_pass(self, *, flush: bool = False) -> None:
        """Nothing waits."""

    def hold(self) -> set[Position]:
        """Return nothing: nothing waits."""
        return set()

    def deliver(self) -> int:
        """Have the records of everything taken delivered; return how many there are.

        Raises:
            PeerError: the broker did not take them; they are kept for the next attempt.
            UsageError: the landing cannot be written.
        """
        packing = Packing(encode_context, self._dialect, self._max_message_bytes)
        for position, (_, context) in enumerate(self._ready):
            packing.add_context(position, context)
        packing.finish_messages()
        packed = packing.packed
        if packed.messages:
            self._write(packed.messages, self._arrival_ms)
        delivered = len(self._ready) - len(packed.refused)
        for position, reason in packed.refused.items():
            why = packed.first_error if reason == ENCODE_ERROR else f"more than {self._max_message_bytes} bytes"
            first = f"{self._ready[position][0]}: {why}: {_FIXES[reason]}"
            self.counts.first_refused.setdefault(reason, first)
        self._ready, self._arrival_ms = [], 0
        self.counts.records += delivered
        self.counts.trace_messages += len(packed.messages)
        self.counts.replaced += packed.replaced
        self.counts.refused.update(packed.refused.values())
        return delivered


def _place(message: LandedMessage) -> str:
    """Return where an OTLP message lies: ``FILE:NUMBER``, from 1, or ``TOPIC-PARTITION@OFFSET``."""
    if message.partition is None:
        return f"{message.source}:{(message.offset or 0) + 1}"
    return f"{message.source}-{message.partition}@{message.offset}"


_OPTIONS: Final = {
    "MQTRACE_BOOTSTRAP_SERVERS": "--native",
    "MQTRACE_TRACE_TOPIC": "--native",
    "MQTRACE_KAFKA_CONFIG, or in kafka_config": "--client-config",
    "kafka_config or MQTRACE_KAFKA_CONFIG": "--client-config",
    "an oauth_cb in kafka_config, or sasl.": "sasl.",
    "MQTRACE_KAFKA_CONFIG": "--client-config",
}
"""The settings that a delivery's errors name → where the command line gives them."""


class _LastFailure(DeliveryFailures):
    """Keeps why something was not delivered, for the error line."""

    text = ""

    def report(self, text: str, *, kind: str | None = None) -> None:  # noqa: ARG002 - as declared
        for setting, name in _OPTIONS.items():
            text = text.replace(setting, name)
        self.text = text


@contextmanager
def open_native(
    target: str, *, dialect: str, landing_format: str, client_config: Mapping[str, str], timeout_ms: float
) -> Iterator[Write]:
    """Open where ``--native`` goes: ``kafka://BOOTSTRAP/TOPIC``, ``rocketmq://NAMESRV[;NAMESRV]/TOPIC`` or a DIR.

    Raises:
        UsageError: another form, an unknown dialect, or a directory that cannot be written.
        MissingExtraError: a client that is not installed.
    """
    address = parse_address(target, readable=(Kind.KAFKA, Kind.ROCKETMQ, Kind.FILES))
    # An unknown dialect would only be a warning of the producer's settings.
    values = {"trace_topic": address.topic, "dialect": dialect_named(dialect).name}
    if address.kind is Kind.FILES:
        yield partial(_land, open_landing(as_path(address.path), landing_format), Settings.from_env({}).trace_topic)
        return
    clock = SystemClock()
    delivery: MessageDelivery
    if address.kind is Kind.KAFKA:
        from otel_mqtrace.exporters.native_kafka import TraceProducer  # noqa: PLC0415 - optional extra

        connection = {"bootstrap_servers": address.servers, "kafka_config": client_config}
        delivery = TraceProducer(Settings.from_env({**values, **connection}), timeout_ms=timeout_ms, clock=clock)
    else:
        from otel_mqtrace.exporters.native_rocketmq import RocketMqTraceProducer  # noqa: PLC0415 - one kind is used

        names = {"accessKey": "rocketmq_access_key", "secretKey": "rocketmq_secret_key"}
        keys = {names[name]: value for name, value in client_config.items() if name in names}
        settings = Settings.from_env({**values, "namesrv": address.servers, **keys})
        delivery = RocketMqTraceProducer(settings, timeout_ms=timeout_ms, clock=clock)
    delivery.failures = failures = _LastFailure()

    def send(messages: Sequence[TraceMessage], arrival_ms: int) -> None:  # noqa: ARG001 - a broker has a clock
        undelivered = delivery.deliver(messages, compute_deadline(clock, timeout_ms)).messages
        if undelivered:
            raise PeerError(
                f"{target} did not take {len(undelivered)} of {plural(len(messages), 'trace message')} "
                f"({failures.text}); they are not committed and will be forwarded again"
            )

    try:
        yield send
    finally:  # at once: only an interrupted delivery leaves messages, which will be forwarded again
        delivery.close(clock.monotonic_ns())


def _land(writer: Landing, source: str, messages: Sequence[TraceMessage], arrival_ms: int) -> None:
    """Write a part. Its messages arrived when their spans did: a landing made today from old files is not late."""
    writer.write(
        [LandedMessage(source=source, arrival_ms=arrival_ms, keys=each.keys, body=each.value) for each in messages]
    )
    writer.finish()
