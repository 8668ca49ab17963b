"""A RocketMQ cluster: name servers in turn, routes of topics, requests to the brokers behind them.

A name server that is silent is passed over, and so is a master when one of its slaves can answer. Name servers before
4.9.4 write their ``TopicRouteData`` as JSON with bare numbers for names; they are quoted before it is read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._clock import NS_PER_MS, MonotonicNs
from otel_mqtrace._errors import PeerError
from otel_mqtrace.rocketmq import commands
from otel_mqtrace.rocketmq.commands import SUCCEEDED, ProtocolError, Queue, RefusedError, check_answer, sign
from otel_mqtrace.rocketmq.connections import Connections, Posted, SilentError, read_addresses

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.rocketmq.commands import Command, Credentials

_MASTER: Final = 0
_WRITE, _READ = 2, 4  # bits of a queue's permissions
_TEXT_OR_BARE_NAME: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|(?<=[{,])\s*(-?\d+)\s*:', re.DOTALL)
_MAX_QUEUES: Final = 65_536
"""More queues than any topic has; a broken answer must not make us allocate without end."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where the queues of one topic are; ``addresses`` has every broker's by id, 0 being the master."""

    readable: tuple[Queue, ...] = ()
    writable: tuple[Queue, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def readers(self, broker: str) -> tuple[str, ...]:
        """Addresses that serve messages: the master first, then its slaves."""
        return tuple(address for _, address in sorted(self.addresses.get(broker, {}).items()))

    def master(self, broker: str) -> tuple[str, ...]:
        """The one address that takes messages and offsets; none while the master is away."""
        return tuple(address for number, address in self.addresses.get(broker, {}).items() if number == _MASTER)


def read_route(topic: str, body: bytes) -> TopicRoute:
    """Return the route of ``topic`` in ``body``.

    Raises:
        ProtocolError: it holds none.
    """
    document = _read(body)
    try:
        addresses = {str(each["brokerName"]): _by_id(each["brokerAddrs"]) for each in document.get("brokerDatas") or ()}
        queues = [
            (str(each["brokerName"]), int(each["perm"]), int(each["readQueueNums"]), int(each["writeQueueNums"]))
            for each in document.get("queueDatas") or ()
        ]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"the route of {topic} cannot be read: {error!r}") from error
    if any(max(readers, writers) > _MAX_QUEUES for _, _, readers, writers in queues):
        raise ProtocolError(f"the route of {topic} has more than {_MAX_QUEUES} queues")
    return TopicRoute(
        tuple(sorted(Queue(topic, name, i) for name, perm, n, _ in queues if perm & _READ for i in range(n))),
        tuple(sorted(Queue(topic, name, i) for name, perm, _, n in queues if perm & _WRITE for i in range(n))),
        addresses,
    )


