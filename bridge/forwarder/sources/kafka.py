"""Drain a Kafka trace topic: every partition, from the committed offset to the end of this moment.

No group membership: one forwarder owns the topic, so it assigns all partitions itself and uses the group's committed
offsets as its memory only. What retention has already removed is an error, never a silent gap.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer

from otel_mqtrace import semconv
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.landing.layout import LandedMessage

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping
    from types import TracebackType

    from typing_extensions import Self

    from bridge.forwarder.pairing import Place
    from otel_mqtrace._clock import Clock

__all__ = ["DEFAULT_GROUP", "KafkaTraceSource", "Trimmed"]


_logger = logging.getLogger(__name__)
DEFAULT_GROUP: Final = "mqtrace-forward"
_BATCH: Final = 500
_POLL_S: Final = 0.2
_NS_PER_MS: Final = 1_000_000
_MOVING: Final = frozenset({KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE})
_NO_OFFSET: Final = 0  # librdkafka's "nothing committed" and "none" are negative


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Offsets ``[first, last)`` of one partition that retention removed before they were forwarded."""

    partition: int
    first: int
    last: int

    @property
    def offsets(self) -> int:
        """How many offsets are gone; transaction markers take some, so at most that many messages."""
        return self.last - self.first


class KafkaTraceSource:
    """A trace topic as a resumable stream of raw messages.

    Args:
        bootstrap_servers: ``host:port[,host:port…]``.
        topic: The trace topic.
        group: Under which offsets are committed; another group starts from the beginning.
        kafka_config: Further client properties (TLS, SASL).
        accept_trimmed: Go on after what retention removed (it is in ``trimmed``) instead of failing.
        timeout_ms: How long one answer of the broker may take.

    Raises:
        PeerError: the broker does not answer, the topic does not exist or was made anew, or messages were trimmed.
    """

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
        self.topic = topic
        self.trimmed: list[Trimmed] = []
        self.behind: Collection[int | None] = ()
        self._group = group
        self._bootstrap_servers = bootstrap_servers
        self._accept_trimmed = accept_trimmed
        self._timeout_s = timeout_ms / 1e3
        self._clock = clock or SystemClock()
        self._start: dict[int, int] = {}  # where the next drain begins
        self._next: dict[int, int] = {}  # behind what was yielded
        self._committed: dict[int, int] = {}  # what the group remembers
        properties = {
            **(kafka_config or {}),
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
        try:
            self._consumer: Any = Consumer(properties, logger=_logger)
        except KafkaException as error:
            raise UsageError(f"the forwarder's consumer cannot be built: {error}") from error

    def drain(self) -> Generator[list[LandedMessage], None, None]:
        """Yield what lies between the last commit and the topic's present end, in batches; then return.

        A batch may be empty, so that the caller is never kept waiting, and the last ones may reach beyond that end:
        what was fetched is always yielded. What was yielded is behind the position that :meth:`commit` remembers; the
        next drain begins behind what had been yielded at the last commit.
        """
        ends = self._ends()
        behind = {partition for partition, end in ends.items() if self._next[partition] < end}
        self.behind = frozenset(behind)
        if not behind:
            return
        self._consumer.assign([TopicPartition(self.topic, p, self._next[p]) for p in sorted(behind)])
        try:
            deadline_ns = self._answer_by()
            while behind:
                batch = [self._checked(message) for message in self._consumer.consume(_BATCH, _POLL_S)]
                landed = [self._landed(message) for message in batch]
                behind = {partition for partition in behind if self._position(partition) < ends[partition]}
                self.behind = frozenset(behind)
                if landed:
                    deadline_ns = self._answer_by()
                elif behind and self._clock.monotonic_ns() > deadline_ns:
                    raise self._silent()
                yield landed
        finally:
            self._consumer.unassign()

    def commit(self, held: Collection[Place] = ()) -> None:
        """Remember the position with the group: call it only after everything yielded but ``held`` is durable.

        On each partition the group's position is that of the first one held; this source goes on behind it.
        """
        done = dict(self._next)
        for place in held:
            if place.partition is not None and place.offset is not None:
                done[place.partition] = min(place.offset, done[place.partition])
        new = {p: offset for p, offset in done.items() if self._committed.get(p) != offset}
        if new:
            offsets = [TopicPartition(self.topic, partition, offset) for partition, offset in new.items()]
            try:
                results = self._consumer.commit(offsets=offsets, asynchronous=False)
            except KafkaException as error:
                raise PeerError(f"the offsets of {self.topic} were not committed: {error.args[0]}") from error
            bad = next((result.error for result in results or () if result.error), None)
            if bad is not None:
                raise PeerError(f"the offsets of {self.topic} were not committed: {bad}")
            self._committed.update(new)
        self._start = dict(self._next)

    def close(self) -> None:
        """Let the connection go; nothing is committed."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- positions ---------------------------------------------------------------------------------------------------

    def _ends(self) -> dict[int, int]:
        """Return the present end of every partition, having set every position to where this drain begins."""
        ends: dict[int, int] = {}
        try:
            partitions = self._partitions()
            self._recall([partition for partition in partitions if partition not in self._start])
            self._next = dict(self._start)
            for partition in partitions:
                low, ends[partition] = self._consumer.get_watermark_offsets(
                    TopicPartition(self.topic, partition), timeout=self._timeout_s
                )
                self._check_overrun(partition, ends[partition])
                self._check_trimmed(partition, low)
        except KafkaException as error:
            raise self._silent(error) from error
        return ends

    def _recall(self, partitions: list[int]) -> None:
        """Begin each of ``partitions`` at what the group remembers; at the beginning only if it says "nothing"."""
        wanted = [TopicPartition(self.topic, partition) for partition in partitions]
        for remembered in self._remembered(wanted) if wanted else ():
            if remembered.error is not None:
                raise self._silent(remembered.error)
            self._start[remembered.partition] = max(remembered.offset, _NO_OFFSET)
            if remembered.offset >= _NO_OFFSET:
                self._committed[remembered.partition] = remembered.offset

    def _remembered(self, wanted: list[TopicPartition]) -> list[TopicPartition]:
        """Ask the group's coordinator, and again while it moves, as it does when a broker starts or goes."""
        deadline_ns = self._answer_by()
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

    def _partitions(self) -> list[int]:
        known = self._consumer.list_topics(self.topic, timeout=self._timeout_s).topics[self.topic]
        if known.error is not None:
            raise PeerError(
                f"the trace topic {self.topic} cannot be read on {self._bootstrap_servers}: {known.error.str()}"
            )
        return sorted(known.partitions)

    def _check_overrun(self, partition: int, end: int) -> None:
        """Complain of a partition that is shorter than what was committed: nothing new would be read of it for long."""
        if self._next[partition] > end:
            raise PeerError(
                f"{self.topic} [{partition}] ends at {end}, but the group {self._group} remembers "
                f"{self._next[partition]}: the topic was made anew, or messages were lost; go on with another --group"
            )

    def _check_trimmed(self, partition: int, low: int) -> None:
        position = self._next[partition]
        if position >= low:
            return
        gone = Trimmed(partition, position, low)
        if not self._accept_trimmed:
            raise PeerError(
                f"{self.topic} [{partition}] was trimmed: offsets {position} to {low - 1} are gone before they were "
                "forwarded; raise the topic's retention, and pass --accept-trimmed to go on without them"
            )
        self.trimmed.append(gone)
        self._start[partition] = self._next[partition] = low

    def _position(self, partition: int) -> int:
        """Return where reading goes on, past transaction markers, which are never handed out."""
        position: int = self._consumer.position([TopicPartition(self.topic, partition)])[0].offset
        self._next[partition] = max(self._next[partition], position)
        return self._next[partition]

    # -- messages ----------------------------------------------------------------------------------------------------

    def _checked(self, message: Any) -> Any:
        error = message.error()
        if error is not None and error.name() == "_AUTO_OFFSET_RESET":
            raise PeerError(f"{self.topic} was trimmed while it was being read: raise the topic's retention")
        if error is not None:
            raise self._silent(error)
        return message

    def _landed(self, message: Any) -> LandedMessage:
        _, timestamp_ms = message.timestamp()
        headers = {name: value for name, value in message.headers() or () if isinstance(value, bytes)}
        keys = headers.get(semconv.HEADER_KEYS)
        self._next[message.partition()] = message.offset() + 1
        return LandedMessage(
            source=self.topic,
            partition=message.partition(),
            offset=message.offset(),
            arrival_ms=timestamp_ms if timestamp_ms > 0 else self._clock.wall_ns() // _NS_PER_MS,
            keys=None if keys is None else keys.decode("utf-8", "replace"),
            body=message.value() or b"",
        )

    # -- errors ------------------------------------------------------------------------------------------------------

    def _answer_by(self) -> int:
        return self._clock.monotonic_ns() + int(self._timeout_s * 1e9)

    def _silent(self, cause: object = None) -> PeerError:
        reason = cause.args[0] if isinstance(cause, KafkaException) and cause.args else cause
        told = f": {reason.str() if isinstance(reason, KafkaError) else reason}" if reason is not None else ""
        return PeerError(f"the broker {self._bootstrap_servers} does not answer for {self.topic}{told}")
