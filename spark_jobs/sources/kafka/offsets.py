"""This module knows what a topic holds at one moment: for each partition, the offsets a run will read.

Asked once, by the driver, before anything is read: every task, and every retry of one, reads the same offsets whatever
is written or removed meanwhile. The end is that of readers who see committed transactions only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import MissingExtraError, PeerError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_jobs.sources.kafka.address import TopicAddress

__all__ = ["ANSWER_MS", "PartitionRange", "chunks", "client_properties", "said", "topic_ranges", "wanted_ranges"]

ANSWER_MS: Final = 10_000
"""How long one answer of the broker may take."""
_CHUNK_OFFSETS: Final = 50_000  # what one task reads: enough to pay for a connection, few enough to spread
_logger = logging.getLogger(__name__)
_NOBODY: Final = "mqtrace-reconcile"  # a consumer must name a group; it never joins one and commits nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """The offsets ``[first, end)`` of one partition; ``first`` above 0 is what retention has left."""

    address: TopicAddress
    partition: int
    first: int
    end: int


def client_properties(address: TopicAddress, given: Mapping[str, str]) -> dict[str, Any]:
    """Return librdkafka's properties of a reader that changes nothing at the broker; they may hold passwords."""
    return {
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": 8192,
        **given,
        "bootstrap.servers": address.bootstrap_servers,
        "group.id": given.get("group.id", _NOBODY),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",  # what retention removes while we read is counted, not an error
        "log_level": 0,
    }


def topic_ranges(
    address: TopicAddress, given: Mapping[str, str], *, timeout_ms: int = ANSWER_MS
) -> tuple[PartitionRange, ...]:
    """Return every partition of the topic with the offsets it holds now, empty ones included.

    Args:
        address: the topic.
        given: further client properties (TLS, SASL), in librdkafka's words.
        timeout_ms: how long one answer of the broker may take.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
        UsageError: the client refuses a property.
        PeerError: nobody answers, or there is no such topic.
    """
    try:
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415  (optional extra)
        from confluent_kafka.cimpl import Consumer  # noqa: PLC0415  (the client's own: never an instrumented one)
    except ImportError as error:
        raise MissingExtraError("reading a Kafka topic", "kafka") from error
    try:
        consumer: Any = Consumer(client_properties(address, given), logger=_logger)
    except (KafkaException, ValueError, TypeError) as error:
        raise UsageError(f"the client of {address} cannot be built: {said(error)}; check --client-config") from error
    try:
        known = consumer.list_topics(address.topic, timeout=timeout_ms / 1e3).topics[address.topic]
        if known.error is not None:
            raise PeerError(f"{address} cannot be read: {known.error.str()}; check the topic's name and rights")
        marks = {
            number: consumer.get_watermark_offsets(TopicPartition(address.topic, number), timeout=timeout_ms / 1e3)
            for number in sorted(known.partitions)
        }
    except KafkaException as error:
        raise PeerError(f"{address} does not answer: {said(error)}; check the address and --client-config") from error
    finally:
        consumer.close()
    return tuple(
        PartitionRange(address=address, partition=number, first=max(low, 0), end=max(high, low, 0))
        for number, (low, high) in marks.items()
    )


def wanted_ranges(
    addresses: Sequence[TopicAddress], given: Mapping[str, str], ranges: Sequence[PartitionRange] | None
) -> tuple[PartitionRange, ...]:
    """Return what to read of the topics: those of ``ranges``, or all that they hold now.

    Raises:
        MissingExtraError, UsageError, PeerError: as ``topic_ranges``.
    """
    if ranges is None:
        return tuple(one for address in addresses for one in topic_ranges(address, given))
    return tuple(one for address in addresses for one in ranges if one.address == address)


def said(error: Exception) -> str:
    """Return what the client says of an error, on one line; it never quotes the value of a password."""
    reason = error.args[0] if error.args else error
    text = reason.str() if hasattr(reason, "str") else str(reason)
    return " ".join(text.split()) or type(error).__name__


def chunks(ranges: Sequence[PartitionRange], *, offsets: int = _CHUNK_OFFSETS) -> tuple[PartitionRange, ...]:
    """Return ranges of at most so many ``offsets`` that together are ``ranges``: what a task each reads."""
    return tuple(
        PartitionRange(address=one.address, partition=one.partition, first=first, end=min(first + offsets, one.end))
        for one in ranges
        for first in range(one.first, one.end, offsets)
    )
