"""Drain a Kafka trace topic: every partition, from the committed offset to the end of this moment."""

from __future__ import annotations

import logging
from contextlib import closing
from itertools import chain
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer

from bridge.forwarder.trace_source import DEFAULT_GROUP, TopicSource
from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS, SystemClock, compute_deadline
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.client_properties import error_text, fetch_metadata
from otel_mqtrace.landing import LandedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    from otel_mqtrace._clock import Clock

    Ranges = Generator[tuple[list[Any], dict[tuple[str, int], int]], None, None]

_logger = logging.getLogger(__name__)
_BATCH: Final = 500
_POLL_S: Final = 0.2
_MOVING: Final = frozenset({KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE})


class KafkaTraceSource(TopicSource[int]):
    """A trace topic as a resumable stream of raw messages.

    Offsets are committed under ``group``; another one starts from the beginning. ``kafka_config`` are further client
    properties (TLS, SASL). ``accept_trimmed`` continues after messages that retention removed (counted in ``trimmed``)
    instead of failing. ``timeout_ms`` limits one answer of the broker.

    Raises:
        PeerError: the broker does not answer, the topic does not exist or was created again, or messages were trimmed.
    """

    _retention = "the topic's retention"

    def __init__(  # noqa: PLR0913 - every tunable by name
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        group: str = DEFAULT_GROUP,
        kafka_config: Mapping[str, Any] | None = None,
        accept_trimmed: bool = False,
        timeout_ms: float = 10_000,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(topic, group, clock or SystemClock(), accept_trimmed=accept_trimmed, timeout_ms=timeout_ms)
        self._bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_ms / 1e3
        self._consumer = open_consumer(bootstrap_servers, group, kafka_config, reset="error", option="--client-config")
        self._committing: Thread | None = None
        self._last: dict[int, Any] = {}  # the last message that was yielded of each partition

    def _drain(self) -> Generator[list[LandedMessage], None, None]:
        ends = self._ends()
        behind = {partition for partition, end in ends.items() if self._next[partition] < end}
        self.behind = frozenset(behind)
        if not behind:
            return
        # The last message is read again: another one in its place shows that the topic was created again in between.
        known = {partition: last for partition, last in self._last.items() if partition in behind}
        starts = self._next | {partition: last.offset() for partition, last in known.items()}
        ranges = {(self.topic, partition): (starts[partition], ends[partition]) for partition in sorted(behind)}
        filled = 0
        with closing(self._read_ranges(ranges)) as batches:
            for messages, positions in batches:
                batch = self._take_new(messages)
                filled += bool(batch)
                for message in batch:
                    known.setdefault(message.partition(), message)
                for (_, partition), position in positions.items():
                    self._next[partition] = max(self._next[partition], position)
                self.behind = frozenset(partition for partition in behind if self._next[partition] < ends[partition])
                now_ms = self._clock.wall_ns() // NS_PER_MS
                yield [landed_message(message, otherwise_ms=now_ms) for message in batch]
        if filled > 1:  # it takes 0.1 s, and no topic is created again and filled within one batch
            self._check_again(known)

    def _read_ranges(self, ranges: Mapping[tuple[str, int], tuple[int, int]]) -> Ranges:
        return read_ranges(self._consumer, ranges, self._failure, timeout_ms=self._timeout_ms, clock=self._clock)

    def _take_new(self, messages: Iterable[Any]) -> list[Any]:
        """Return those of ``messages`` that were not yielded before, and move the positions behind them.

        Raises:
            PeerError: another one was yielded in the place of one.
        """
        new = []
        for message in messages:
            partition, offset = message.partition(), message.offset()
            if offset < self._next[partition]:
                self._check_same(message, self._last[partition])
            else:
                self._next[partition], self._last[partition] = offset + 1, message
                new.append(message)
        return new

    def _check_again(self, known: Mapping[int, Any]) -> None:
        """Read the messages that are ``known``, one of a partition, again: the topic may have been created again."""
        ranges = {}
        for partition, message in known.items():
            low, _ = self._bounds(partition)
            if low <= message.offset():
                ranges[self.topic, partition] = message.offset(), message.offset() + 1
        with closing(self._read_ranges(ranges)) as batches:
            for message in chain.from_iterable(messages for messages, _ in batches):
                self._check_same(message, known[message.partition()])

    def _check_same(self, message: Any, known: Any) -> None:
        first, last = ((each.timestamp(), each.value()) for each in (message, known))
        if message.offset() == known.offset() and first != last:
            raise self._replaced(message.partition(), message.offset())

    def _number(self, partition: int) -> int:
        return partition

    def _name(self, partition: int) -> str:
        return f"{self.topic} [{partition}]"

    def _remember(self, offsets: dict[int, int]) -> None:
        done = [TopicPartition(self.topic, partition, offset) for partition, offset in offsets.items()]
        errors: list[object] = ["the broker does not answer"]

        def commit() -> None:
            try:
                results = self._consumer.commit(offsets=done, asynchronous=False)
                errors[:] = [result.error for result in results or () if result.error]
            except KafkaException as error:
                errors[:] = [error]

        # librdkafka's commit has no timeout, and a signal handler runs after it only
        self._committing = Thread(target=commit, name="mqtrace-commit", daemon=True)
        self._committing.start()
        self._committing.join(self._timeout_s)
        if error := next(iter(errors), None):
            raise PeerError(
                f"the offsets of {self.topic} were not committed for group {self._group}{reason_of(error)}; what was "
                "read since the last commit will be forwarded again"
            )

    def close(self) -> None:
        """Close the connection, unless a commit is unanswered: librdkafka would wait for it. Nothing is committed."""
        if self._committing is None or not self._committing.is_alive():
            self._consumer.close()

    # -- positions ---------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[int, int]:
        """Return the present end of every partition, having set every position to where this drain begins."""
        ends: dict[int, int] = {}
        try:
            partitions = partitions_of(self._consumer, self.topic, self._bootstrap_servers, self._timeout_s)
            new = [TopicPartition(self.topic, partition) for partition in partitions if partition not in self._start]
            for remembered in self._fetch_committed(new) if new else ():
                if remembered.error is not None:
                    raise self._silent(remembered.error)
                # librdkafka's "nothing committed" and "none" are negative
                self._recall(remembered.partition, remembered.offset if remembered.offset >= 0 else None)
            self._next = dict(self._start)
            for partition in partitions:
                low, ends[partition] = self._bounds(partition)
                self._check_position(partition, low, ends[partition])
                if partition in self._last and not low <= self._last[partition].offset() < self._next[partition]:
                    del self._last[partition]  # trimmed, or not committed: it is read again anyway
        except KafkaException as error:
            raise self._silent(error) from error
        return ends

    def _bounds(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self.topic, partition)
        try:
            bounds: tuple[int, int] = self._consumer.get_watermark_offsets(place, timeout=self._timeout_s)
        except KafkaException as error:
            raise self._silent(error) from error
        return bounds

    def _fetch_committed(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        """Request the committed offsets, and again while the coordinator moves, as when a broker starts or stops."""
        deadline_ns = compute_deadline(self._clock, self._timeout_ms)
        left_s = self._timeout_s
        while True:
            try:
                known: list[TopicPartition] = self._consumer.committed(wanted, timeout=left_s)
            except KafkaException as error:
                left_s = (deadline_ns - self._clock.monotonic_ns()) / 1e9
                if error.args[0].code() not in _MOVING or left_s <= _POLL_S:
                    raise
            else:
                return known
            self._consumer.poll(_POLL_S)  # nothing is assigned yet: the client looks for the coordinator meanwhile

    # -- errors ------------------------------------------------------------------------------------------------------

    def _failure(self, error: KafkaError | None) -> PeerError:
        if error is not None and error.name() == "_AUTO_OFFSET_RESET":
            return PeerError(
                f"{self.topic} was trimmed, or created again, while it was being read: start again, and raise the "
                "topic's retention"
            )
        return self._silent(error)

    def _silent(self, cause: object) -> PeerError:
        reason = f"does not answer for {self.topic}{reason_of(cause)}; check the address"
        return PeerError(f"the broker {self._bootstrap_servers} {reason}")


def open_consumer(
    bootstrap_servers: str, group: str, kafka_config: Mapping[str, Any] | None, *, reset: str, option: str
) -> Any:
    """Return a consumer that commits nothing by itself; ``reset`` is what it does where an offset is gone.

    ``option`` is that of the command which gave ``kafka_config``.

    Raises:
        UsageError: the client refuses its properties.
    """
    properties = {
        "fetch.wait.max.ms": 100,  # of the fetch behind the last message, for which the next read waits; else 500
        **(kafka_config or {}),
        "bootstrap.servers": bootstrap_servers,
        "group.id": group,
        "enable.auto.commit": False,
        "enable.partition.eof": False,
        "auto.offset.reset": reset,
        "log_level": 0,
    }
    try:
        return Consumer(properties, logger=_logger)
    except KafkaException as error:
        fix = f"{option}, or the address" if kafka_config else "the address"
        raise UsageError(
            f"the consumer of {bootstrap_servers} cannot be built{reason_of(error)}; correct {fix}"
        ) from error


def partitions_of(consumer: Any, topic: str, bootstrap_servers: str, timeout_s: float) -> list[int]:
    """Return the partitions of a topic.

    Raises:
        PeerError: the topic does not exist, or may not be read.
        KafkaException: the broker does not answer.
    """
    known = fetch_metadata(consumer, topic, timeout_s).topics[topic]
    if known.error is not None:
        raise PeerError(
            f"the trace topic {topic} cannot be read on {bootstrap_servers}: {known.error.str()}; check its name "
            "and the rights of the client"
        )
    return sorted(known.partitions)


def read_ranges(
    consumer: Any,
    ranges: Mapping[tuple[str, int], tuple[int, int]],
    failure: Callable[[KafkaError | None], PeerError],
    *,
    timeout_ms: float,
    clock: Clock,
) -> Ranges:
    """Yield batches of messages, perhaps empty, with the positions behind them, until each position is at its end.

    ``ranges`` maps topic and partition to the first offset and the one behind the last. Markers of transactions are
    passed over; messages beyond an end may come too. ``failure`` returns the exception for a broker's error, or for its
    silence (``None``).

    Raises:
        PeerError: what ``failure`` returns.
    """
    behind = dict(ranges)
    consumer.assign([TopicPartition(*partition, start) for partition, (start, _) in ranges.items()])
    try:
        deadline_ns = compute_deadline(clock, timeout_ms)
        while behind:
            batch = consumer.consume(_BATCH, _POLL_S)
            error = next((message.error() for message in batch if message.error() is not None), None)
            if error is not None:
                raise failure(error)
            reached = consumer.position([TopicPartition(*each) for each in behind])
            positions = {(each.topic, each.partition): each.offset for each in reached}
            behind = {each: (start, end) for each, (start, end) in behind.items() if positions[each] < end}
            if batch:
                deadline_ns = compute_deadline(clock, timeout_ms)
            elif behind and clock.monotonic_ns() > deadline_ns:
                raise failure(None)
            yield batch, positions
    finally:
        consumer.unassign()


def landed_message(message: Any, *, otherwise_ms: int) -> LandedMessage:
    """Return a message of Kafka's as a landing keeps it; one without a time arrived at ``otherwise_ms``."""
    _, timestamp_ms = message.timestamp()
    headers = {name: value for name, value in message.headers() or () if isinstance(value, bytes)}
    keys = headers.get(semconv.HEADER_KEYS)
    return LandedMessage(
        source=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        arrival_ms=timestamp_ms if timestamp_ms > 0 else otherwise_ms,
        keys=None if keys is None else keys.decode("utf-8", "replace"),
        body=message.value() or b"",
    )


def reason_of(cause: object) -> str:
    """Return the client's message of an error after a colon; empty without one."""
    return "" if cause is None else f": {error_text(cause)}"
