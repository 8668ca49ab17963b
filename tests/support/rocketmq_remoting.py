"""A small RocketMQ of Python, for tests without Java: a name server and brokers on loopback that do as they are told."""

import json
import socket
import socketserver
import struct
import threading
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from otel_mqtrace.rocketmq.commands import Command, FrameReader, RequestCode, ResponseCode, encode_command
from otel_mqtrace.rocketmq.messages import decode_messages

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SILENCE, HANG_UP = "silence", "hang up"
"""What a server can do instead of answering."""
NOTIFICATION = encode_command(Command(40))
"""Consumers of a group came or went: it needs no answer."""


def response_to(request, code, fields=None, body=b"", remark=None):
    return Command(code, fields or {}, body, request.opaque, is_response=True, remark=remark)


def silence(clock, ms):
    """What a server does instead of answering, until so much time has passed on ``clock``, a :class:`WatchedClock`.

    A notification, which needs no answer, has the client read the clock: from then on the time that passes is time
    that it waited, however late its thread gets there.
    """

    def let_time_pass(_request):
        readings = clock.readings
        yield NOTIFICATION
        clock.await_reading(readings)
        clock.advance(ms=ms)
        yield NOTIFICATION

    return let_time_pass


def stored(body, *, topic="T", queue_id=0, offset=0, properties=(), sys_flag=0, store_ms=1_700_000_000_000):
    """The bytes of a stored message, laid out here once more, by hand."""
    encoded = "".join(f"{name}\x01{value}\x02" for name, value in dict(properties).items()).encode()
    name = topic.encode()
    hosts = [(16 if sys_flag & bit else 4) for bit in (0x10, 0x20)]
    born, store = (bytes(size - 1) + b"\x01" + struct.pack(">i", 10911) for size in hosts)
    rest = struct.pack(">iiqqiq", queue_id, 0, offset, 77, sys_flag, store_ms - 1) + born
    rest += struct.pack(">q", store_ms) + store + struct.pack(">iq", 0, 0) + struct.pack(">i", len(body)) + body
    rest += struct.pack(">B", len(name)) + name + struct.pack(">H", len(encoded)) + encoded
    return struct.pack(">iIi", 12 + len(rest), 0xDAA320A7, 0) + rest


@dataclass
class StoredQueue:
    """One queue: its messages as bytes from ``low`` on; what was before is gone."""

    low: int = 0
    messages: list[bytes] = field(default_factory=list)

    @property
    def high(self):
        return self.low + len(self.messages)


