"""This module knows RocketMQ's unique message id: 32 upper-case hex digits that say who made it, when, and as how many.

Layout, as RocketMQ's ``MessageClientIDSetter`` writes it, in digits: address 8 (IPv6: 32), process id modulo 65536 4,
a number that tells class loaders apart 8, milliseconds since the start of the month 8, a counter modulo 65536 4. Ours
differs where no reader depends on it: the month starts in UTC, and instead of the class loader there is a random number
per process, because containers share addresses and process ids.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cache
from ipaddress import ip_address
from typing import Final

from otel_mqtrace._clock import Clock, SystemClock

__all__ = ["UniqueId", "UniqueIds", "new_unique_id", "own_address", "read_unique_id"]

_SHAPE: Final = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
_TAIL_BYTES: Final = 12  # everything but the address
_NS_PER_MS: Final = 1_000_000
_LOW_16: Final = 0xFFFF
_UNROUTABLE: Final = ("192.0.2.1", 9)  # RFC 5737, for documentation: connecting UDP to it sends nothing


@dataclass(frozen=True, slots=True)
class UniqueId:
    """The parts of a unique id; ``ms_in_month`` counts from the writer's own midnight of the first of the month."""

    address: str
    pid: int
    origin: int
    ms_in_month: int
    counter: int


@dataclass(frozen=True, slots=True)
class _Prefix:
    pid: int
    text: str


@dataclass(frozen=True, slots=True)
class _Month:
    begin_ms: int
    end_ms: int  # exclusive


class UniqueIds:
    """Makes unique ids; callable from any thread without a lock, and after a fork.

    Everything but the clock is found out on first use; give ``address`` (IPv4), ``pid`` and ``origin`` (32 bits) to
    make the ids of a test predictable.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        address: str | None = None,
        pid: int | None = None,
        origin: int | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._address, self._pid, self._origin = address, pid, origin
        self._prefix = _Prefix(-1, "")
        self._month = _Month(0, 0)
        self._counter = itertools.count()  # next() on it is one atomic step

    def new(self) -> str:
        """Return the next id: 32 upper-case hex digits."""
        pid = os.getpid() if self._pid is None else self._pid
        prefix = self._prefix
        if prefix.pid != pid:  # first use, or the child of a fork
            prefix = self._prefix = _Prefix(pid, self._origin_text(pid))
        now_ms = self._clock.wall_ns() // _NS_PER_MS
        month = self._month
        if not month.begin_ms <= now_ms < month.end_ms:
            month = self._month = _month_around(now_ms)
        return f"{prefix.text}{now_ms - month.begin_ms:08X}{next(self._counter) & _LOW_16:04X}"

    def _origin_text(self, pid: int) -> str:
        address = ip_address(self._address or own_address()).packed.hex().upper()
        origin = int.from_bytes(os.urandom(4), "big") if self._origin is None else self._origin
        return f"{address}{pid & _LOW_16:04X}{origin:08X}"


_OF_THIS_PROCESS: Final = UniqueIds()


def new_unique_id(*, ids: UniqueIds | None = None) -> str:
    """Return a new unique id from ``ids``, by default the ones of this process."""
    return (ids or _OF_THIS_PROCESS).new()


def read_unique_id(text: str) -> UniqueId | None:
    """Take a unique id apart; ``None`` when ``text`` is not one (32 hex digits, or 56 with an IPv6 address)."""
    if not _SHAPE.fullmatch(text):
        return None
    raw = bytes.fromhex(text)
    address, tail = raw[:-_TAIL_BYTES], raw[-_TAIL_BYTES:]
    return UniqueId(
        address=str(ip_address(address)),
        pid=int.from_bytes(tail[0:2], "big"),
        origin=int.from_bytes(tail[2:6], "big"),
        ms_in_month=int.from_bytes(tail[6:10], "big"),
        counter=int.from_bytes(tail[10:12], "big"),
    )


def _month_around(now_ms: int) -> _Month:
    epoch = datetime(1970, 1, 1, tzinfo=timezone.utc)
    begin = (epoch + timedelta(milliseconds=now_ms)).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    end = (begin + timedelta(days=32)).replace(day=1)
    millisecond = timedelta(milliseconds=1)
    return _Month((begin - epoch) // millisecond, (end - epoch) // millisecond)


def own_address() -> str:
    """Return the IPv4 address this machine sends from, loopback when it has no network; never asks a name server."""
    try:
        return _sending_address()
    except OSError:  # kept by nobody: there may be a network, or a free file descriptor, the next time
        return "127.0.0.1"


@cache
def _sending_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_UNROUTABLE)
        return str(probe.getsockname()[0])
