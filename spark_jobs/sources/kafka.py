"""Read a Kafka topic: its address, the offsets a run reads, the messages in them."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bridge.addresses import parse_address
from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS, SystemClock
from otel_mqtrace._errors import MissingExtraError, PeerError, UsageError
from otel_mqtrace.client_properties import error_text, fetch_metadata
from spark_jobs.columns import take_groups

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from bridge.addresses import Address

LAYOUT: Final = "kafka"
"""What the layout of a topic is called, beside those of files."""

_SCHEME: Final = "kafka://"


def split_topics(srcs: Iterable[str]) -> tuple[tuple[str, ...], tuple[Address, ...]]:
    """Return the sources that are files, and the topics among them, each once and in order.

    Raises:
        UsageError: a source starts like a topic's address but is not one.
    """
    srcs = tuple(srcs)
    topics = [parse_address(src) for src in srcs if src.startswith(_SCHEME)]
    return tuple(src for src in srcs if not src.startswith(_SCHEME)), tuple(dict.fromkeys(topics))


def topic_address(servers: str, topic: str) -> Address:
    """Return the address of a topic; ``servers`` is ``host:port[,host:port…]``."""
    return parse_address(f"{_SCHEME}{servers}/{topic}")


ANSWER_MS: Final = 10_000
"""How long one answer of the broker may take."""
_CHUNK_OFFSETS: Final = 50_000  # what one task reads: enough to pay for a connection, few enough to spread
_logger = logging.getLogger(__name__)
_UNUSED_GROUP: Final = "mqtrace-reconcile"  # a consumer must name a group; it never joins one and commits nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRange:
    """The offsets ``[first, end)`` of one partition; ``first`` above 0 is what retention has left."""

    address: Address
    partition: int
    first: int
    end: int


def client_properties(address: Address, given: Mapping[str, str]) -> dict[str, Any]:
    """Return librdkafka's properties of a reader that changes nothing at the broker; they may hold passwords."""
    return {
        "isolation.level": "read_committed",
        "queued.max.messages.kbytes": 8192,
        **given,
        "bootstrap.servers": address.servers,
        "group.id": given.get("group.id", _UNUSED_GROUP),
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",  # what retention removes while we read is counted, not an error
        "log_level": 0,
    }


def topic_ranges(
    address: Address, given: Mapping[str, str], *, timeout_ms: int = ANSWER_MS
) -> tuple[PartitionRange, ...]:
    """Return every partition of the topic with the offsets it holds now, empty ones included.

    Raises:
        MissingExtraError: confluent-kafka is not installed.
        UsageError: the client refuses a property.
        PeerError: the broker does not answer, or lacks the topic.
    """
    consumer = _open_consumer(address, given)
    from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415  (optional extra, present here)

    try:
        known = fetch_metadata(consumer, address.topic, timeout_ms / 1e3).topics[address.topic]
        if known.error is not None:
            raise PeerError(f"{address.text} cannot be read: {known.error.str()}; check the topic's name and rights")
        marks = {
            number: consumer.get_watermark_offsets(TopicPartition(address.topic, number), timeout=timeout_ms / 1e3)
            for number in sorted(known.partitions)
        }
    except KafkaException as error:
        raise PeerError(
            f"{address.text} does not answer: {error_text(error)}; check the address and --client-config"
        ) from error
    finally:
        consumer.close()
    return tuple(
        PartitionRange(address=address, partition=number, first=max(low, 0), end=max(high, low, 0))
        for number, (low, high) in marks.items()
    )


def _open_consumer(address: Address, given: Mapping[str, str]) -> Any:
    try:
        from confluent_kafka import KafkaException  # noqa: PLC0415  (optional extra)
        from confluent_kafka.cimpl import Consumer  # noqa: PLC0415  (the client's own: never an instrumented one)
    except ImportError as error:
        raise MissingExtraError("reading a Kafka topic", "kafka") from error
    try:
        return Consumer(client_properties(address, given), logger=_logger)
    except (KafkaException, ValueError, TypeError) as error:
        raise UsageError(
            f"the client of {address.text} cannot be built: {error_text(error)}; check --client-config"
        ) from error


def cut_ranges(ranges: Sequence[PartitionRange], *, offsets: int = _CHUNK_OFFSETS) -> tuple[PartitionRange, ...]:
    """Return ranges of at most so many ``offsets`` that together are ``ranges``: what a task each reads."""
    return tuple(
        replace(one, first=first, end=min(first + offsets, one.end))
        for one in ranges
        for first in range(one.first, one.end, offsets)
    )


_POLL_S: Final = 0.2
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


