"""RocketMQ's remoting frames, their codes, their signature, and the answers of a name server. No I/O."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import struct
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

from otel_mqtrace._errors import PeerError

if TYPE_CHECKING:
    from collections.abc import Mapping


_MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Far above Java's default of 16 MiB: what announces more is not RocketMQ."""
# RemotingCommand of apache/rocketmq: length of what follows (4) · serialize type (1) and header length (3) · header,
# a JSON object · body. A server answers in the request's form, so RocketMQ's binary header (type 1) never comes.
_LENGTH: Final = struct.Struct(">I")
_PREFIX: Final = struct.Struct(">II")
_HEADER_LENGTH_MASK: Final = 0xFFFFFF
_JSON: Final = 0
_TYPE_SHIFT: Final = 24
_RESPONSE: Final = 1  # bit of the header's ``flag``
_LANGUAGE: Final = "PYTHON"
_VERSION: Final = 401
"""``MQVersion.V4_9_4``: name servers write standard JSON to it; newer versions may be refused."""


class ProtocolError(PeerError):
    """Bytes that violate RocketMQ's remoting protocol; the text names the error and its place."""


@dataclass(frozen=True, slots=True)
class Command:
    """A request or an answer.

    ``code`` is the request code, or in an answer the response code; ``opaque`` pairs the two; ``fields`` are the
    header's ``extFields``, texts by name; ``remark`` is a server's own sentence.
    """

    code: int
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    opaque: int = 0
    is_response: bool = False
    remark: str | None = None


def encode_command(command: Command) -> bytes:
    """Return ``command`` as one frame."""
    header: dict[str, Any] = {
        "code": command.code,
        "language": _LANGUAGE,
        "version": _VERSION,
        "opaque": command.opaque,
        "flag": _RESPONSE if command.is_response else 0,
        "extFields": dict(command.fields),
    }
    if command.remark is not None:
        header["remark"] = command.remark
    text = json.dumps(header).encode()
    return _PREFIX.pack(_LENGTH.size + len(text) + len(command.body), len(text)) + text + command.body


class FrameReader:
    """Cuts a stream of bytes into commands, however it arrives. After a :class:`ProtocolError` the stream is lost."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Command]:
        """Take ``data`` and return the commands that are complete now.

        Raises:
            ProtocolError: the data is not a frame.
        """
        self._buffer += data
        commands: list[Command] = []
        start = 0
        with memoryview(self._buffer) as view:
            while len(view) - start >= _PREFIX.size:
                (length,) = _LENGTH.unpack_from(view, start)
                if not _LENGTH.size <= length <= _MAX_FRAME_BYTES:
                    raise ProtocolError(f"a frame of {length} bytes is announced: this is not a RocketMQ remoting port")
                end = start + _LENGTH.size + length
                if end > len(view):
                    break
                commands.append(_decode(view[start + _LENGTH.size : end]))
                start = end
        del self._buffer[:start]
        return commands


def _decode(frame: memoryview) -> Command:
    """Return the command of ``frame``, which begins behind the length."""
    with frame:
        marked = _LENGTH.unpack_from(frame)[0]
        kind, header_end = marked >> _TYPE_SHIFT, _LENGTH.size + (marked & _HEADER_LENGTH_MASK)
        if kind != _JSON:
            raise ProtocolError(f"a header has serialize type {kind} instead of JSON (0)")
        if header_end > len(frame):
            raise ProtocolError(f"a header of {header_end - _LENGTH.size} bytes does not fit its frame")
        header, body = bytes(frame[_LENGTH.size : header_end]), bytes(frame[header_end:])
    try:
        document = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a header is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ProtocolError("a header is not a JSON object")
    remark = document.get("remark")
    return Command(
        code=_read_number(document, "code"),
        fields=_read_fields(document.get("extFields")),
        body=body,
        opaque=_read_number(document, "opaque"),
        is_response=bool(_read_number(document, "flag") & _RESPONSE),
        remark=None if remark is None else str(remark),
    )


def _read_number(header: Mapping[str, Any], name: str) -> int:
    value = header.get(name, 0)
    if type(value) is not int:
        raise ProtocolError(f"{name} of a header is not a number")
    return value


def _read_fields(fields: object) -> dict[str, str]:
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise ProtocolError("extFields of a header is not an object")
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}


AUTO_CREATE_TOPIC: Final = "TBW102"
"""The topic whose route stands for those that a broker with ``autoCreateTopicEnable`` makes at the first send."""


class RequestCode(IntEnum):
    """The codes of requests."""

    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    SEND_MESSAGE_V2 = 310


class ResponseCode(IntEnum):
    """What is answered, as far as it matters here."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FLOW_CONTROL = 215


