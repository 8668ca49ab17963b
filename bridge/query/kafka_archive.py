"""Search a Kafka trace topic: a time range becomes a range of offsets, read to its end.

No group and no commits: reading changes nothing. The range is of arrivals, Kafka's timestamps. They need not rise from
offset to offset, so a margin around it is read too, and each message is filtered by its own timestamp.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaException, TopicPartition

from bridge.forwarder.kafka_source import landed_message, open_consumer, partitions_of, read_ranges, reason_of
from bridge.query.matching import may_mention, needles_of
from bridge.query.search import Archive
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.landing import LandedMessage


MARGIN_MS: Final = 60_000
"""How far around the range is read: writers' clocks and retries put timestamps out of order."""
_GROUP: Final = "mqtrace-query"  # a consumer must name a group; nothing is ever committed to it

_Ranges = dict[tuple[str, int], tuple[int, int]]
"""Topic and partition → the first offset, and the one behind the last."""


class TopicArchive(Archive):
    """The trace messages of Kafka topics whose arrival lies in a range.

    ``kafka_config`` are further client properties (TLS, SASL); ``timeout_ms`` limits one answer of the broker; ``scan``
    are further arguments of :class:`Archive`.

    Raises:
        UsageError: the client refuses its properties.
        PeerError: the broker does not answer, or a topic does not exist; raised while reading.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: Sequence[str],
        *,
        kafka_config: Mapping[str, Any] | None = None,
        timeout_ms: float = 10_000,
        clock: Clock | None = None,
        **scan: Any,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topics = tuple(dict.fromkeys(topics))
        super().__init__(", ".join(self._topics), **scan)
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        # what retention removes while we read is gone, not an error
        self._consumer = open_consumer(
            bootstrap_servers, _GROUP, kafka_config, reset="earliest", option="--kafka-config"
        )

    def close(self) -> None:
        """Close the connection."""
        self._consumer.close()

    def find_messages(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        """Yield the messages that may contain one of ``texts``; every body of the range comes over the network."""
        needles = needles_of(texts, self.charset)
        try:
            ranges = {key: span for topic in self._topics for key, span in self._ranges(topic).items()}
            self._begin(sum(end - start for start, end in ranges.values()))
            with closing(
                read_ranges(self._consumer, ranges, self._silent, timeout_ms=self._timeout_ms, clock=self._clock)
            ) as batches:
                reached = {each: start for each, (start, _) in ranges.items()}
                for batch, positions in batches:
                    for message in self._select_landed(batch, ranges):
                        self._count_message(message)
                        if may_mention(message, needles):
                            yield message
                    for each, position in positions.items():
                        now = min(max(reached[each], position), ranges[each][1])
                        self._advance(now - reached[each])
                        reached[each] = now
        except KafkaException as error:
            raise self._silent(error) from error

    def _ranges(self, topic: str) -> _Ranges:
        """Return, for each partition that has something to read, the first offset and the one behind the last."""
        timeout_s = self._timeout_ms / 1e3
        marks = {
            partition: self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
            for partition in partitions_of(self._consumer, topic, self._bootstrap_servers, timeout_s)
        }
        begin_ms, end_ms = self._arrivals.begin_ms, self._arrivals.end_ms
        starts = {} if begin_ms is None else self._since(topic, marks, max(begin_ms - MARGIN_MS, 0))
        ends = {} if end_ms is None else self._since(topic, marks, end_ms + MARGIN_MS)
        spans = {
            (topic, partition): (max(low, starts.get(partition, low)), min(high, ends.get(partition, high)))
            for partition, (low, high) in marks.items()
        }
        return {key: (start, end) for key, (start, end) in spans.items() if start < end}

    def _since(self, topic: str, marks: Mapping[int, tuple[int, int]], instant_ms: int) -> dict[int, int]:
        positions = [TopicPartition(topic, partition, instant_ms) for partition in marks]
        answers = self._consumer.offsets_for_times(positions, timeout=self._timeout_ms / 1e3)
        bad = next((answer.error for answer in answers if answer.error is not None), None)
        if bad is not None:
            raise KafkaException(bad)
        return {
            answer.partition: answer.offset if answer.offset >= 0 else marks[answer.partition][1] for answer in answers
        }

    def _select_landed(self, batch: Sequence[Any], ranges: _Ranges) -> Iterator[LandedMessage]:
        for message in batch:
            _, end = ranges[message.topic(), message.partition()]
            landed = landed_message(message, otherwise_ms=0)
            if message.offset() < end and landed.arrival_ms in self._arrivals:
                yield landed

    def _silent(self, cause: object) -> PeerError:
        return PeerError(f"the broker {self._bootstrap_servers} does not answer{reason_of(cause)}; check the address")
