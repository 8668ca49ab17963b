"""A persistent connection to a server of a RocketMQ cluster, with many requests on the way at once, and addresses."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - a socket imports it; where a worker did so during a fork, the child hung
import itertools
import socket
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import seconds_until
from otel_mqtrace._errors import PeerError, UsageError, describe_reason
from otel_mqtrace.rocketmq.commands import FrameReader, ProtocolError, encode_command

if TYPE_CHECKING:
    from otel_mqtrace._clock import Clock, MonotonicNs
    from otel_mqtrace.rocketmq.commands import Command

_RECEIVE_BYTES: Final = 256 * 1024
_MAX_OPAQUE: Final = 0x7FFFFFFF
_MAX_PORT: Final = 65_535


class SilentError(PeerError):
    """No answer came: no server listens there, the connection broke, or the time was over."""


class Connection:
    """One socket and the answers that came over it, in whatever order; shut after the first error.

    One thread uses it at a time; only :meth:`wake` may come from another thread.
    """

    def __init__(self, address: str, timeout_s: float, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._reader = FrameReader()
        self._numbers = itertools.count(1)
        self._answers: dict[int, Command | None] = {}
        """The number of each request on the way → its answer, once it came."""
        try:
            self._socket = socket.create_connection(read_address(address), timeout=timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError, UsageError) as error:  # an address from a route may be malformed
            raise SilentError(f"{address} cannot be reached ({describe_reason(error)})") from error

    def post(self, command: Command, timeout_s: float) -> int:
        """Send ``command`` and return its number, for :meth:`answer`.

        Raises:
            SilentError: it could not be sent.
        """
        number = next(self._numbers) & _MAX_OPAQUE
        try:
            self._socket.settimeout(max(timeout_s, 0.001))
            self._socket.sendall(encode_command(replace(command, opaque=number)))
        except OSError as error:
            self.shut()  # half a frame may be out: nothing more can follow it
            raise SilentError(f"{self.address} takes no request ({describe_reason(error)})") from error
        self._answers[number] = None
        return number

    def answer(self, number: int, deadline: MonotonicNs) -> Command:
        """Return the answer to a posted command.

        Raises:
            SilentError: none came by ``deadline``.
            ProtocolError: the bytes are not an answer.
        """
        while (answer := self._answers[number]) is None:
            left_s = seconds_until(self._clock, deadline)
            # after the deadline, too: it may have come while the answers of others were waited for
            if not self._receive(left_s) and left_s <= 0:
                break
        del self._answers[number]
        if answer is None:
            raise SilentError(f"{self.address} did not answer in time")
        return answer

    def is_open(self) -> bool:
        """Take what came meanwhile; return whether the connection stands: servers close idle ones."""
        try:
            while self._receive(0):
                pass
        except PeerError:
            return False
        return True

    def wake(self) -> None:
        """End what waits. Not closed here: another thread may be reading, and the descriptor's number would go on."""
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def shut(self) -> None:
        """End the connection."""
        self.wake()
        self._socket.close()

    def leave(self) -> None:
        """Close this process's copy of the socket; another one still uses it."""
        self._socket.close()

    def _receive(self, timeout_s: float) -> bool:
        """Take what comes within ``timeout_s``; return whether anything did."""
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(_RECEIVE_BYTES)
            commands = self._reader.feed(data)
        except OSError as error:
            # the system's own TimeoutError has a number: the other side is gone
            if isinstance(error, BlockingIOError) or (isinstance(error, TimeoutError) and error.errno is None):
                return False
            self.shut()
            raise SilentError(f"{self.address} broke the connection ({describe_reason(error)})") from error
        except ProtocolError as error:
            self.shut()
            raise ProtocolError(f"{self.address} does not answer as RocketMQ does: {error}") from error
        if not data:
            self.shut()
            raise SilentError(f"{self.address} closed the connection")
        for command in commands:
            # Servers also send requests and notifications; none needs an answer.
            if command.is_response and command.opaque in self._answers:
                self._answers[command.opaque] = command
        return True


def read_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``[v6]:port`` or a bare IPv6 address and port as Java writes it.

    Raises:
        UsageError: it has another form.
    """
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= _MAX_PORT:
        raise UsageError(f"{address!r} is not an address: give host:port")
    return host, int(port)


def read_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of ``host:port[;host:port…]``; commas do as well.

    Raises:
        UsageError: no address is given, or one is wrong.
    """
    addresses = [each.strip() for each in text.replace(",", ";").split(";") if each.strip()]
    if not addresses:
        raise UsageError("no name server is named: give host:port[;host:port…]")
    for each in addresses:
        read_address(each)
    return tuple(dict.fromkeys(addresses))