class RemotingServer:
    """One listening server: a broker, a slave of it, or a name server for a list of brokers."""

    def __init__(self, name="broker-a", *, brokers=None, queues=2, master=None):
        self.name, self.queue_count = name, queues
        self.brokers = brokers
        self.slaves = []
        self.is_known = True  # to name servers, as master
        self.requests = []
        self.connections = []
        self.instead = defaultdict(deque)  # request code → answers given first
        self.topics = {"T"} if master is None else master.topics
        self.stored = defaultdict(StoredQueue) if master is None else master.stored
        self.offsets = {} if master is None else master.offsets
        self.max_pulled = 32
        if master is not None:
            master.slaves.append(self)
        handle = type("Handler", (socketserver.BaseRequestHandler,), {"handle": lambda it: self._serve(it.request)})
        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handle)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.drop_connections()

    def drop_connections(self):
        while self.connections:
            connection = self.connections.pop()
            with suppress(OSError):  # by the other side already
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def answer_first(self, code, *answers):
        """Give ``answers`` to the next requests of that code: response codes, bytes, commands made of the request …"""
        self.instead[code].extend(answers)

    def asked(self, code):
        return [request for request in self.requests if request.code == code]

    def put(self, *bodies, topic="T", queue_id=0, **fields):
        queue = self.stored[topic, queue_id]
        for body in bodies:
            message = {"topic": topic, "queue_id": queue_id, "offset": queue.high, **fields}
            queue.messages.append(stored(body, **message))

    def _serve(self, connection):
        self.connections.append(connection)
        reader = FrameReader()
        with suppress(OSError):
            while data := connection.recv(65536):
                for request in reader.feed(data):
                    answer = self._answer(request)
                    if answer == HANG_UP:
                        return
                    if answer != SILENCE:
                        for part in answer if isinstance(answer, Iterator) else [answer]:
                            connection.sendall(part if isinstance(part, bytes) else encode_command(part))

    def _answer(self, request):
        self.requests.append(request)
        first = self.instead[request.code]
        if first:
            answer = first.popleft()
            if callable(answer):
                return answer(request)
            return response_to(request, answer, remark="told to") if isinstance(answer, int) else answer
        code, fields, body = getattr(self, f"_{RequestCode(request.code).name.lower()}")(request.fields, request.body)
        return response_to(request, code, {name: str(value) for name, value in fields.items()}, body)

    # -- a name server's -------------------------------------------------------------------------------------------

    def _get_routeinfo_by_topic(self, fields, _):
        brokers = [broker for broker in self.brokers if fields["topic"] in broker.topics]
        if not brokers:
            return ResponseCode.TOPIC_NOT_EXIST, {}, b""
        queues = [
            {"brokerName": broker.name, "perm": 6, "readQueueNums": broker.queue_count}
            | {"writeQueueNums": broker.queue_count, "topicSysFlag": 0}
            for broker in brokers
        ]
        route_data = {"brokerDatas": [broker._data() for broker in brokers], "queueDatas": queues}
        return ResponseCode.SUCCESS, {}, json.dumps(route_data).encode()

    def _get_broker_cluster_info(self, _fields, _body):
        cluster_data = {"brokerAddrTable": {broker.name: broker._data() for broker in self.brokers}}
        return ResponseCode.SUCCESS, {}, json.dumps(cluster_data).encode()

    def _data(self):
        addresses = {number: slave.address for number, slave in enumerate(self.slaves, 1)}
        if self.is_known:
            addresses[0] = self.address
        return {"brokerName": self.name, "brokerAddrs": addresses}

    # -- a broker's ------------------------------------------------------------------------------------------------

    def _queue(self, fields):
        return self.stored[fields["topic"], int(fields["queueId"])]

    def _update_and_create_topic(self, fields, _):
        self.topics.add(fields["topic"])
        return ResponseCode.SUCCESS, {}, b""

    def _get_min_offset(self, fields, _):
        return ResponseCode.SUCCESS, {"offset": self._queue(fields).low}, b""

    def _get_max_offset(self, fields, _):
        return ResponseCode.SUCCESS, {"offset": self._queue(fields).high}, b""

    def _search_offset_by_timestamp(self, fields, _):
        """As a broker of 4.x: of several messages of that time any one, of none the nearer neighbour."""
        queue, wanted = self._queue(fields), int(fields["timestamp"])
        stamps = [decode_messages(each)[0].store_ms for each in queue.messages]
        low, high, near = 0, len(stamps) - 1, {}
        while low <= high:
            middle = (low + high) // 2
            near[stamps[middle] > wanted] = middle
            if stamps[middle] == wanted:
                return ResponseCode.SUCCESS, {"offset": queue.low + middle}, b""
            low, high = (low, middle - 1) if stamps[middle] > wanted else (middle + 1, high)
        nearest = min(near.values(), key=lambda at: abs(stamps[at] - wanted), default=0)
        return ResponseCode.SUCCESS, {"offset": queue.low + nearest}, b""

    def _query_consumer_offset(self, fields, _):
        known = self.offsets.get((fields["consumerGroup"], fields["topic"], int(fields["queueId"])))
        if known is None:
            return ResponseCode.QUERY_NOT_FOUND, {}, b""
        return ResponseCode.SUCCESS, {"offset": known}, b""

    def _update_consumer_offset(self, fields, _):
        self.offsets[fields["consumerGroup"], fields["topic"], int(fields["queueId"])] = int(fields["commitOffset"])
        return ResponseCode.SUCCESS, {}, b""

    def _pull_message(self, fields, _):
        queue, offset = self._queue(fields), int(fields["queueOffset"])
        reply = {"minOffset": queue.low, "maxOffset": queue.high, "suggestWhichBrokerId": 0}
        if offset < queue.low:
            return ResponseCode.PULL_OFFSET_MOVED, {**reply, "nextBeginOffset": queue.low}, b""
        messages = queue.messages[offset - queue.low :][: min(self.max_pulled, int(fields["maxMsgNums"]))]
        code = ResponseCode.SUCCESS if messages else ResponseCode.PULL_NOT_FOUND
        return code, {**reply, "nextBeginOffset": offset + len(messages)}, b"".join(messages)

    def _send_message_v2(self, fields, body):
        properties = dict(each.split("\x01") for each in fields["i"].split("\x02") if each)
        queue_id, topic = int(fields["e"]), fields["b"]
        self.topics.add(topic)
        self.put(body, topic=topic, queue_id=queue_id, properties=properties, sys_flag=int(fields["f"]))
        offset = self.stored[topic, queue_id].high - 1
        return ResponseCode.SUCCESS, {"msgId": "0" * 32, "queueId": queue_id, "queueOffset": offset}, b""

    def _query_message(self, fields, _):
        """The index has whole seconds, counted from its first message, for when one was stored."""
        indexed = [
            (message, decode_messages(message)[0].store_ms)
            for (topic, _), queue in self.stored.items()
            if topic == fields["topic"]
            for message in queue.messages
        ]
        first_ms = min((store_ms for _, store_ms in indexed), default=0)
        begin_ms, end_ms = int(fields["beginTimestamp"]), int(fields["endTimestamp"])
        messages = [
            message
            for message, store_ms in indexed
            if begin_ms <= store_ms - (store_ms - first_ms) % 1_000 <= end_ms
            if fields["key"].encode() in message  # hashes collide; here part of a key does
        ]
        code = ResponseCode.SUCCESS if messages else ResponseCode.QUERY_NOT_FOUND
        return code, {}, b"".join(messages)


class RemotingCluster:
    """A name server and brokers; use it as a context manager."""

    def __init__(self, *names, queues=2):
        self.brokers = [RemotingServer(name, queues=queues) for name in names or ("broker-a",)]
        self.name_server = RemotingServer("names", brokers=self.brokers)
        self.others = []

    @property
    def namesrv(self):
        return self.name_server.address

    def slave(self, broker):
        self.others.append(RemotingServer(broker.name, queues=broker.queue_count, master=broker))
        return self.others[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in (*self.brokers, self.name_server, *self.others):
            if server._thread.is_alive():
                server.close()


@contextmanager
def tracing_cluster():
    with RemotingCluster("broker-a", "broker-b") as running:
        for broker in running.brokers:
            broker.topics.add(TRACE_TOPIC)
        yield running
