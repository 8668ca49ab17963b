"""A RocketMQ client: name servers in turn, routes, messages, offsets, sends, the index of keys.

A name server that is silent is passed over, and so is a master when one of its slaves can answer.

Facts from ``MQClientAPIImpl`` and the broker's processors of apache/rocketmq; the same words go to 4.x and 5.x.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from otel_mqtrace import semconv
from otel_mqtrace._clock import NS_PER_MS, MonotonicNs, SystemClock, compute_deadline, seconds_until
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.model import KEY_SEPARATOR
from otel_mqtrace.rocketmq.commands import (
    AUTO_CREATE_TOPIC,
    PULLED,
    STORED,
    SUCCEEDED,
    Credentials,
    ProtocolError,
    Queue,
    RefusedError,
    RequestCode,
    ResponseCode,
    TopicRoute,
    is_unknown_topic,
    make_command,
    make_queue_command,
    read_masters,
    read_route,
    sign,
)
from otel_mqtrace.rocketmq.connections import Connection, SilentError, read_addresses
from otel_mqtrace.rocketmq.messages import compress_body, decode_messages, encode_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from otel_mqtrace._clock import Clock
    from otel_mqtrace.rocketmq.commands import Command
    from otel_mqtrace.rocketmq.messages import StoredMessage


@dataclass(frozen=True, slots=True)
class Pulled:
    """The messages of one pull, and the next offset."""

    messages: list[StoredMessage]
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A message to send, to the queue it is for; ``properties`` beside ``KEYS`` and ``UNIQ_KEY``."""

    queue: Queue
    body: bytes
    properties: Mapping[str, str]


def _read_number(answer: Command, name: str) -> int:
    try:
        return int(answer.fields[name])
    except (KeyError, ValueError):
        raise ProtocolError(f"an answer has no number {name}") from None


def _has_key(message: StoredMessage, topic: str, key: str) -> bool:
    """Return whether ``message`` has ``key``: the index holds hashes of topic and key only."""
    known = message.properties
    return message.topic == topic and (
        key in known.get(semconv.HEADER_KEYS, "").split(KEY_SEPARATOR) or key == known.get(semconv.HEADER_UNIQ_KEY)
    )


def _name_broker(error: PeerError, broker: str, topic: str) -> PeerError:
    """Return ``error``, with the broker's name and the fix if no answer came."""
    if not isinstance(error, SilentError):
        return error
    return SilentError(f"the broker {broker} of {topic} does not answer: {error}; see that it runs")


_MAX_TIME_MS: Final = 0x7FFFFFFFFFFFFFFF
MAX_FOUND: Final = 64
"""What a broker gives from its index at most: mqadmin's own limit."""
_NEW_QUEUES: Final = 4  # of a topic that is made by its first message
_READ_WRITE: Final = 6
_PULLED_AT_ONCE: Final = 32
_SUSPEND, _SUBSCRIPTION = 2, 4  # bits of a pull's sysFlag; without the second a group would have to be online
_FOUND_OR_NOT: Final = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
_ROUTE_NS: Final = 30_000_000_000  # as long as Java's clients trust one
_CONNECT_TIMEOUT_S: Final = 3.0  # leaves time for the next server
_Posted = tuple[Connection, int]
"""A request on its way: its connection, and its number there."""


@dataclass(frozen=True, slots=True)
class Request:
    """A command, named ``doing`` in errors, the servers for it in order of preference, and the accepted codes."""

    addresses: Sequence[str]
    command: Command
    doing: str
    accepted: Collection[int] = SUCCEEDED


