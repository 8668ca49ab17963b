"""RocketMQ's two message ids: the client's unique id, and the broker's offset id.

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
from typing import Final

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


def is_offset_id(text: str) -> bool:
    """Return whether ``text`` can be an offset id: length and digits, a port and an offset that there can be.

    As ``MessageDecoder.createMessageId`` writes it, in hex digits: address 8 (IPv6: 32), port 8, offset 16.
    """
    return bool(ID_SHAPE.fullmatch(text)) and int(text[-24:-16], 16) <= _LOW_16 and int(text[-16:], 16) < 1 << 63


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