def message_batches(span: PartitionRange, given: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range that are still there as batches of ``MESSAGE``; see ``messages_in``."""
    rows = messages_in(span, given)
    for some in take_groups(rows, lambda row: (1, len(row["value"] or b"")), rows=_BATCH_ROWS, size=_BATCH_BYTES):
        yield pa.RecordBatch.from_pylist(some, schema=MESSAGE)


def message_places(messages: pa.RecordBatch) -> Any:
    """Return where each message (``MESSAGE``) stands, as ``topic-partition@offset``."""
    join: Any = pc.binary_join_element_wise
    topic, partition, offset = (messages.column(name).cast(pa.string()) for name in ("topic", "partition", "offset"))
    return join(join(topic, partition, "-"), offset, "@")


def messages_in(
    span: PartitionRange, given: Mapping[str, str], *, timeout_ms: int = ANSWER_MS
) -> Generator[dict[str, Any], None, None]:
    """Yield the remaining messages of ``span`` in order of offset; the broker may be silent for ``timeout_ms``.

    Raises:
        PeerError: the broker stopped answering, or refuses.
    """
    consumer, clock = _open_consumer(span.address, given), SystemClock()
    from confluent_kafka import KafkaError, TopicPartition  # noqa: PLC0415  (optional extra, present here)

    try:
        consumer.assign([TopicPartition(span.address.topic, span.partition, span.first)])
        heard_ns, behind = clock.monotonic_ns(), span.first
        while behind < span.end:
            message = consumer.poll(_POLL_S)
            error = None if message is None else message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001  (its public name)
                if error.fatal() or not error.retriable():
                    raise PeerError(f"{span.address.text} [{span.partition}] cannot be read: {error.str()}")
                message = None
            if message is None:
                if clock.monotonic_ns() - heard_ns > timeout_ms * NS_PER_MS:
                    raise PeerError(f"{span.address.text} [{span.partition}] has been silent at offset {behind}")
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


_SAME: Final = frozenset({"client.id", "client.rack", "security.protocol"})
_SASL: Final = frozenset({"sasl.mechanism", "sasl.mechanisms", "sasl.username", "sasl.password"})
_LOGINS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def java_properties(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the Java client's properties for librdkafka's ``given``; ``None`` where one has no translation."""
    properties = {name: value for name, value in given.items() if name in _SAME}
    rest = {name: value for name, value in given.items() if name not in _SAME}
    if rest.keys() & _SASL:
        mechanism = rest.get("sasl.mechanisms", rest.get("sasl.mechanism", ""))
        if mechanism not in _LOGINS or not {"sasl.username", "sasl.password"} <= rest.keys():
            return None
        login = {"username": rest["sasl.username"], "password": rest["sasl.password"]}
        words = " ".join(f"{name}={json.dumps(value)}" for name, value in login.items())
        properties |= {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{_LOGINS[mechanism]} required {words};"}
        rest = {name: value for name, value in rest.items() if name not in _SASL}
    if authority := rest.pop("ssl.ca.location", None):
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    return None if rest else properties


def message_frame(ranges: Sequence[PartitionRange], given: Mapping[str, str], *, tasks: int) -> Any:
    """Return the messages of ``ranges`` (one topic, none empty) as a frame of ``MESSAGE``, by Spark's own connector.

    ``None`` if its jar is missing (``--packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION``) or a property has
    no translation: it is a Java client. At least ``tasks`` tasks read them.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415  (optional extra, present here)
    from pyspark.sql import SparkSession  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    properties = java_properties(given)
    if properties is None:
        return None
    address = ranges[0].address
    options = {
        **{f"kafka.{name}": value for name, value in properties.items()},
        "kafka.bootstrap.servers": address.servers,
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({address.topic: [one.partition for one in ranges]}),
        "startingOffsets": json.dumps({address.topic: {str(one.partition): one.first for one in ranges}}),
        "endingOffsets": json.dumps({address.topic: {str(one.partition): one.end for one in ranges}}),
        "failOnDataLoss": "false",  # what retention removes while we read is counted, not an error
        "includeHeaders": "true",
        "minPartitions": str(tasks),
    }
    try:
        rows = SparkSession.active().read.format("kafka").options(**options).load()
    except AnalysisException:
        return None
    named = F.filter("headers", lambda header: header["key"] == semconv.HEADER_KEYS)
    keys = F.make_valid_utf8(F.try_element_at(named, F.lit(-1))["value"].cast("string"))
    arrival_ms = F.unix_millis("timestamp")
    return rows.select(
        *("topic", "partition", "offset"),
        F.when(arrival_ms > 0, arrival_ms).alias("arrival_ms"),
        keys.alias("keys"),
        "value",
    )
