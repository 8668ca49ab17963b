"""Search a RocketMQ cluster by its index of keys, as mqadmin does, or message by message.

The index is quick and incomplete: it lacks the ids of places and what a client cut off its ``KEYS``, has the joined ids
of a batch and not the single ones, and each broker returns 64 messages at most. A scan reads every trace message of the
range.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from bridge.forwarder.rocketmq_source import QUEUES_AT_ONCE, landed_message, partition_of
from bridge.query.matching import may_mention, needles_of
from bridge.query.search import ALWAYS, Archive, ArrivalRange
from otel_mqtrace.rocketmq.client import MAX_FOUND, RemotingClient
from otel_mqtrace.rocketmq.commands import Queue
from otel_mqtrace.rocketmq.messages import BodyError, decompress_body

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from otel_mqtrace.landing import LandedMessage
    from otel_mqtrace.rocketmq.messages import StoredMessage


_GROUP: Final = "mqtrace-query"  # a pull must name a group; nothing is ever committed to it
_INDEX_STEP_MS: Final = 1_000  # the index has the second that a message was stored in, rounded down (``IndexFile``)
_INDEX_ONLY: Final = (
    "only the brokers' index was searched, which lacks the ids of places, the single ids of a batch and keys that a "
    "client cut off; "
    "--scan reads every trace message"
)


class BrokerArchive(Archive):
    """The trace messages of a RocketMQ cluster whose arrival lies in a range of store times.

    ``topics`` are the trace topics; a cloud client's consumers may write to ``rmq_sys_TRACE_DATA_null``. ``reads_all``
    reads every message instead of querying the index. ``client`` are further arguments of
    :class:`~otel_mqtrace.rocketmq.client.RemotingClient`: keys, time-out, clock.

    Raises:
        UsageError: an address is wrong.
        PeerError: a broker does not answer, or a topic does not exist; raised while reading.
    """

    def __init__(
        self,
        namesrv: str,
        topics: Sequence[str],
        *,
        arrivals: ArrivalRange = ALWAYS,
        reads_all: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
        **client: Any,
    ) -> None:
        self._client = RemotingClient(namesrv, **client)
        self._topics = tuple(dict.fromkeys(topics))
        super().__init__(", ".join(self._topics), arrivals=arrivals, on_progress=on_progress)
        self._reads_all = reads_all

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def find_messages(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        """Yield the messages that may contain one of ``texts``, or, without a scan, those in the index."""
        self._begin(0)
        return self._all_that_mention(texts) if self._reads_all else self._by_index(texts)

    def _by_index(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        self._remark(_INDEX_ONLY)
        begin_ms = self._arrivals.begin_ms and max(self._arrivals.begin_ms - _INDEX_STEP_MS, 0)
        within = {"begin_ms": begin_ms, "end_ms": self._arrivals.end_ms}
        for topic in self._topics:
            for text in sorted(texts):
                found = list(self._client.find_by_key(topic, text, **within))
                if len(found) >= MAX_FOUND:
                    self._remark(
                        f"the index of {topic} gave {len(found)} trace messages for {text}, and a broker returns "
                        f"{MAX_FOUND} at most: there may be more; narrow --begin and --end, or --scan"
                    )
                yield from self._select_landed(found)

    def _all_that_mention(self, texts: Collection[str]) -> Iterator[LandedMessage]:
        needles = needles_of(texts, self.charset)
        ranges = {queue: span for topic in self._topics for queue, span in self._ranges(topic).items()}
        self._begin(sum(end - start for start, end in ranges.values()))
        while ranges:
            offsets = {queue: start for queue, (start, _) in islice(ranges.items(), QUEUES_AT_ONCE)}
            for queue, pulled in self._client.pull(offsets, group=_GROUP).items():
                start, end = ranges.pop(queue)
                inside = [(queue.broker, message) for message in pulled.messages if message.queue_offset < end]
                yield from (message for message in self._select_landed(inside) if may_mention(message, needles))
                reached = min(pulled.next_offset, end)
                if reached <= start:
                    reached = end
                    self._remark(f"{queue} leads no further than offset {start}; messages not read: {end - start}")
                self._advance(reached - start)
                if reached < end:
                    ranges[queue] = (reached, end)  # behind the others, so that every queue has its turn

    def _ranges(self, topic: str) -> dict[Queue, tuple[int, int]]:
        """Return, for each queue that has something to read, the first offset and the one behind the last.

        A broker may name any of several messages of a time: those around the range bound it.
        """
        queues = self._client.route(topic).readable
        begin_ms, end_ms = self._arrivals.begin_ms, self._arrivals.end_ms
        bounds = self._client.bounds(queues)
        starts = {} if begin_ms is None else self._client.offsets_at(queues, max(begin_ms - 1, 0))
        ends = {} if end_ms is None else self._client.offsets_at(queues, end_ms + 1)
        spans = {
            queue: (max(low, starts.get(queue, low)), min(high, max(ends.get(queue, high), 0) + 1))
            for queue, (low, high) in bounds.items()
        }
        return {queue: (start, end) for queue, (start, end) in spans.items() if start < end}

    def _select_landed(self, messages: Sequence[tuple[str, StoredMessage]]) -> Iterator[LandedMessage]:
        """Yield what lies in the range, decompressed; a body that cannot be is a remark."""
        for broker, message in messages:
            if message.store_ms not in self._arrivals:
                continue
            try:
                body = decompress_body(message)
            except BodyError as error:
                self._remark(str(error))
                continue
            landed = landed_message(message, partition_of(Queue(message.topic, broker, message.queue_id)), body)
            self._count_message(landed)
            yield landed