class RemotingClient:
    """A client of one RocketMQ cluster, 4.x or 5.x, over the remoting protocol.

    ``namesrv`` are name servers, ``host:port[;host:port…]``; the first that answers is used from then on. With
    ``access_key`` and ``secret_key``, which is never shown, every request is signed. ``timeout_ms`` limits one answer.
    Used by one thread at a time, except :meth:`interrupt`. A forked child opens new connections.

    Raises:
        UsageError: an address is wrong, or one of the two keys is missing.
    """

    def __init__(
        self,
        namesrv: str,
        *,
        access_key: str | None = None,
        secret_key: str | None = None,
        timeout_ms: float = 10_000,
        clock: Clock | None = None,
    ) -> None:
        if bool(access_key) != bool(secret_key):
            raise UsageError("an access key and a secret key belong together: give both or none")
        self._name_servers = deque(read_addresses(namesrv))
        credentials = Credentials(access_key, secret_key) if access_key and secret_key else None
        # Held by a function: a crash report that prints the client's attributes must show no secret key.
        self._sign: Callable[[Command], Command] = lambda command: sign(command, credentials)
        self._timeout_ms = timeout_ms
        self._clock = clock or SystemClock()
        self._connections: dict[str, Connection] = {}
        self._process = os.getpid()
        self._closed = False
        self._routes: dict[str, tuple[int, TopicRoute]] = {}

    # -- topics ------------------------------------------------------------------------------------------------------

    def writable(self, topic: str, *, deadline: MonotonicNs | None = None) -> tuple[Queue, ...]:
        """Return the queues of ``topic`` that a message can go to now: those whose broker has its master.

        For a missing topic, return the queues it will have on brokers that create topics at the first send.

        Raises:
            RefusedError: the topic does not exist, and no broker would create it.
            PeerError: no name server answers.
        """
        try:
            route = self.route(topic, deadline=deadline)
            queues: Iterable[Queue] = route.writable
        except RefusedError as refusal:
            if not is_unknown_topic(refusal):
                raise
            route = self._route_of_new_topics(refusal, deadline)
            queues = (
                Queue(topic, each.broker, each.queue_id) for each in route.writable if each.queue_id < _NEW_QUEUES
            )
        return tuple(queue for queue in queues if route.master(queue.broker))

    def _route_of_new_topics(self, refusal: RefusedError, deadline: MonotonicNs | None) -> TopicRoute:
        try:
            return self.route(AUTO_CREATE_TOPIC, deadline=deadline)
        except RefusedError:
            raise refusal from None

    def forget_route(self, topic: str) -> None:
        """Discard the cached route, which proved outdated, and that of new topics."""
        self._routes.pop(topic, None)
        self._routes.pop(AUTO_CREATE_TOPIC, None)

    def create_topic(self, topic: str, *, deadline: MonotonicNs | None = None) -> None:
        """Make ``topic`` on every master. Brokers refuse names that are RocketMQ's own: those they make themselves.

        Raises:
            PeerError: a broker refused, or does not answer.
        """
        command = make_command(
            RequestCode.UPDATE_AND_CREATE_TOPIC,
            topic=topic,
            defaultTopic=AUTO_CREATE_TOPIC,
            readQueueNums=_NEW_QUEUES,
            writeQueueNums=_NEW_QUEUES,
            perm=_READ_WRITE,
            topicFilterType="SINGLE_TAG",
            topicSysFlag=0,
            order=False,
        )
        for master in self.masters(deadline):
            self.call(Request((master,), command, f"the creation of {topic}"), deadline)
        self.forget_route(topic)

    # -- offsets -----------------------------------------------------------------------------------------------------

    def bounds(self, queues: Sequence[Queue], *, masters_only: bool = False) -> dict[Queue, tuple[int, int]]:
        """Return the oldest offset that is there, and the next message's, of each of ``queues``."""
        lowest = partial(make_queue_command, RequestCode.GET_MIN_OFFSET)
        highest = partial(make_queue_command, RequestCode.GET_MAX_OFFSET)
        lows = self._call_queues(queues, lowest, "the oldest offset", masters_only=masters_only)
        highs = self._call_queues(queues, highest, "the next offset", masters_only=masters_only)
        return {queue: (_read_number(lows[queue], "offset"), _read_number(highs[queue], "offset")) for queue in queues}

    def offsets_at(self, queues: Sequence[Queue], time_ms: int) -> dict[Queue, int]:
        """Return the offset of a message of each queue that was stored at ``time_ms``; of none, of one next to it.

        Of several a broker of 4.x gives any, and of two neighbours the nearer one (``ConsumeQueue``).
        """
        search = partial(make_queue_command, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=time_ms)
        answers = self._call_queues(queues, search, "the offset of a time")
        return {queue: _read_number(answer, "offset") for queue, answer in answers.items()}

    def committed(self, queues: Sequence[Queue], group: str) -> dict[Queue, int | None]:
        """Return what ``group`` remembers of each queue; ``None`` is nothing. Masters only: slaves may be behind."""
        answers = self._call_queues(
            queues,
            # without the flag a broker invents a zero
            partial(
                make_queue_command, RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup=group, setZeroIfNotFound=False
            ),
            f"the offset of {group}",
            masters_only=True,
            accepted=_FOUND_OR_NOT,
        )
        return {
            queue: _read_number(answer, "offset") if answer.code == ResponseCode.SUCCESS else None
            for queue, answer in answers.items()
        }

    def commit(self, offsets: Mapping[Queue, int], group: str) -> None:
        """Make ``group`` remember ``offsets``, one of each broker before the others.

        A broker (5.5.0, ``ConsumerOffsetManager``) makes a group's table of a topic at its first offset, unguarded: of
        several first ones at the same time it may answer all and keep one.

        Raises:
            PeerError: a master refused or does not answer; the others may have taken theirs.
        """
        first = list({queue.broker: queue for queue in offsets}.values())
        for queues in (first, [queue for queue in offsets if queue not in first]):
            self._call_queues(
                queues,
                lambda queue: make_queue_command(
                    RequestCode.UPDATE_CONSUMER_OFFSET, queue, consumerGroup=group, commitOffset=offsets[queue]
                ),
                f"the offset of {group}",
                masters_only=True,
            )

    # -- messages ----------------------------------------------------------------------------------------------------

    def pull(self, offsets: Mapping[Queue, int], *, group: str, suspend_ms: int = 0) -> dict[Queue, Pulled]:
        """Return the messages of each queue from its offset on, as many as its broker gives at once (mostly 32).

        All queues are pulled at the same time. With ``suspend_ms``, which must stay below the client's time-out, a
        broker waits that long for a first message.

        Raises:
            PeerError: a broker refused, or neither master nor slave answers.
        """

        def request(queue: Queue) -> Command:
            return make_queue_command(
                RequestCode.PULL_MESSAGE,
                queue,
                consumerGroup=group,
                queueOffset=offsets[queue],
                maxMsgNums=_PULLED_AT_ONCE,
                sysFlag=_SUBSCRIPTION | (_SUSPEND if suspend_ms else 0),
                commitOffset=0,
                suspendTimeoutMillis=suspend_ms,
                subscription="*",
                subVersion=0,
                expressionType="TAG",
            )

        pulled = {}
        for queue, answer in self._call_queues(list(offsets), request, f"a pull for {group}", accepted=PULLED).items():
            messages = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
            pulled[queue] = Pulled(messages, _read_number(answer, "nextBeginOffset"))
        return pulled

    def send(
        self, messages: Sequence[Outgoing], *, group: str, deadline: MonotonicNs | None = None
    ) -> list[PeerError | None]:
        """Send ``messages`` at once, large bodies compressed; return the error of each, if any. No retries."""
        answers = self.call_all([self._make_send_request(message, group, deadline) for message in messages], deadline)
        return [answer if isinstance(answer, PeerError) else None for answer in answers]

    def find_by_key(
        self, topic: str, key: str, *, begin_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[tuple[str, StoredMessage]]:
        """Yield broker and message of all in ``topic`` with ``key`` among their keys, or as their unique id.

        The query uses the index, as mqadmin does: it holds a message shortly after storing, and each broker returns at
        most ``MAX_FOUND``. Messages that only share the key's hash are left out.

        Raises:
            PeerError: a broker does not answer: the result would be incomplete.
        """
        route = self.route(topic)
        stored = {"beginTimestamp": begin_ms or 0, "endTimestamp": _MAX_TIME_MS if end_ms is None else end_ms}
        fields = {"topic": topic, "key": key, "maxNum": MAX_FOUND, **stored, "_UNIQUE_KEY_QUERY": False}
        command = make_command(RequestCode.QUERY_MESSAGE, **fields)
        for broker in sorted(route.addresses):
            request = Request(route.readers(broker), command, f"a query of {topic}", _FOUND_OR_NOT)
            [answer] = self.call_all([request])
            if isinstance(answer, PeerError):
                raise _name_broker(answer, broker, topic)
            if answer.code == ResponseCode.SUCCESS:
                messages = decode_messages(answer.body)
                yield from ((broker, message) for message in messages if _has_key(message, topic, key))

    # -- requests ------------------------------------------------------------------------------------------------------

    def _call_queues(
        self,
        queues: Sequence[Queue],
        request: Callable[[Queue], Command],
        doing: str,
        *,
        masters_only: bool = False,
        accepted: Collection[int] = SUCCEEDED,
    ) -> dict[Queue, Command]:
        """Send a request to the broker of every queue at the same time; raise the first missing answer."""
        requests = []
        for queue in queues:
            route = self.route(queue.topic)
            addresses = route.master(queue.broker) if masters_only else route.readers(queue.broker)
            requests.append(Request(addresses, request(queue), f"{doing} of {queue}", accepted))
        answers: dict[Queue, Command] = {}
        for queue, answer in zip(queues, self.call_all(requests), strict=True):
            if isinstance(answer, PeerError):
                self.forget_route(queue.topic)
                raise _name_broker(answer, queue.broker, queue.topic)
            answers[queue] = answer
        return answers

    def _make_send_request(self, message: Outgoing, group: str, deadline: MonotonicNs | None) -> Request:
        queue = message.queue
        body, sys_flag = compress_body(message.body)
        fields = {  # the one-letter names are those of SendMessageRequestHeaderV2
            "a": group,
            "b": queue.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": _NEW_QUEUES,
            "e": queue.queue_id,
            "f": sys_flag,
            "g": self._clock.wall_ns() // NS_PER_MS,  # born
            "h": 0,  # flag
            "i": encode_properties(message.properties),
            "j": 0,  # reconsumeTimes
            "k": False,  # unitMode
            "m": False,  # batch
            "n": queue.broker,
        }
        request = replace(make_command(RequestCode.SEND_MESSAGE_V2, **fields), body=body)
        try:
            addresses = self.route(queue.topic, deadline=deadline).master(queue.broker)
        except PeerError:  # it is made by this very send
            addresses = self.route(AUTO_CREATE_TOPIC, deadline).master(queue.broker)
        return Request(addresses, request, f"a message for {queue}", STORED)

    # -- servers -----------------------------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """From any thread: refuse more, and end what waits; who uses the client still has to :meth:`close` it."""
        self._closed = True
        for connection in list(self._connections.values()):
            connection.wake()

    def close(self) -> None:
        """Close every connection, and refuse more."""
        self._closed = True
        for connection in self._connections.values():
            connection.shut()

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
        command = make_command(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, acceptStandardJsonOnly=True)
        route = read_route(topic, self._call_name_server(command, f"the route of {topic}", deadline).body)
        self._routes[topic] = (now_ns, route)
        return route

    def masters(self, deadline: MonotonicNs | None = None) -> tuple[str, ...]:
        """Return the address of every master."""
        command = make_command(RequestCode.GET_BROKER_CLUSTER_INFO)
        return read_masters(self._call_name_server(command, "the list of brokers", deadline).body)

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
        give_up = self._bound_deadline(deadline)
        posted = [self._post(request, 0, give_up) for request in requests]
        return [self._await_answer(request, way, give_up) for request, way in zip(requests, posted, strict=True)]

    def _await_answer(
        self, request: Request, posted: _Posted | PeerError, deadline: MonotonicNs
    ) -> Command | PeerError:
        """Wait for one answer; a server that is silent for its share of the time gives its place to the next."""
        left = len(request.addresses)
        while True:
            if not isinstance(posted, PeerError):
                try:
                    connection, number = posted
                    answer = connection.answer(number, self._divide_time(deadline, left))
                except (SilentError, ProtocolError) as error:
                    posted = error
                else:
                    is_accepted = answer.code in request.accepted
                    return answer if is_accepted else RefusedError(connection.address, answer, request.doing)
            left -= 1
            if left <= 0:
                return posted
            posted = self._post(request, len(request.addresses) - left, deadline)

    def _post(self, request: Request, position: int, deadline: MonotonicNs) -> _Posted | PeerError:
        if not request.addresses:
            return SilentError(f"{request.doing} needs a master, and it is away")
        try:
            connection = self._connect(request.addresses[position], deadline)
            return connection, connection.post(self._sign(request.command), seconds_until(self._clock, deadline))
        except SilentError as error:
            return error

    def _connect(self, address: str, deadline: MonotonicNs) -> Connection:
        """Return a connection, a new one where there is none or the last one broke; raise ``SilentError``."""
        if self._process != os.getpid():  # the sockets are the parent's, too
            for inherited in self._connections.values():
                inherited.leave()
            self._connections, self._process = {}, os.getpid()
        if self._closed:
            raise SilentError("the connections were closed")
        known = self._connections.get(address)
        if known is not None and known.is_open():
            return known
        left_s = min(seconds_until(self._clock, deadline), self._timeout_ms / 1e3, _CONNECT_TIMEOUT_S)
        if left_s <= 0:
            raise SilentError(f"{address} was not reached in time")
        connection = self._connections[address] = Connection(address, left_s, self._clock)
        if self._closed:  # meanwhile, and the others only were woken
            connection.wake()
        return connection

    def _call_name_server(self, command: Command, doing: str, deadline: MonotonicNs | None) -> Command:
        """Return the answer of the first name server that gives one, and begin with that one the next time."""
        give_up = self._bound_deadline(deadline)
        silent: list[str] = []
        for left in range(len(self._name_servers), 0, -1):
            try:
                return self.call(Request((self._name_servers[0],), command, doing), self._divide_time(give_up, left))
            except (SilentError, ProtocolError) as error:
                silent.append(str(error))
                self._name_servers.rotate(-1)
        if len(silent) == 1:
            raise SilentError(f"the name server {silent[0]}; see that it runs, or correct the address")
        raise SilentError(f"no name server answers: {'; '.join(silent)}; see that one runs, or correct the addresses")

    def _divide_time(self, deadline: MonotonicNs, servers: int) -> MonotonicNs:
        """Return until when the first of ``servers`` may take, so that the others have their turn."""
        now_ns = self._clock.monotonic_ns()
        return MonotonicNs(now_ns + (deadline - now_ns) // max(servers, 1))

    def _bound_deadline(self, deadline: MonotonicNs | None) -> MonotonicNs:
        own = compute_deadline(self._clock, self._timeout_ms)
        return own if deadline is None else min(own, deadline)
