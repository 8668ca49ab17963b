"""This module knows the four messaging metrics of the semantic conventions 1.44 and when each one counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace.hooks._guard import guarded
from otel_mqtrace.hooks._sdk import is_collected

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.metrics import Meter
    from opentelemetry.util.types import AttributeValue

__all__ = ["MessagingMetrics"]

_BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_NAMES: Final = (
    semconv.MESSAGING_OPERATION_NAME,
    semconv.MESSAGING_SYSTEM,
    semconv.MESSAGING_DESTINATION_NAME,
    semconv.MESSAGING_CONSUMER_GROUP_NAME,
    semconv.SERVER_ADDRESS,
    semconv.SERVER_PORT,
    semconv.ERROR_TYPE,
)
"""The attributes that stay few: no message, no offset, and no partition.

The conventions recommend the partition's id; a topic of a thousand partitions would make a thousand series of each
metric in every process that sends to it, and no operator's question is answered by them: lag has its own metric.
"""


class MessagingMetrics:
    """Durations in seconds, messages counted one by one. Each call takes the attributes of the span it belongs to.

    The instruments are those of the application's MeterProvider: what they raise costs no span.
    """

    def __init__(self, meter: Meter) -> None:
        self._operation = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Duration of messaging operation initiated by a producer or consumer client.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._process = meter.create_histogram(
            "messaging.process.duration",
            unit="s",
            description="Duration of processing operation.",
            explicit_bucket_boundaries_advisory=_BUCKETS_S,
        )
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", unit="{message}", description="Number of messages producer tried to send."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            unit="{message}",
            description="Number of messages that were delivered to the application.",
        )

    @property
    def collected(self) -> bool:
        """Whether anybody collects: without a MeterProvider the attributes need not even be put together."""
        return is_collected(self._sent)

    @guarded("metrics.sent")
    def sent(self, attributes: Mapping[str, AttributeValue], elapsed_ns: int) -> None:
        """One attempt to send one message is over."""
        self._sent.add(1, _few(attributes))
        self.operated(attributes, elapsed_ns)

    @guarded("metrics.received")
    def received(self, attributes: Mapping[str, AttributeValue], messages: int) -> None:
        """``messages`` were handed to the application."""
        self._consumed.add(messages, _few(attributes))

    @guarded("metrics.operated")
    def operated(self, attributes: Mapping[str, AttributeValue], elapsed_ns: int) -> None:
        """One send, receive or settle is over."""
        few = _few(attributes)
        if semconv.MESSAGING_OPERATION_TYPE in attributes:
            few[semconv.MESSAGING_OPERATION_TYPE] = attributes[semconv.MESSAGING_OPERATION_TYPE]
        self._operation.record(elapsed_ns / 1e9, few)

    @guarded("metrics.processed")
    def processed(self, attributes: Mapping[str, AttributeValue], elapsed_ns: int) -> None:
        """The application is done with what it was handed."""
        self._process.record(elapsed_ns / 1e9, _few(attributes))


def _few(attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {name: attributes[name] for name in _NAMES if name in attributes}
