"""Trace and span ids: drawn many at once, and read from W3C's header."""

from __future__ import annotations

import os
import re
from binascii import unhexlify
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

from otel_mqtrace._workers import restart_in_child

if TYPE_CHECKING:
    from collections.abc import Sequence


_AT_ONCE: Final = Struct("24s" * 32)
_ORIGIN: Final = Struct("x16s8sx")
_PLAIN: Final = rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-0([0-3])"
match_traceparent: Final = re.compile(_PLAIN).fullmatch
"""Match a plain ``traceparent``: trace id, span id and flags as hexadecimal digits."""
_match_several: Final = re.compile(b"(?:%b)+" % _PLAIN).fullmatch
_TRACEPARENT_BYTES: Final = 55


def read_traceparent(header: object) -> tuple[bytes, int] | None:
    """Return ids (24 bytes) and flags of a plain ``traceparent``; ``None`` where the propagator has to read it."""
    plain = match_traceparent(header) if type(header) is bytes else None
    if plain is None:
        return None
    trace_id, span_id, flags = plain.groups()
    return unhexlify(trace_id + span_id), flags[0] & 3


def read_origins(headers: Sequence[bytes | None]) -> list[tuple[bytes, bytes] | None] | None:
    """Return trace id and span id of plain ``traceparent`` headers (absent: ``None``); ``None`` if one is not plain."""
    present = [header for header in headers if header is not None]
    raw = _unhexlify_plain(b"".join(present)) if set(map(len, present)) <= {_TRACEPARENT_BYTES} else None
    if raw is None:
        return None
    ids = _ORIGIN.iter_unpack(raw)
    if len(present) == len(headers):
        return list(ids)
    return [None if header is None else next(ids) for header in headers]


def _unhexlify_plain(joined: bytes) -> bytes | None:
    """Return version, trace id, span id and flags, 26 bytes each, of plain headers; ``None`` if one is not plain."""
    dashes = b"-" * (len(joined) // _TRACEPARENT_BYTES)
    if any(joined[at::_TRACEPARENT_BYTES] != dashes for at in (2, 35, 52)) or joined != joined.lower():
        return None
    try:
        raw = unhexlify(joined.translate(None, b"-"))
    except ValueError:
        return None
    if len(raw) != 26 * len(dashes) or raw[::26].strip(b"\0") or raw[25::26].strip(b"\0\1\2\3"):
        return None
    # an id of zeros is not valid; the expression for all headers would be a twentieth of a batch's cost
    return raw if bytes(8) not in raw or _match_several(joined) else None


class IdPool:
    """Ids as ``generator`` would draw them: 16 bytes of trace id and 8 of span id.

    Those of the SDK's random generator are drawn many at once. A forked child empties its pools.
    """

    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._is_random = type(generator) is RandomIdGenerator and not vars(generator)  # no method was put on it
        self._pool: list[bytes] = []
        self.pop = self._pool.pop
        """:meth:`take` without a call of Python's; ``IndexError`` means: call :meth:`draw`."""
        restart_in_child(self)

    def draw(self) -> bytes:
        """Return the first of newly drawn ids, and keep the others."""
        if not self._is_random:
            trace_id: int = self._generator.generate_trace_id()
            span_id: int = self._generator.generate_span_id()
            return trace_id.to_bytes(16, "big") + span_id.to_bytes(8, "big")
        first, *others = _AT_ONCE.unpack(os.urandom(_AT_ONCE.size))
        self._pool.extend(others)  # one atomic step: several threads may refill
        ids: bytes = first
        return ids

    def take(self) -> bytes:
        """Return ids that no other caller gets."""
        try:
            return self.pop()
        except IndexError:
            return self.draw()

    def after_fork(self) -> None:
        """Forget the ids that the parent will use."""
        self._pool.clear()