def read_masters(body: bytes) -> tuple[str, ...]:
    """Return the address of every master that the cluster's description names.

    Raises:
        ProtocolError: the body cannot be read.
    """
    document = _read(body)
    try:
        brokers = [_by_id(each["brokerAddrs"]) for each in (document.get("brokerAddrTable") or {}).values()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the cluster's brokers cannot be read: {error!r}") from error
    return tuple(sorted(addresses[_MASTER] for addresses in brokers if _MASTER in addresses))


def _by_id(addresses: Mapping[str, Any]) -> dict[int, str]:
    return {int(number): str(address) for number, address in addresses.items()}


def _read(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(_TEXT_OR_BARE_NAME.sub(_quoted, body.decode()))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a name server's answer is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ProtocolError("a name server's answer is not a JSON object")
    return document


def _quoted(match: re.Match[str]) -> str:
    return match[0] if match[1] is None else f'"{match[1]}":'


_ROUTE_NS: Final = 30_000_000_000  # as long as Java's clients trust one
_CONNECT_TIMEOUT_MS: Final = 3_000


@dataclass(frozen=True, slots=True)
class Request:
    """A command, named ``doing`` in errors, the servers for it in order of preference, and the accepted codes."""

    addresses: Sequence[str]
    command: Command
    doing: str
    accepted: Collection[int] = SUCCEEDED


class Cluster:
    """The servers behind ``namesrv``, ``host:port[;host:port…]``.

    ``timeout_ms`` limits one answer, unless a request has an earlier deadline.

    Raises:
        UsageError: an address is wrong.
    """

    def __init__(self, namesrv: str, *, credentials: Credentials | None, timeout_ms: float, clock: Clock) -> None:
        self.namesrv = namesrv
        self._name_servers = list(read_addresses(namesrv))
        self._credentials = credentials
        self._timeout_ns = int(timeout_ms * NS_PER_MS)
        self._clock = clock
        self._connections = Connections(connect_timeout_ms=min(timeout_ms, _CONNECT_TIMEOUT_MS), clock=clock)
        self._routes: dict[str, tuple[int, TopicRoute]] = {}

    def interrupt(self) -> None:
        """From any thread: refuse more, and end what waits; who uses the client still has to :meth:`close` it."""
        self._connections.interrupt()

    def close(self) -> None:
        """Close every connection."""
        self._connections.close()

    def route(self, topic: str, deadline: MonotonicNs | None = None) -> TopicRoute:
        """Return where the queues of ``topic`` are, at most 30 s old.

        Raises:
            RefusedError: the topic does not exist (``TOPIC_NOT_EXIST``).
            PeerError: no name server answers.
        """
        known = self._routes.get(topic)
        now_ns = self._clock.monotonic_ns()
        if known is not None and now_ns - known[0] < _ROUTE_NS:
            return known[1]
        route = read_route(topic, self._of_name_server(commands.route(topic), f"the route of {topic}", deadline).body)
        self._routes[topic] = (now_ns, route)
        return route

    def forget_route(self, topic: str) -> None:
        """Discard the cached route of ``topic``, which proved outdated."""
        self._routes.pop(topic, None)

    def masters(self, deadline: MonotonicNs | None = None) -> tuple[str, ...]:
        """Return the address of every master."""
        return read_masters(self._of_name_server(commands.cluster_info(), "the list of brokers", deadline).body)

    def call(self, request: Request, deadline: MonotonicNs | None = None) -> Command:
        """Return the answer to ``request``.

        Raises:
            RefusedError: a server refused; no other server is tried.
            PeerError: no server answers.
        """
        [answer] = self.call_all([request], deadline)
        if isinstance(answer, PeerError):
            raise answer
        return answer

    def call_all(self, requests: Sequence[Request], deadline: MonotonicNs | None = None) -> list[Command | PeerError]:
        """Send all ``requests`` at the same time; return the answer to each, or the error."""
        give_up = self._by(deadline)
        posted = [self._posted(request, 0, give_up) for request in requests]
        return [self._answered(request, way, give_up) for request, way in zip(requests, posted, strict=True)]

    def _answered(self, request: Request, posted: Posted | PeerError, deadline: MonotonicNs) -> Command | PeerError:
        """Wait for one answer; a server that is silent for its share of the time gives its place to the next."""
        left = len(request.addresses)
        while True:
            try:
                if not isinstance(posted, PeerError):
                    answer = self._connections.answer(posted, self._share(deadline, left))
                    return check_answer(answer, posted.address, request.doing, request.accepted)
            except RefusedError as refusal:
                return refusal
            except (SilentError, ProtocolError) as error:
                posted = error
            left -= 1
            if left <= 0:
                return posted
            posted = self._posted(request, len(request.addresses) - left, deadline)

    def _posted(self, request: Request, position: int, deadline: MonotonicNs) -> Posted | PeerError:
        if not request.addresses:
            return SilentError(f"{request.doing} needs a master, and it is away")
        try:
            return self._connections.post(
                request.addresses[position], sign(request.command, self._credentials), deadline
            )
        except SilentError as error:
            return error

    def _of_name_server(self, command: Command, doing: str, deadline: MonotonicNs | None) -> Command:
        """Return the answer of the first name server that gives one, and begin with that one the next time."""
        give_up = self._by(deadline)
        silent: list[str] = []
        for left, address in zip(range(len(self._name_servers), 0, -1), tuple(self._name_servers), strict=True):
            try:
                return self.call(Request((address,), command, doing), self._share(give_up, left))
            except (SilentError, ProtocolError) as error:
                silent.append(str(error))
                self._name_servers.append(self._name_servers.pop(0))
        alone = f"the name server {silent[0]}"
        raise SilentError(alone if len(silent) == 1 else f"no name server answers: {'; '.join(silent)}")

    def _share(self, deadline: MonotonicNs, servers: int) -> MonotonicNs:
        """Return until when the first of ``servers`` may take, so that the others have their turn."""
        now_ns = self._clock.monotonic_ns()
        return MonotonicNs(now_ns + (deadline - now_ns) // max(servers, 1))

    def _by(self, deadline: MonotonicNs | None) -> MonotonicNs:
        own = MonotonicNs(self._clock.monotonic_ns() + self._timeout_ns)
        return own if deadline is None else min(own, deadline)
