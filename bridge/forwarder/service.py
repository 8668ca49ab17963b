"""This module knows the forwarder's one promise: a message is committed only after it is durable in the landing.

So a crash repeats messages and never loses one; a reader tells repeats by (source, partition, offset).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from threading import Event

    from bridge.landing.layout import LandedMessage, LandedPart
    from bridge.landing.writer import LandingWriter

__all__ = ["ForwardCounts", "TraceSource", "forward_once", "forward_until"]


class TraceSource(Protocol):
    """What can be drained and remembers how far; ``KafkaTraceSource`` is one."""

    def drain(self) -> Iterator[list[LandedMessage]]:
        """Yield what is there now, in batches."""
        ...

    def commit(self) -> None:
        """Remember what was drained as done."""
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


def forward_once(source: TraceSource, landing: LandingWriter) -> ForwardCounts:
    """Land everything ``source`` has now, finish the parts, then commit; return what was moved.

    Raises:
        PeerError: the broker failed; what was not committed will be forwarded again.
        UsageError: the landing cannot be written.
    """
    messages = body_bytes = 0
    for batch in source.drain():
        landing.write(batch)
        messages += len(batch)
        body_bytes += sum(len(message.body) for message in batch)
    parts = landing.finish()
    source.commit()
    return ForwardCounts(messages, body_bytes, parts)


def forward_until(stopped: Event, source: TraceSource, landing: LandingWriter, *, pause_ms: float) -> ForwardCounts:
    """Repeat :func:`forward_once`, pausing ``pause_ms`` in between, until ``stopped`` is set; return the sum."""
    moved = ForwardCounts()
    while not stopped.is_set():
        moved += forward_once(source, landing)
        stopped.wait(pause_ms / 1e3)
    return moved
