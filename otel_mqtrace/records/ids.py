"""Trace and span ids, drawn many at once, with the ``traceparent`` of a root span ready."""

from __future__ import annotations

import os
import re
import weakref
from binascii import unhexlify
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

if TYPE_CHECKING:
    from collections.abc import Mapping


_AT_ONCE: Final = 16
_BYTES: Final = 24


match_traceparent: Final = re.compile(rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-0([0-3])").fullmatch
"""Match a plain ``traceparent``: trace id, span id and flags as hexadecimal digits."""


def read_origin(headers: Mapping[str, Any]) -> tuple[bytes | None, int] | None:
    """Return the ids (24 bytes) and flags of a plain ``traceparent``; no ids where there is no such header.

    ``None`` where the propagator has to read it.
    """
    header = headers.get("traceparent")
    if header is None:
        return None, 0
    plain = match_traceparent(header) if type(header) is bytes else None
    if plain is None:
        return None
    trace_id, span_id, flags = plain.groups()
    return unhexlify(trace_id + span_id), int(flags)


class DrawnIds(NamedTuple):
    """Ids of one span: 16 bytes of trace id and 8 of span id, and W3C's header for them as a root."""

    raw: bytes
    traceparent: bytes


class IdPool:
    """Ids as ``generator`` would draw them; those of the SDK's random generator are drawn many at once.

    ``flags`` are the trace flags of a root as two hexadecimal digits. A forked child empties its pools.
    """

    def __init__(self, generator: Any, flags: bytes) -> None:
        self._generator = generator
        self._is_random = type(generator) is RandomIdGenerator and not vars(generator)  # no method was put on it
        self._flags = flags
        self._pool: list[DrawnIds] = []
        self.pop = self._pool.pop
        """Return ids that no other caller gets, without a Python call; ``IndexError`` means: call :meth:`draw`."""
        _pools.add(self)

    def draw(self) -> DrawnIds:
        """Return ids that no other caller gets."""
        if not self._is_random:
            trace_id, span_id = self._generator.generate_trace_id(), self._generator.generate_span_id()
            return self._drawn(trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big"))
        raw = os.urandom(_BYTES * _AT_ONCE)
        drawn = [self._drawn(raw[start : start + _BYTES]) for start in range(0, len(raw), _BYTES)]
        last = drawn.pop()
        self._pool.extend(drawn)  # one atomic step: several threads may refill
        return last

    def _drawn(self, raw: bytes) -> DrawnIds:
        text = raw.hex().encode()
        return DrawnIds(raw, b"00-%b-%b-%b" % (text[:32], text[32:], self._flags))

    def after_fork(self) -> None:
        """Forget the ids that the parent will use."""
        self._pool.clear()


def id_pool(generator: Any, flags: int) -> IdPool:
    """Return a pool of ``generator`` for roots with these trace flags."""
    return IdPool(generator, b"%02x" % flags)


_pools: Final[weakref.WeakSet[IdPool]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pool in _pools:
        pool.after_fork()


if hasattr(os, "register_at_fork"):  # can never be taken back: one for all pools
    os.register_at_fork(after_in_child=_after_fork_in_child)
