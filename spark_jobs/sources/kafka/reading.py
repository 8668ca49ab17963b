"""Read a range of offsets by a client in the task.

One task, one connection, one range; messages leave as Arrow batches of bounded size, so that memory depends on neither
the topic nor the range. A range is done when an offset behind it, or the partition's end, has been seen: the last
offsets of a range may be markers of transactions, or compacted away, and then no message ever comes.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from otel_mqtrace import semconv
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import MissingExtraError, PeerError
from spark_jobs.sources.kafka.offsets import ANSWER_MS, client_properties

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping

    from otel_mqtrace._clock import Clock
    from spark_jobs.sources.kafka.offsets import PartitionRange

__all__ = ["MESSAGE", "message_batches", "message_places", "messages_in"]

_logger = logging.getLogger(__name__)
_POLL_S: Final = 0.2
_NS_PER_MS: Final = 1_000_000
_BATCH_ROWS: Final = 2000
_BATCH_BYTES: Final = 4 << 20
_TYPES: Final[dict[str, Any]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "arrival_ms": pa.int64(),  # the broker's timestamp; null where it has none
    "keys": pa.string(),  # the last header KEYS
    "value": pa.binary(),  # null is a tombstone
}
MESSAGE: Final = pa.schema(_TYPES)
"""One message of a topic."""


def message_batches(
    span: PartitionRange, given: Mapping[str, str], *, timeout_ms: int = ANSWER_MS
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range that are still there as batches of ``MESSAGE``; see ``messages_in``."""
    yield from _batched(messages_in(span, given, timeout_ms=timeout_ms))


def message_places(messages: pa.RecordBatch) -> Any:
    """Return where each message (``MESSAGE``) stands, as ``topic-partition@offset``."""
    join: Any = pc.binary_join_element_wise
    topic, partition, offset = (messages.column(name).cast(pa.string()) for name in ("topic", "partition", "offset"))
    return join(join(topic, partition, "-"), offset, "@")


def _batched(rows: Iterable[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    some: list[dict[str, Any]] = []
    held_bytes = 0
    for row in rows:
        some.append(row)
        held_bytes += len(row["value"] or b"")
        if len(some) >= _BATCH_ROWS or held_bytes >= _BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(some, schema=MESSAGE)
            some, held_bytes = [], 0
    if some:
        yield pa.RecordBatch.from_pylist(some, schema=MESSAGE)


def messages_in(
    span: PartitionRange, given: Mapping[str, str], *, timeout_ms: int = ANSWER_MS, clock: Clock | None = None
) -> Generator[dict[str, Any], None, None]:
    """Yield the messages of ``span`` that are still there, in order of offset.

    Args:
        span: what to read.
        given: further client properties (TLS, SASL).
        timeout_ms: how long the broker may be silent before it is given up.
        clock: what measures that.

    Raises:
        PeerError: the broker stopped answering, or refuses.
    """
    try:
        from confluent_kafka import KafkaError, TopicPartition  # noqa: PLC0415  (optional extra)
        from confluent_kafka.cimpl import Consumer  # noqa: PLC0415  (the client's own: never an instrumented one)
    except ImportError as missing:
        raise MissingExtraError("reading a Kafka topic", "kafka") from missing
    clock = clock or SystemClock()
    consumer: Any = Consumer(client_properties(span.address, given), logger=_logger)
    try:
        consumer.assign([TopicPartition(span.address.topic, span.partition, span.first)])
        heard_ns, behind = clock.monotonic_ns(), span.first
        while behind < span.end:
            message = consumer.poll(_POLL_S)
            error = None if message is None else message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  (its public name)
                if error.fatal() or not error.retriable():
                    raise PeerError(f"{span.address} [{span.partition}] cannot be read: {error.str()}")
                message = None
            if message is None:
                if clock.monotonic_ns() - heard_ns > timeout_ms * _NS_PER_MS:
                    raise PeerError(f"{span.address} [{span.partition}] has been silent at offset {behind}")
                continue
            heard_ns, offset = clock.monotonic_ns(), message.offset()
            if error is None and offset < span.end:
                yield _row(message)
            behind = offset if error is not None else offset + 1
    finally:
        consumer.close()


def _row(message: Any) -> dict[str, Any]:
    _, timestamp_ms = message.timestamp()
    keys = [value for name, value in message.headers() or () if name == semconv.HEADER_KEYS]
    text = keys[-1] if keys else None
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "arrival_ms": timestamp_ms if timestamp_ms > 0 else None,
        "keys": text.decode("utf-8", "replace") if isinstance(text, bytes) else text,
        "value": message.value(),
    }
