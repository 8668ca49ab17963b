"""This module knows the forwarder's one promise: a message is committed only after it is durable in the landing.

So a crash repeats messages and never loses one; a reader tells repeats by (source, partition, offset).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from bridge.landing.layout import LandedMessage, LandedPart
    from bridge.landing.writer import LandingWriter

__all__ = ["ForwardCounts", "TraceSource", "forward_once", "forward_until"]


class TraceSource(Protocol):
    """What can be drained and remembers how far; ``KafkaTraceSource`` is one."""

    def drain(self) -> Generator[list[LandedMessage], None, None]:
        """Yield what is there now, in batches; an empty one gives the caller a chance to look around."""
        ...

    def commit(self) -> None:
        """Remember what was yielded as done."""
        ...


@dataclass(frozen=True, slots=True)
class ForwardCounts:
    """What one or several passes moved."""

    messages: int = 0
    body_bytes: int = 0
    parts: tuple[LandedPart, ...] = ()

    def __add__(self, other: ForwardCounts) -> ForwardCounts:
        return ForwardCounts(
            self.messages + other.messages, self.body_bytes + other.body_bytes, (*self.parts, *other.parts)
        )


def forward_once(source: TraceSource, landing: LandingWriter, *, stopped: Event | None = None) -> ForwardCounts:
    """Land everything ``source`` has now and return what was moved.

    Whenever a part of ``landing`` is due, by size or age, all parts are finished and the source commits: a backlog of
    any size makes progress that a crash does not undo. ``stopped`` is looked at after every batch, and then what was
    read is finished and committed as well.

    Raises:
        PeerError: the broker failed; what was not committed will be forwarded again.
        UsageError: the landing cannot be written.
    """
    moved = ForwardCounts()
    stopped = Event() if stopped is None else stopped
    with closing(source.drain()) as batches:
        for batch in batches:
            landing.write(batch)
            moved += _counts(batch)
            if landing.due:
                moved += _settle(source, landing)
            if stopped.is_set():
                break
    return moved + _settle(source, landing)


def _counts(batch: Sequence[LandedMessage]) -> ForwardCounts:
    return ForwardCounts(len(batch), sum(len(message.body) for message in batch))


def _settle(source: TraceSource, landing: LandingWriter) -> ForwardCounts:
    """Keep the promise: first durable, then committed."""
    parts = landing.finish()
    source.commit()
    return ForwardCounts(parts=parts)


def forward_until(
    stopped: Event,
    source: TraceSource,
    landing: LandingWriter,
    *,
    pause_ms: float,
    on_pass: Callable[[ForwardCounts], object] | None = None,
) -> ForwardCounts:
    """Repeat :func:`forward_once`, pausing ``pause_ms`` in between, until ``stopped`` is set; return the sum.

    ``on_pass`` is told what each pass has moved, once that is committed.
    """
    moved = ForwardCounts()
    while not stopped.is_set():
        passed = forward_once(source, landing, stopped=stopped)
        moved += passed
        if on_pass is not None:
            on_pass(passed)
        stopped.wait(pause_ms / 1e3)
    return moved
