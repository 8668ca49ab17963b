"""The queues of a topic, from the name servers' ``TopicRouteData`` (apache/rocketmq). No I/O.

Name servers before 4.9.4 write JSON with bare numbers for names; it is fixed here before it is read.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace.rocketmq.frames import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Queue", "TopicRoute", "read_masters", "read_route"]

_MASTER: Final = 0
_WRITE, _READ = 2, 4  # bits of a queue's permissions
_TEXT_OR_BARE_NAME: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|(?<=[{,])\s*(-?\d+)\s*:', re.DOTALL)
_MAX_QUEUES: Final = 65_536
"""More queues than any topic has; a broken answer must not make us allocate without end."""


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic: ``queue_id`` counts within the broker of that name."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} [{self.broker} {self.queue_id}]"


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where the queues of one topic are; ``addresses`` has every broker's by id, 0 being the master."""

    readable: tuple[Queue, ...] = ()
    writable: tuple[Queue, ...] = ()
    addresses: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def readers(self, broker: str) -> tuple[str, ...]:
        """Addresses that can be asked for messages: the master first, then its slaves."""
        return tuple(address for _, address in sorted(self.addresses.get(broker, {}).items()))

    def master(self, broker: str) -> tuple[str, ...]:
        """The one address that takes messages and offsets; none while the master is away."""
        return tuple(address for number, address in self.addresses.get(broker, {}).items() if number == _MASTER)


def read_route(topic: str, body: bytes) -> TopicRoute:
    """Return the route of ``topic`` that ``body`` tells.

    Raises:
        ProtocolError: it tells none.
    """
    said = _read(body)
    try:
        addresses = {str(each["brokerName"]): _by_id(each["brokerAddrs"]) for each in said.get("brokerDatas") or ()}
        queues = [
            (str(each["brokerName"]), int(each["perm"]), int(each["readQueueNums"]), int(each["writeQueueNums"]))
            for each in said.get("queueDatas") or ()
        ]
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"the route of {topic} cannot be read: {error!r}") from error
    if any(max(readers, writers) > _MAX_QUEUES for _, _, readers, writers in queues):
        raise ProtocolError(f"the route of {topic} tells of more than {_MAX_QUEUES} queues")
    return TopicRoute(
        tuple(sorted(Queue(topic, name, i) for name, perm, n, _ in queues if perm & _READ for i in range(n))),
        tuple(sorted(Queue(topic, name, i) for name, perm, _, n in queues if perm & _WRITE for i in range(n))),
        addresses,
    )


def read_masters(body: bytes) -> tuple[str, ...]:
    """Return the address of every master that the cluster's description names.

    Raises:
        ProtocolError: it is none.
    """
    said = _read(body)
    try:
        brokers = [_by_id(each["brokerAddrs"]) for each in (said.get("brokerAddrTable") or {}).values()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the cluster's brokers cannot be read: {error!r}") from error
    return tuple(sorted(addresses[_MASTER] for addresses in brokers if _MASTER in addresses))


def _by_id(addresses: Mapping[str, Any]) -> dict[int, str]:
    return {int(number): str(address) for number, address in addresses.items()}


def _read(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(_TEXT_OR_BARE_NAME.sub(_quoted, body.decode()))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a name server's answer is no JSON: {error}") from error
    if not isinstance(said, dict):
        raise ProtocolError("a name server's answer is no JSON object")
    return said


def _quoted(found: re.Match[str]) -> str:
    return found[0] if found[1] is None else f'"{found[1]}":'
