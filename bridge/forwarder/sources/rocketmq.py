"""Drain a RocketMQ trace topic: every queue, from the committed offset to the end of this moment.

No group membership, as for Kafka: one forwarder owns the topic, reads all its queues and uses the group's offsets
on the brokers as its memory only. What retention has already removed is an error, never a silent gap.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError
from otel_mqtrace.landing.layout import LandedMessage
from otel_mqtrace.rocketmq.client import RemotingClient
from otel_mqtrace.rocketmq.commands import RefusedError, ResponseCode
from otel_mqtrace.rocketmq.connection import SilentError
from otel_mqtrace.rocketmq.messages import BodyError, plain_body

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.rocketmq.client import Pulled
    from otel_mqtrace.rocketmq.commands import Queue
    from otel_mqtrace.rocketmq.messages import StoredMessage

__all__ = ["DEFAULT_GROUP", "RemotingTraceSource", "Trimmed", "find_by_key", "partition_of"]


_logger = logging.getLogger(__name__)
DEFAULT_GROUP: Final = "mqtrace-forward"
_QUEUES_AT_ONCE: Final = 16
"""Pulls on the way at the same time: what they bring, 256 KiB each, is what is held in memory."""
_SUSPEND_MS: Final = 500  # of a broker that had nothing
_QUEUE_BITS: Final = 10
_BROKER_MASK: Final = 0xF_FFFF


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Offsets ``[first, last)`` of one queue that retention removed before they were forwarded."""

    queue: Queue
    first: int
    last: int

    @property
    def offsets(self) -> int:
        """How many offsets, and so messages, are gone."""
        return self.last - self.first


class RemotingTraceSource:
    """A trace topic of a RocketMQ cluster, 4.x or 5.x, as a resumable stream of raw messages.

    A message's ``partition`` is :func:`partition_of` its queue, its ``arrival_ms`` the broker's store time, and its
    ``body`` what was sent, decompressed.

    Args:
        namesrv: Name servers, ``host:port[;host:port…]``.
        topic: The trace topic.
        group: Under which the brokers keep the offsets; another group starts from the beginning.
        access_key: With ``secret_key``, for brokers with access control.
        secret_key: Never shown.
        accept_trimmed: Go on after what retention removed (it is in ``trimmed``) instead of failing.
        timeout_ms: How long one answer of a server may take.
        clock: Time.

    Raises:
        PeerError: no server answers, one refused, or messages were trimmed.
        UsageError: an address or the keys are wrong.
    """

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
        self.topic = topic
        self.trimmed: list[Trimmed] = []
        self.behind: Collection[int | None] = ()
        self._group = group
        self._accept_trimmed = accept_trimmed
        self._timeout_ns = int(timeout_ms * 1e6)
        self._clock = clock or SystemClock()
        self._start: dict[Queue, int] = {}  # where the next drain begins
        self._next: dict[Queue, int] = {}  # behind what was yielded
        self._committed: dict[Queue, int] = {}  # what the group remembers
        self._client = RemotingClient(
            namesrv, access_key=access_key, secret_key=secret_key, timeout_ms=timeout_ms, clock=self._clock
        )

    def drain(self) -> Generator[list[LandedMessage], None, None]:
        """Yield what lies between the last commit and the topic's present end, in batches; then return.

        A batch may be empty, and the last ones may reach beyond that end: what was fetched is always yielded. What was
        yielded is behind the position that :meth:`commit` remembers; the next drain begins where the last commit was.
        """
        ends = self._ends()
        behind = [queue for queue, end in ends.items() if self._next[queue] < end]
        self.behind = frozenset(map(partition_of, behind))
        deadline_ns, suspend_ms = self._answer_by(), 0
        while behind:
            asked = behind[:_QUEUES_AT_ONCE]
            came = 0
            for queue, pulled in self._pulled(asked, suspend_ms).items():
                landed = self._landed(queue, pulled)
                came += len(landed)
                self.behind = frozenset(partition_of(each) for each in behind if self._next[each] < ends[each])
                yield landed
            # Those that were asked go to the end, so that every queue has its turn.
            behind = [q for q in (*behind[len(asked) :], *asked) if self._next[q] < ends[q]]
            suspend_ms = 0 if came else _SUSPEND_MS
            if came:
                deadline_ns = self._answer_by()
            elif behind and self._clock.monotonic_ns() > deadline_ns:
                raise PeerError(f"the broker {behind[0].broker} gives nothing of {self.topic}, though there is more")

    def commit(self, held: Collection[tuple[str, int | None, int | None]] = ()) -> None:
        """Remember the position with the group: call it only after everything yielded but ``held`` is durable.

        ``held`` are messages, each by its source, partition and offset. On each queue the group's position is that of
        the first one held; this source goes on behind what it has yielded.

        Raises:
            PeerError: a master did not take it; what it did not take will be yielded again.
        """
        firsts: dict[int | None, int] = {}
        for _, partition, offset in held:
            if offset is not None:
                firsts[partition] = min(offset, firsts.get(partition, offset))
        done = {queue: min(end, firsts.get(partition_of(queue), end)) for queue, end in self._next.items()}
        new = {queue: offset for queue, offset in done.items() if self._committed.get(queue, 0) != offset}
        if new:
            self._remember(new)
            self._committed.update(new)
        self._start = dict(self._next)

    def _remember(self, offsets: Mapping[Queue, int]) -> None:
        try:
            self._client.commit(offsets, self._group)
        except RefusedError as refusal:
            if refusal.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            self._client.pull(offsets, group=self._group)  # brokers make a group at its first pull, not at a commit
            self._client.commit(offsets, self._group)

    def close(self) -> None:
        """Let the connections go; nothing is committed."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- positions ---------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[Queue, int]:
        """Return the present end of every queue, having set every position to where this drain begins."""
        queues = self._client.route(self.topic).readable
        _check_partitions(queues)
        self._recall([queue for queue in queues if queue not in self._start])
        self._next = dict(self._start)
        bounds = self._client.bounds(queues)
        for queue, (low, end) in bounds.items():
            self._check_position(queue, low, end)
        return {queue: end for queue, (_, end) in bounds.items()}

    def _recall(self, queues: Sequence[Queue]) -> None:
        """Begin each of ``queues`` at what the group remembers; at the beginning only if it says "nothing"."""
        for queue, offset in (self._client.committed(queues, self._group) if queues else {}).items():
            self._start[queue] = offset or 0
            if offset is not None:
                self._committed[queue] = offset

    def _check_position(self, queue: Queue, low: int, end: int) -> None:
        position = self._next[queue]
        if position > end:
            self._check_overrun(queue)
        if position < low:
            self._pass_over(Trimmed(queue, position, low))
            self._start[queue] = self._next[queue] = low

    def _check_overrun(self, queue: Queue) -> None:
        """Complain of a queue that is shorter than what was committed; a slave may be, and catches up."""
        try:
            _, end = self._client.bounds([queue], masters_only=True)[queue]
        except SilentError:
            return
        if self._next[queue] > end:
            raise PeerError(
                f"{queue} ends at {end}, but the group {self._group} remembers {self._next[queue]}: the topic was made "
                "anew, or the broker lost messages; go on with another --group"
            )

    def _pass_over(self, gone: Trimmed) -> None:
        if not self._accept_trimmed:
            raise PeerError(
                f"{gone.queue} was trimmed: offsets {gone.first} to {gone.last - 1} are gone before they were "
                "forwarded; raise fileReservedTime on the brokers, and pass --accept-trimmed to go on without them"
            )
        self.trimmed.append(gone)

    # -- messages ----------------------------------------------------------------------------------------------------

    def _landed(self, queue: Queue, pulled: Pulled) -> list[LandedMessage]:
        """Return what was pulled and step behind it; a queue's offsets have no gaps but those that retention makes."""
        position = self._next[queue]
        messages = [message for message in pulled.messages if message.queue_offset >= position]
        behind = max(position, pulled.next_offset)
        gone = behind - position - len(messages)
        if gone > 0:
            there = {message.queue_offset for message in messages}
            first = next(offset for offset in range(position, behind) if offset not in there)
            self._pass_over(Trimmed(queue, first, first + gone))
        self._next[queue] = behind
        return [_landed(message, partition_of(queue)) for message in messages]

    def _pulled(self, queues: Sequence[Queue], suspend_ms: int) -> dict[Queue, Pulled]:
        offsets = {queue: self._next[queue] for queue in queues}
        return self._client.pull(offsets, group=self._group, suspend_ms=suspend_ms)

    def _answer_by(self) -> int:
        return self._clock.monotonic_ns() + self._timeout_ns


