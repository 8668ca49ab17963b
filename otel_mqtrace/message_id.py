"""RocketMQ's two message ids, made and read: the client's unique id, and the broker's offset id.

Both have 32 or 56 hexadecimal digits: only the field distinguishes them.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
from datetime import datetime, timedelta, timezone
from functools import cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from otel_mqtrace._clock import NS_PER_MS, Clock, SystemClock
from otel_mqtrace._workers import restart_in_child

ID_SHAPE: Final = re.compile(r"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56}")
_LOW_16: Final = 0xFFFF
_HEX: Final = [f"{number:02X}" for number in range(256)]
_UNROUTABLE: Final = ("192.0.2.1", 9)  # RFC 5737, for documentation: connecting UDP to it sends nothing


# As MessageClientIDSetter writes it, in hex digits: address 8 (IPv6: 32), process id modulo 65536 4, a number of the
# class loader 8, milliseconds since the start of the month 8, a counter modulo 65536 4. Our month starts in UTC, and a
# random number per process replaces the class loader: containers share addresses and process ids.
class UniqueIds:
    """Makes unique ids; callable from any thread without a lock, and after a fork.

    Everything but the clock is found out on first use; give ``address`` (IPv4, or IPv6 for ids of 56 digits), ``pid``
    and ``origin`` (32 bits) to make the ids of a test predictable.
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
        self._prefix = -1, ""  # of a process id
        self._month_ms = range(0)
        self._stamp = -1, ""  # of a millisecond
        self._counter = itertools.count()  # next() on it is one atomic step
        restart_in_child(self)

    def new(self) -> str:
        """Return the next id: 32 upper-case hex digits, 56 with an IPv6 address."""
        now_ms = self._clock.wall_ns() // NS_PER_MS
        stamp_ms, text = self._stamp
        if stamp_ms != now_ms:
            text = self._compute_prefix(now_ms)
            self._stamp = now_ms, text
        number = next(self._counter)
        return f"{text}{_HEX[number >> 8 & 0xFF]}{_HEX[number & 0xFF]}"  # half the time of formatting it

    def _compute_prefix(self, now_ms: int) -> str:
        """Return the common prefix of one millisecond's ids; computing it takes as long as all the rest.

        A fork by Python calls a hook. After one by C, which does not, parent and child may draw the same ids for the
        rest of that millisecond.
        """
        pid = os.getpid() if self._pid is None else self._pid
        known_pid, prefix = self._prefix
        if known_pid != pid:  # first use, or the child of a fork
            address = ip_address(self._address or own_address()).packed.hex().upper()
            origin = int.from_bytes(os.urandom(4), "big") if self._origin is None else self._origin
            prefix = f"{address}{pid & _LOW_16:04X}{origin:08X}"
            self._prefix = pid, prefix
        month_ms = self._month_ms
        if now_ms not in month_ms:
            month_ms = self._month_ms = _month_around(now_ms)
        return f"{prefix}{now_ms - month_ms.start:08X}"

    def after_fork(self) -> None:
        """Start over in a child process, within the millisecond too."""
        self._stamp = -1, ""


_of_this_process: Final = UniqueIds()
new_unique_id: Final = _of_this_process.new
"""Return a new unique id of this process."""


class UniqueId(NamedTuple):
    """The parts of a unique id; ``origin`` is the class loader's number, ``ms_in_month`` counts in the maker's time."""

    address: str
    pid: int
    origin: int
    ms_in_month: int
    counter: int

    def made_ms(self, before_ms: int) -> int:
        """Return when it was made, in epoch milliseconds: the latest such time up to ``before_ms``.

        The id names no month: ``before_ms`` is a time when it existed, such as its record's. Ours counts in UTC, and
        Java's in local time: add the maker's offset to ``before_ms`` and take it off the result.
        """
        start_ms = _month_around(before_ms).start
        if start_ms + self.ms_in_month > before_ms:
            start_ms = _month_around(start_ms - 1).start
        return start_ms + self.ms_in_month


def read_unique_id(text: str) -> UniqueId | None:
    """Return the parts of a unique id; ``None`` for a text of another length or with other digits."""
    if not ID_SHAPE.fullmatch(text):
        return None
    return UniqueId(str(ip_address(bytes.fromhex(text[:-24]))), *_read_numbers(text, 24, 20, 12, 4))


class OffsetId(NamedTuple):
    """The parts of an offset id: the broker that stored the message, and the offset in its commit log."""

    address: str
    port: int
    offset: int


def new_offset_id(address: str, port: int, offset: int) -> str:
    """Return an offset id as ``MessageDecoder.createMessageId`` writes it, in hex digits.

    Address 8 (IPv6: 32), port 8, offset 16. Raises ``ValueError`` for what none can name.
    """
    text = f"{ip_address(address).packed.hex().upper()}{port:08X}{offset:016X}"
    if read_offset_id(text) is None:
        raise ValueError(f"no offset id can name port {port} and offset {offset}")
    return text


def read_offset_id(text: str) -> OffsetId | None:
    """Return the parts of an offset id; ``None`` also for a port or an offset that there cannot be."""
    if not ID_SHAPE.fullmatch(text):
        return None
    port, offset = _read_numbers(text, 24, 16)
    is_possible = port <= _LOW_16 and offset < 1 << 63
    return OffsetId(str(ip_address(bytes.fromhex(text[:-24]))), port, offset) if is_possible else None


def _read_numbers(text: str, *starts: int) -> list[int]:
    """Return the numbers that begin so many hex digits before the end, each up to the next."""
    return [int(text[-start : len(text) - end], 16) for start, end in zip(starts, (*starts[1:], 0), strict=True)]


def _month_around(now_ms: int) -> range:
    today = datetime.fromtimestamp(now_ms // 1_000, tz=timezone.utc)
    begin = datetime(today.year, today.month, 1, tzinfo=timezone.utc)
    end = (begin + timedelta(days=32)).replace(day=1)
    return range(int(begin.timestamp()) * 1_000, int(end.timestamp()) * 1_000)


def own_address() -> str:
    """Return the IPv4 address this machine sends from, loopback without a network; never queries a name server."""
    try:
        return _sending_address()
    except OSError:  # not kept: there may be a network, or a free file descriptor, the next time
        return "127.0.0.1"


@cache
def _sending_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(_UNROUTABLE)
        return str(probe.getsockname()[0])
