"""Drain a RocketMQ trace topic: every queue, from the committed offset to the end of this moment."""

from __future__ import annotations

import logging
import zlib
from typing import TYPE_CHECKING, Final

from bridge.forwarder.trace_source import DEFAULT_GROUP, TopicSource
from otel_mqtrace import semconv
from otel_mqtrace._clock import SystemClock, compute_deadline
from otel_mqtrace._errors import PeerError
from otel_mqtrace.landing import LandedMessage
from otel_mqtrace.rocketmq.client import RemotingClient
from otel_mqtrace.rocketmq.commands import RefusedError, ResponseCode
from otel_mqtrace.rocketmq.connections import SilentError
from otel_mqtrace.rocketmq.messages import BodyError, decompress_body

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.rocketmq.client import Pulled
    from otel_mqtrace.rocketmq.commands import Queue
    from otel_mqtrace.rocketmq.messages import StoredMessage


_logger = logging.getLogger(__name__)
QUEUES_AT_ONCE: Final = 16
"""Pulls on the way at the same time: what they bring, 256 KiB each, is what is held in memory."""
_SUSPEND_MS: Final = 500  # of a broker that had nothing
_QUEUE_BITS: Final = 10
_BROKER_MASK: Final = 0xF_FFFF


class RemotingTraceSource(TopicSource["Queue"]):
    """A trace topic of a RocketMQ cluster, 4.x or 5.x, as a resumable stream of raw messages.

    A message's ``partition`` is :func:`partition_of` its queue, its ``arrival_ms`` the broker's store time, its
    ``body`` decompressed. The brokers keep the offsets of ``group``; another one starts from the beginning.
    ``accept_trimmed`` continues after messages that retention removed (counted in ``trimmed``) instead of failing. The
    other arguments are those of :class:`~otel_mqtrace.rocketmq.client.RemotingClient`.

    Raises:
        PeerError: no server answers, one refused, or messages were trimmed.
        UsageError: an address or the keys are wrong.
    """

    _unset = 0
    _retention = "fileReservedTime on the brokers"

    def __init__(  # noqa: PLR0913 - every tunable by name
        self,
        namesrv: str,
        topic: str,
        *,
        group: str = DEFAULT_GROUP,
        access_key: str | None = None,
        secret_key: str | None = None,
        accept_trimmed: bool = False,
        timeout_ms: float = 10_000,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(topic, group, clock or SystemClock(), accept_trimmed=accept_trimmed, timeout_ms=timeout_ms)
        self._client = RemotingClient(
            namesrv, access_key=access_key, secret_key=secret_key, timeout_ms=timeout_ms, clock=self._clock
        )
        self._last: dict[Queue, StoredMessage] = {}  # that was yielded of each queue

    def _drain(self) -> Generator[list[LandedMessage], None, None]:
        ends = self._ends()
        behind = [queue for queue, end in ends.items() if self._next[queue] < end]
        self.behind = frozenset(map(partition_of, behind))
        # The last message is read again: another one in its place shows that the topic was created again in between.
        known = {queue: self._last[queue].queue_offset for queue in behind if queue in self._last}
        deadline_ns, suspend_ms = compute_deadline(self._clock, self._timeout_ms), 0
        while behind:
            queues = behind[:QUEUES_AT_ONCE]
            came = 0
            offsets = {queue: known.pop(queue, self._next[queue]) for queue in queues}
            for queue, pulled in self._client.pull(offsets, group=self._group, suspend_ms=suspend_ms).items():
                landed = self._take_pulled(queue, pulled)
                if landed:
                    known[queue] = self._last[queue].queue_offset
                came += len(landed)
                self.behind = frozenset(partition_of(each) for each in behind if self._next[each] < ends[each])
                yield landed
            # Pulled queues go to the end, so that every queue has its turn.
            behind = [q for q in (*behind[len(queues) :], *queues) if self._next[q] < ends[q]]
            suspend_ms = 0 if came else _SUSPEND_MS
            if came:
                deadline_ns = compute_deadline(self._clock, self._timeout_ms)
            elif behind and self._clock.monotonic_ns() > deadline_ns:
                raise PeerError(f"the broker {behind[0].broker} gives nothing of {self.topic}, though there is more")

    def _number(self, partition: Queue) -> int:
        return partition_of(partition)

    def _remember(self, offsets: Mapping[Queue, int]) -> None:
        try:
            self._client.commit(offsets, self._group)
        except RefusedError as refusal:
            if refusal.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            self._client.pull(offsets, group=self._group)  # brokers make a group at its first pull, not at a commit
            self._client.commit(offsets, self._group)

    def close(self) -> None:
        """Close the connections; nothing is committed."""
        self._client.close()

    # -- positions ---------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[Queue, int]:
        queues = self._client.route(self.topic).readable
        if not queues:
            raise PeerError(f"no queue of {self.topic} may be read: give it the permission 6 (mqadmin updateTopic)")
        _check_partitions(queues)
        new = [queue for queue in queues if queue not in self._start]
        for queue, offset in (self._client.committed(new, self._group) if new else {}).items():
            self._recall(queue, offset)
        self._next = dict(self._start)
        bounds = self._client.bounds(queues)
        for queue, (low, end) in bounds.items():
            self._check_position(queue, low, self._proven_end(queue, end))
            if queue in self._last and not low <= self._last[queue].queue_offset < self._next[queue]:
                del self._last[queue]  # trimmed, or not committed: it is read again anyway
        return {queue: end for queue, (_, end) in bounds.items()}

    def _proven_end(self, queue: Queue, end: int) -> int:
        """Return the end of a queue; the master's, where it is shorter than what was committed: a slave catches up."""
        position = self._next[queue]
        if position <= end:
            return end
        try:
            return self._client.bounds([queue], masters_only=True)[queue][1]
        except SilentError:  # no master answers, and the slave's end proves nothing
            return position

    # -- messages ----------------------------------------------------------------------------------------------------

    def _take_pulled(self, queue: Queue, pulled: Pulled) -> list[LandedMessage]:
        """Return what was pulled and step behind it; a queue's offsets have no gaps but those that retention makes.

        Raises:
            PeerError: another message is in the place of the last one that was yielded.
        """
        position, last = self._next[queue], self._last.get(queue)
        if last is not None and any(_differs(message, last) for message in pulled.messages):
            raise self._replaced(queue, last.queue_offset)
        messages = [message for message in pulled.messages if message.queue_offset >= position]
        behind = max(position, pulled.next_offset)
        gone = behind - position - len(messages)
        if gone > 0:
            there = {message.queue_offset for message in messages}
            first = next(offset for offset in range(position, behind) if offset not in there)
            self._pass_over(queue, first, first + gone)
        self._next[queue] = behind
        if messages:
            self._last[queue] = messages[-1]
        return [_make_landed(message, partition_of(queue)) for message in messages]


def _differs(message: StoredMessage, known: StoredMessage) -> bool:
    first, last = ((each.store_ms, each.stored_body) for each in (message, known))
    return message.queue_offset == known.queue_offset and first != last


def partition_of(queue: Queue) -> int:
    """Return a number for ``queue`` that never changes and fits 31 bits: of its broker's name, and its queue id.

    Its place in the topic's route would move when a broker joins: readers of a landing detect repeats by these numbers.
    """
    return ((zlib.crc32(queue.broker.encode()) & _BROKER_MASK) << _QUEUE_BITS) + queue.queue_id


def _check_partitions(queues: Sequence[Queue]) -> None:
    numbers: dict[int, Queue] = {}
    for queue in queues:
        other = numbers.setdefault(partition_of(queue), queue)
        if other != queue:
            raise PeerError(f"{other} and {queue} get the same number {partition_of(queue)}: rename a broker")


def _make_landed(message: StoredMessage, partition: int) -> LandedMessage:
    try:
        body = decompress_body(message)
    except BodyError as error:
        # Kept as stored, so that one bad message neither vanishes nor stops the others: decoding reports it.
        _logger.warning("mqtrace: %s; it is kept as it is", error)
        body = message.stored_body
    return landed_message(message, partition, body)


def landed_message(message: StoredMessage, partition: int, body: bytes) -> LandedMessage:
    """Return a message of RocketMQ's as a landing keeps it, with its plain ``body``."""
    return LandedMessage(
        source=message.topic,
        partition=partition,
        offset=message.queue_offset,
        arrival_ms=message.store_ms,
        keys=message.properties.get(semconv.HEADER_KEYS),
        body=body,
    )