def find_by_key(  # noqa: PLR0913 - every tunable by name
    namesrv: str,
    topic: str,
    key: str,
    *,
    begin_ms: int = 0,
    end_ms: int | None = None,
    max_messages: int = 64,
    access_key: str | None = None,
    secret_key: str | None = None,
    timeout_ms: float = 10_000,
) -> Iterator[LandedMessage]:
    """Yield the messages of ``topic`` that have ``key`` among their keys, at most ``max_messages`` of each broker.

    The brokers' index is asked, as ``mqadmin queryMsgTraceById`` does: for a trace topic the keys are message ids and
    the messages' own keys. ``begin_ms`` and ``end_ms`` bound the store time, epoch milliseconds.

    Raises:
        PeerError: a server does not answer, or refused; what was yielded is not complete.
        UsageError: an address or the keys are wrong.
    """
    with RemotingClient(namesrv, access_key=access_key, secret_key=secret_key, timeout_ms=timeout_ms) as client:
        until = {} if end_ms is None else {"end_ms": end_ms}
        queues = {(queue.broker, queue.queue_id): queue for queue in client.route(topic).readable}
        for broker, message in client.find_by_key(topic, key, begin_ms=begin_ms, max_messages=max_messages, **until):
            queue = queues.get((broker, message.queue_id))
            yield _landed(message, None if queue is None else partition_of(queue))


def partition_of(queue: Queue) -> int:
    """Return a number for ``queue`` that never changes and fits 31 bits: of its broker's name, and its queue id.

    Not its place in the topic's route, which moves when a broker joins: a landing tells repeats by these numbers.
    """
    return ((zlib.crc32(queue.broker.encode()) & _BROKER_MASK) << _QUEUE_BITS) + queue.queue_id


def _check_partitions(queues: Sequence[Queue]) -> None:
    """Two queues with one number would pass for repeats of each other."""
    numbers: dict[int, Queue] = {}
    for queue in queues:
        other = numbers.setdefault(partition_of(queue), queue)
        if other != queue:
            raise PeerError(f"{other} and {queue} get the same number {partition_of(queue)}: rename a broker")


def _landed(message: StoredMessage, partition: int | None) -> LandedMessage:
    try:
        body = plain_body(message)
    except BodyError as error:
        # As it lies, so that one bad message neither vanishes nor stops the others: who decodes it will tell.
        _logger.warning("mqtrace: %s; it is kept as it is", error)
        body = message.stored_body
    return LandedMessage(
        source=message.topic,
        partition=partition,
        offset=message.queue_offset,
        arrival_ms=message.store_ms,
        keys=message.properties.get(semconv.HEADER_KEYS),
        body=body,
    )
