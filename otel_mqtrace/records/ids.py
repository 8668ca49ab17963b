"""Trace and span ids, drawn many at once, with the ``traceparent`` of a root span ready."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DrawnIds", "IdPool", "id_source"]

_AT_ONCE: Final = 256
_BYTES: Final = 24


class DrawnIds(NamedTuple):
    """Ids of one span: 16 bytes of trace id followed by 8 of span id, and W3C's header for them as a sampled root."""

    raw: bytes
    traceparent: bytes


class IdPool:
    """Random ids of a provider whose id generator is the SDK's own; emptied in a forked child.

    ``flags`` are the trace flags of a sampled root as two hexadecimal digits.
    """

    def __init__(self, flags: bytes) -> None:
        self._flags = flags
        self._pool: list[DrawnIds] = []
        _pools.add(self)

    def draw(self) -> DrawnIds:
        """Return ids that nobody else gets."""
        try:
            return self._pool.pop()
        except IndexError:
            raw = os.urandom(_BYTES * _AT_ONCE)
            starts = range(0, len(raw), _BYTES)
            drawn = [_drawn_ids(raw[start : start + _BYTES], self._flags) for start in starts]
            last = drawn.pop()
            self._pool.extend(drawn)  # one atomic step: several threads may refill
            return last

    def after_fork(self) -> None:
        """Forget what the parent will use."""
        self._pool.clear()


def _drawn_ids(raw: bytes, flags: bytes) -> DrawnIds:
    """Return ``raw`` (24 bytes) with its header."""
    text = raw.hex().encode()
    return DrawnIds(raw, b"00-%b-%b-%b" % (text[:32], text[32:], flags))


def id_source(generator: Any, flags: int) -> Callable[[], DrawnIds]:
    """Return what draws ids as ``generator`` would: a pool for the SDK's random one, any other is asked one by one."""
    digits = b"%02x" % flags
    if type(generator) is RandomIdGenerator and not vars(generator):  # nobody has put a method of theirs on it
        return IdPool(digits).draw

    def draw() -> DrawnIds:
        trace_id, span_id = generator.generate_trace_id(), generator.generate_span_id()
        return _drawn_ids(trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big"), digits)

    return draw


_pools: Final[weakref.WeakSet[IdPool]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in _pools:
        pool.after_fork()


if hasattr(os, "register_at_fork"):  # can never be taken back: one for all pools there will be
    os.register_at_fork(after_in_child=_after_fork_in_child)