SUCCEEDED: Final = frozenset({ResponseCode.SUCCESS})
STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
"""Answers to a send after which the master has the message, though perhaps not yet on disk or on a slave."""

PULLED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)
"""Answers to a pull that carry the next offset, with messages or without."""

_FIXES: Final[Mapping[int, str]] = {
    ResponseCode.NO_PERMISSION: "give the access key the right to this topic and group",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "create the consumer group (mqadmin updateSubGroup)",
    ResponseCode.TOPIC_NOT_EXIST: "create the topic (mqadmin updateTopic), or traceTopicEnable=true on the brokers",
}


class RefusedError(PeerError):
    """The server at ``address`` refused a request, which ``doing`` names, with a response ``code``."""

    def __init__(self, address: str, answer: Command, doing: str) -> None:
        code = answer.code
        known = ResponseCode(code).name if code in set(ResponseCode) else "unknown"
        reason = (answer.remark or "no reason given").splitlines()[0]
        fix = f"; {_FIXES[code]}" if code in _FIXES else ""
        super().__init__(f"{address} refused {doing}: {code} ({known}): {reason}{fix}")
        self.address = address
        self.code = code


def is_unknown_topic(error: object) -> bool:
    """Return whether a server refused a request because its topic does not exist."""
    return isinstance(error, RefusedError) and error.code == ResponseCode.TOPIC_NOT_EXIST


@dataclass(frozen=True, slots=True, order=True)
class Queue:
    """One queue of a topic: ``queue_id`` counts within the broker of that name."""

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic} [{self.broker} {self.queue_id}]"


def make_command(code: RequestCode, /, **fields: object) -> Command:
    """Return a request with ``fields``, which are written as Java does."""
    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
    return Command(int(code), texts)


def make_queue_command(code: RequestCode, queue: Queue, /, **fields: object) -> Command:
    """Return a request about one queue."""
    return make_command(code, topic=queue.topic, queueId=queue.queue_id, bname=queue.broker, **fields)


# -- answers of a name server ------------------------------------------------------------------------------------------
_MASTER: Final = 0
_WRITE, _READ = 2, 4  # bits of a queue's permissions
_TEXT_OR_BARE_NAME: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|(?<=[{,])\s*(-?\d+)\s*:', re.DOTALL)
"""Name servers before 4.9.4 write JSON with bare numbers for names; they are quoted before it is read."""
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
    document = _parse_json(body)
    try:
        addresses = {
            str(each["brokerName"]): _index_by_id(each["brokerAddrs"]) for each in document.get("brokerDatas") or ()
        }
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
    document = _parse_json(body)
    try:
        brokers = [_index_by_id(each["brokerAddrs"]) for each in (document.get("brokerAddrTable") or {}).values()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the cluster's brokers cannot be read: {error!r}") from error
    return tuple(sorted(addresses[_MASTER] for addresses in brokers if _MASTER in addresses))


def _index_by_id(addresses: Mapping[str, Any]) -> dict[int, str]:
    return {int(number): str(address) for number, address in addresses.items()}


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        text = _TEXT_OR_BARE_NAME.sub(lambda match: match[0] if match[1] is None else f'"{match[1]}":', body.decode())
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a name server's answer is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ProtocolError("a name server's answer is not a JSON object")
    return document


# -- access control ---------------------------------------------------------------------------------------------------
_ACCESS_KEY: Final = "AccessKey"
_SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """The client's access control keys. The secret one is never shown."""

    access_key: str
    secret_key: str = field(repr=False)


def sign(command: Command, credentials: Credentials | None) -> Command:
    """Return ``command`` with the access key and its signature among the fields; as it is without credentials.

    As ``AclClientRPCHook`` of apache/rocketmq: HMAC-SHA1 under the secret key over the values of all fields, in the
    order of their names, and the body. ACL 1.x and the authentication of 5.3 and later check the same.
    """
    if credentials is None:
        return command
    fields = {**command.fields, _ACCESS_KEY: credentials.access_key}
    fields.pop(_SIGNATURE, None)
    in_order = sorted(fields, key=lambda name: name.encode("utf-16-be", "surrogatepass"))  # as Java sorts
    values = "".join(fields[name] for name in in_order)
    content = values.encode("utf-8", "replace") + command.body
    digest = hmac.new(credentials.secret_key.encode(), content, hashlib.sha1).digest()
    return replace(command, fields={**fields, _SIGNATURE: base64.b64encode(digest).decode()})
