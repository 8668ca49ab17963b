"""A resumable stream of trace messages, and what the two kinds of trace topic share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from otel_mqtrace._errors import PeerError
from otel_mqtrace.wire.native.layout import RECORD_START

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from typing_extensions import Self

    from bridge.forwarder.pairing import Position
    from otel_mqtrace._clock import Clock
    from otel_mqtrace.landing import LandedMessage


DEFAULT_GROUP: Final = "mqtrace-forward"
_P = TypeVar("_P")


class TraceSource(ABC):
    """What can be drained and remembers how far; use it as a context manager.

    Attributes:
        behind: the partitions (as on the messages) that the present drain has not read to their end yet.
        has_answered: whether a drain has reached the source since the start.
        has_committed: whether a commit has succeeded since the start, with something new or not.
        has_been_read: whether the group had a position beyond the beginning at the start.
        holds_records: whether any body that was drained holds a native record.
        trimmed: how many offsets retention had removed; Kafka's transaction markers took some of them.
        bad_bodies: how many pieces of files are not messages.
        first_bad: place and reason of the first of them.
        new_bad: place and reason of the last of them or of ``changed_files``, until the caller has printed that.
        changed_files: names of those that changed since they were forwarded; they are not read again.
        cut_files: names of those that end inside a message, each with its number: it is read once it is complete.
    """

    def __init__(self) -> None:
        self.behind: Collection[int | None] = ()
        self.has_answered = self.has_committed = False
        self.has_been_read = self.holds_records = False
        self.trimmed = 0
        self.bad_bodies = 0
        self.first_bad = self.new_bad = ""
        self.changed_files: set[str] = set()
        self.cut_files: dict[str, int] = {}

    def drain(self) -> Generator[list[LandedMessage], None, None]:
        """Yield what lies between the last :meth:`commit` and the present end, in batches; then return.

        A batch may be empty, so that the caller is never kept waiting; then it may stop. The last ones may reach beyond
        that end: what was fetched is always yielded. The next drain goes on behind what was yielded at the last commit.
        """
        with closing(self._drain()) as batches:
            for batch in batches:
                self.has_answered = True
                self.holds_records = self.holds_records or any(RECORD_START.search(each.body) for each in batch)
                yield batch
        self.has_answered = True

    @abstractmethod
    def _drain(self) -> Generator[list[LandedMessage], None, None]:
        """Do what :meth:`drain` promises."""

    def commit(self, held: Collection[Position] = ()) -> None:
        """Remember what was yielded as done, but for ``held`` and all that lies behind it on the same partition.

        A later source of the same group begins there; this one has yielded them already.
        """
        self._commit(held)
        self.has_committed = True

    @abstractmethod
    def _commit(self, held: Collection[Position]) -> None:
        """Do what :meth:`commit` promises."""

    def close(self) -> None:  # noqa: B027 - files are closed after each
        """Close the connections; nothing is committed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TopicSource(TraceSource, Generic[_P]):
    """A trace topic as a resumable stream; ``_P`` is a partition or queue as its client names it.

    One forwarder owns the topic, reads all partitions itself and uses the group's committed offsets as its memory
    only. What retention has already removed is an error, never a silent gap, unless ``accept_trimmed``; then
    ``trimmed`` counts it.
    """

    _unset: int | None = None
    """What a group has that never committed: nothing is committed where that is the position."""
    _retention: str
    """The setting that keeps messages longer."""

    def __init__(self, topic: str, group: str, clock: Clock, *, accept_trimmed: bool, timeout_ms: float) -> None:
        super().__init__()
        self.topic = topic
        self._group = group
        self._clock = clock
        self._accept_trimmed = accept_trimmed
        self._timeout_ms = timeout_ms
        self._start: dict[_P, int] = {}  # where the next drain begins
        self._next: dict[_P, int] = {}  # behind what was yielded
        self._committed: dict[_P, int] = {}  # what the group remembers

    def _commit(self, held: Collection[Position]) -> None:
        """Remember the position with the group: call it only after everything yielded but ``held`` is durable.

        On each partition the group's position is that of the first message held; this source goes on behind what it has
        yielded.

        Raises:
            PeerError: a broker did not take it; what it did not take will be yielded again.
        """
        firsts: dict[int | None, int] = {}
        for _, partition, offset in held:
            if offset is not None:
                firsts[partition] = min(offset, firsts.get(partition, offset))
        done = {each: min(end, firsts.get(self._number(each), end)) for each, end in self._next.items()}
        new = {each: offset for each, offset in done.items() if self._committed.get(each, self._unset) != offset}
        if new:
            self._remember(new)
            self._committed.update(new)
        self._start = dict(self._next)

    @abstractmethod
    def _number(self, partition: _P) -> int:
        """Return the partition as messages name it."""

    @abstractmethod
    def _remember(self, offsets: dict[_P, int]) -> None:
        """Commit ``offsets``."""

    def _name(self, partition: _P) -> str:
        """Return the partition as errors name it."""
        return str(partition)

    def _recall(self, partition: _P, offset: int | None) -> None:
        """Begin the first drain at ``offset``, where the group stopped; ``None``: it has never committed."""
        self._start[partition] = offset or 0
        if offset is not None:
            self._committed[partition] = offset
            self.has_been_read |= offset > 0

    def _check_position(self, partition: _P, low: int, end: int) -> None:
        """Raise for a partition shorter than what was committed: nothing new would be read of it for long."""
        position = self._next[partition]
        if position > end:
            raise self._created_again(partition, f"ends at {end}, but the group {self._group} remembers {position}")
        if position < low:
            self._pass_over(partition, position, low)
            self._start[partition] = self._next[partition] = low

    def _replaced(self, partition: _P, offset: int) -> PeerError:
        return self._created_again(partition, f"has another message at {offset} than the group {self._group} read")

    def _created_again(self, partition: _P, sign: str) -> PeerError:
        return PeerError(
            f"{self._name(partition)} {sign}: the topic was created again, or messages were lost; "
            "go on with another --group"
        )

    def _pass_over(self, partition: _P, first: int, last: int) -> None:
        """Note that offsets ``[first, last)`` are gone, or refuse to go on without them."""
        if not self._accept_trimmed:
            raise PeerError(
                f"{self._name(partition)} was trimmed: offsets {first} to {last - 1} are gone before they were "
                f"forwarded; raise {self._retention}, and pass --accept-trimmed to go on without them"
            )
        self.trimmed += last - first
