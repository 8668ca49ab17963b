"""Persistent connections to the servers of a RocketMQ cluster, with many requests on the way at once.

One thread uses them at a time; only :meth:`Connections.interrupt` may come from another thread, and ends what waits.
A connection is opened when a request needs it, and again after it broke or a server closed it. A forked child opens its
own and leaves the parent's alone.
"""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from otel_mqtrace._clock import seconds_until
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.rocketmq.commands import FrameReader, ProtocolError, encode_command

if TYPE_CHECKING:
    from otel_mqtrace._clock import Clock, MonotonicNs
    from otel_mqtrace.rocketmq.commands import Command

_RECEIVE_BYTES: Final = 256 * 1024
_MAX_OPAQUE: Final = 0x7FFFFFFF
_MAX_PORT: Final = 65_535


class SilentError(PeerError):
    """No answer came: no server listens there, the connection broke, or the time was over."""


@dataclass(frozen=True, slots=True)
class Posted:
    """A request that is on its way."""

    address: str
    opaque: int
    connection: _Connection


class Connections:
    """The connections of one client, by address; ``connect_timeout_ms`` leaves time for the next server."""

    def __init__(self, *, connect_timeout_ms: float, clock: Clock) -> None:
        self._connect_timeout_s = connect_timeout_ms / 1e3
        self._clock = clock
        self._open: dict[str, _Connection] = {}
        self._opaque = itertools.count(1)
        self._process = os.getpid()
        self._closed = False

    def post(self, address: str, command: Command, deadline: MonotonicNs) -> Posted:
        """Send ``command``; :meth:`answer` waits for the answer.

        Raises:
            SilentError: it could not be sent.
        """
        numbered = replace(command, opaque=next(self._opaque) & _MAX_OPAQUE)
        connection = self._connect(address, deadline)
        connection.send(encode_command(numbered), numbered.opaque, seconds_until(self._clock, deadline))
        return Posted(address, numbered.opaque, connection)

    def answer(self, posted: Posted, deadline: MonotonicNs) -> Command:
        """Return the answer to a posted command.

        Raises:
            SilentError: none came by ``deadline``.
            ProtocolError: the bytes are not an answer.
        """
        connection = posted.connection
        while True:
            answer = connection.take(posted.opaque)
            if answer is not None:
                return answer
            left_s = seconds_until(self._clock, deadline)
            if left_s <= 0:
                connection.catch_up()  # it may have come while the answers of others were waited for
                answer = connection.take(posted.opaque)
                if answer is None:
                    connection.forget(posted.opaque)
                    raise SilentError(f"{posted.address} did not answer in time")
                return answer
            try:
                connection.receive(left_s)
            except SilentError:
                connection.shut()
                raise
            except ProtocolError as error:
                connection.shut()
                raise ProtocolError(f"{posted.address} does not answer as RocketMQ does: {error}") from error

    def interrupt(self) -> None:
        """Refuse more, and end what waits in another thread; that one still has to :meth:`close`."""
        self._closed = True
        for connection in list(self._open.values()):
            connection.wake()

    def close(self) -> None:
        """Close all and refuse more."""
        self._closed = True
        for connection in self._open.values():
            connection.shut()

    def _connect(self, address: str, deadline: MonotonicNs) -> _Connection:
        if self._process != os.getpid():  # the sockets are the parent's, too
            for inherited in self._open.values():
                inherited.leave()
            self._open.clear()
            self._process = os.getpid()
        if self._closed:
            raise SilentError("the connections were closed")
        connection = self._open.get(address)
        if connection is not None and not connection.catch_up():
            connection.shut()
            connection = None
        if connection is None:
            left_s = min(seconds_until(self._clock, deadline), self._connect_timeout_s)
            if left_s <= 0:
                raise SilentError(f"{address} was not reached in time")
            connection = self._open[address] = _Connection(address, left_s)
            if self._closed:  # meanwhile, and the others only were woken
                connection.wake()
        return connection


def _reason_of(error: Exception) -> str:
    """Return the system's words without its number."""
    return str(getattr(error, "strerror", None) or error)


class _Connection:
    """One socket and the answers that came over it, in whatever order."""

    def __init__(self, address: str, timeout_s: float) -> None:
        self._address = address
        self._reader = FrameReader()
        self._waiting: set[int] = set()
        self._answers: dict[int, Command] = {}
        try:
            self._socket = socket.create_connection(read_address(address), timeout=timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError, UsageError) as error:  # an address from a route may be malformed
            raise SilentError(f"{address} cannot be reached ({_reason_of(error)})") from error

    def send(self, frame: bytes, opaque: int, timeout_s: float) -> None:
        self._waiting.add(opaque)
        try:
            self._socket.settimeout(max(timeout_s, 0.001))
            self._socket.sendall(frame)
        except OSError as error:
            self.shut()  # half a frame may be out: nothing more can follow it
            raise SilentError(f"{self._address} takes no request ({_reason_of(error)})") from error

    def receive(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for bytes. A time-out is not an error: the caller checks its deadline."""
        try:
            self._socket.settimeout(timeout_s)
            data = self._socket.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return
        except OSError as error:
            raise SilentError(f"{self._address} broke the connection ({_reason_of(error)})") from error
        if not data:
            raise SilentError(f"{self._address} closed the connection")
        self._keep(data)

    def take(self, opaque: int) -> Command | None:
        return self._answers.pop(opaque, None)

    def forget(self, opaque: int) -> None:
        self._waiting.discard(opaque)

    def catch_up(self) -> bool:
        """Take what came meanwhile; return whether the connection stands: servers close idle ones."""
        try:
            self._socket.settimeout(0)
            while data := self._socket.recv(_RECEIVE_BYTES):
                self._keep(data)
        except (BlockingIOError, InterruptedError):
            return True
        except (OSError, ProtocolError):
            return False
        return False

    def wake(self) -> None:
        """End what waits. Not closed here: another thread may be reading, and the descriptor's number would go on."""
        with suppress(OSError):  # the other side was faster
            self._socket.shutdown(socket.SHUT_RDWR)

    def shut(self) -> None:
        self.wake()
        self._socket.close()

    def leave(self) -> None:
        """Close this process's copy of the socket; another one still uses it."""
        self._socket.close()

    def _keep(self, data: bytes) -> None:
        for command in self._reader.feed(data):
            # Servers also send requests and notifications; none needs an answer.
            if command.is_response and command.opaque in self._waiting:
                self._waiting.discard(command.opaque)
                self._answers[command.opaque] = command


def read_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``[v6]:port`` or a bare IPv6 address and port as Java writes it.

    Raises:
        UsageError: it is none of them.
    """
    host, _, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) <= _MAX_PORT:
        raise UsageError(f"{address!r} is not an address: give host:port")
    return host, int(port)


def read_addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of ``host:port[;host:port…]``; commas do as well.

    Raises:
        UsageError: there is none, or one is wrong.
    """
    addresses = [each.strip() for each in text.replace(",", ";").split(";") if each.strip()]
    if not addresses:
        raise UsageError("no name server is named: give host:port[;host:port…]")
    for each in addresses:
        read_address(each)
    return tuple(dict.fromkeys(addresses))
