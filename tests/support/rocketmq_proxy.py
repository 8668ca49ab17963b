"""Enough of a RocketMQ 5 proxy for its Python client: one queue per topic, kept in memory.

It speaks real gRPC with the client's own stubs. Time passes only when a test says so: a message that was received comes
again after :meth:`RocketMqProxy.redeliver`, a transaction is asked about after :meth:`RocketMqProxy.ask_about`.
"""

# ruff: noqa: N802 - the methods of a gRPC service have its names
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Condition, Event
from zlib import crc32

import grpc
import rocketmq
from rocketmq.grpc_protocol import Code, MessageType, definition_pb2, service_pb2, service_pb2_grpc

STORE_HOST = "broker-a:10911"
STORE_SECONDS = 1_700_000_000
QUEUE_ID = 3
_MAX_BODY_BYTES = 4 * 1024 * 1024
_TYPES = (MessageType.NORMAL, MessageType.FIFO, MessageType.DELAY, MessageType.TRANSACTION)


def _status(code=Code.OK):
    return definition_pb2.Status(code=code, message=Code.Name(code))


class RocketMqProxy(service_pb2_grpc.MessagingServiceServicer):
    """A proxy on a free loopback port (``endpoints``); use it as a context manager.

    ``sent``, ``acked``, ``postponed``, ``ended``: the requests, as they came. ``refuse`` and
    ``refuse_receives`` hold codes for the next sends (and ends of transactions) and receives.
    """

    def __init__(self):
        self.sent, self.acked, self.postponed, self.ended = [], [], [], []
        self.refuse, self.refuse_receives = deque(), deque()
        self.fifo = False
        self._waiting = defaultdict(deque)
        self._invisible = defaultdict(dict)
        self._streams = []
        self._changed = Condition()
        self.answers_sends = Event()
        self.answers_sends.set()
        # Each telemetry stream and each waiting receive holds a thread.
        self._server = grpc.server(ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        service_pb2_grpc.add_MessagingServiceServicer_to_server(self, self._server)
        self._port = self._server.add_insecure_port("127.0.0.1:0")
        self.endpoints = f"127.0.0.1:{self._port}"

    def __enter__(self):
        self._server.start()
        return self

    def __exit__(self, *_):
        for stream in self._streams:
            stream.put(None)
        self._server.stop(1).wait()

    def await_requests(self, requests, count=1, seconds=20):
        """Return once ``acked``, ``postponed`` or ``ended`` holds that many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(requests) >= count, seconds), f"{len(requests)} of {count}"

    def redeliver(self, topic):
        """Let the invisible duration of every message of ``topic`` be over."""
        with self._changed:
            for message in self._invisible[topic].values():
                message.system_properties.delivery_attempt += 1
                self._waiting[topic].append(message)
            self._invisible[topic].clear()
            self._changed.notify_all()

    def ask_about(self, message):
        """Ask every producer how the transaction of ``message`` ended."""
        command = service_pb2.TelemetryCommand(status=_status())
        command.recover_orphaned_transaction_command.message.CopyFrom(message)
        command.recover_orphaned_transaction_command.transaction_id = _transaction_id(message)
        for stream in self._streams:
            stream.put(command)

    def attributes_of_paid_order(self, operation):
        """Return what the spans of both clients say of a message with the tag ``paid`` and the key ``order-1``."""
        message = {"tag": "paid", "keys": ("order-1",), "type": "normal"}
        own = {"region_id": "DefaultRegion", "msg_type": "Normal_Msg", "tags": "paid", "keys": ("order-1",)}
        return {
            "messaging.system": "rocketmq",
            **{f"messaging.operation.{name}": operation for name in ("name", "type")},
            "messaging.message.body.size": 5,
            **{f"messaging.rocketmq.message.{name}": value for name, value in message.items()},
            **{f"mqtrace.{name}": value for name, value in {**own, "success": True}.items()},
            "server.address": "127.0.0.1",
            "server.port": int(self.endpoints.split(":")[1]),
        }

    # -- the service ------------------------------------------------------------------------------------------------
    def QueryRoute(self, request, context):
        return service_pb2.QueryRouteResponse(status=_status(), message_queues=[self._queue(request.topic)])

    def QueryAssignment(self, request, context):
        mine = definition_pb2.Assignment(message_queue=self._queue(request.topic))
        return service_pb2.QueryAssignmentResponse(status=_status(), assignments=[mine])

    def Heartbeat(self, request, context):
        return service_pb2.HeartbeatResponse(status=_status())

    def NotifyClientTermination(self, request, context):
        return service_pb2.NotifyClientTerminationResponse(status=_status())

    def Telemetry(self, requests, context):
        commands = SimpleQueue()
        self._streams.append(commands)
        context.add_callback(lambda: commands.put(None))
        settings = next(requests).settings
        if settings.HasField("publishing"):
            settings.publishing.max_body_size = _MAX_BODY_BYTES
        else:
            settings.subscription.long_polling_timeout.seconds = 1
            settings.subscription.fifo = self.fifo
        settings.backoff_policy.max_attempts = 3
        settings.backoff_policy.customized_backoff.next.add().nanos = 1_000_000
        yield service_pb2.TelemetryCommand(status=_status(), settings=settings)
        yield from iter(commands.get, None)

    def SendMessage(self, request, context):
        assert self.answers_sends.wait(10)
        if self.refuse:
            return service_pb2.SendMessageResponse(status=_status(self.refuse.popleft()))
        (message,) = request.messages
        properties = message.system_properties
        self.sent.append(message)
        entry = service_pb2.SendResultEntry(status=_status(), message_id=properties.message_id)
        if properties.message_type == MessageType.TRANSACTION:
            entry.transaction_id = _transaction_id(message)
        elif properties.message_type == MessageType.DELAY:
            entry.recall_handle = f"handle of {properties.message_id}"
        else:
            self._deliver(message)
        return service_pb2.SendMessageResponse(status=_status(), entries=[entry])

    def EndTransaction(self, request, context):
        with self._changed:
            self.ended.append(request)
            self._changed.notify_all()
        code = self.refuse.popleft() if self.refuse else Code.OK
        return service_pb2.EndTransactionResponse(status=_status(code))

    def RecallMessage(self, request, context):
        _, prefix, msg_id = request.recall_handle.partition("handle of ")
        return service_pb2.RecallMessageResponse(
            status=_status(Code.OK if prefix else Code.INTERNAL_SERVER_ERROR), message_id=msg_id
        )

    def ReceiveMessage(self, request, context):
        topic, batch = request.message_queue.topic.name, []
        if self.refuse_receives:
            yield service_pb2.ReceiveMessageResponse(status=_status(self.refuse_receives.popleft()))
            return
        with self._changed:
            self._changed.wait_for(lambda: self._waiting[topic], request.long_polling_timeout.seconds)
            while self._waiting[topic] and len(batch) < request.batch_size:
                message = self._waiting[topic].popleft()
                self._invisible[topic][message.system_properties.receipt_handle] = message
                batch.append(message)
        answer = service_pb2.ReceiveMessageResponse()
        answer.delivery_timestamp.seconds = STORE_SECONDS  # without it the client drops what it was pushed
        yield answer
        for message in batch:
            yield service_pb2.ReceiveMessageResponse(message=message)
        yield service_pb2.ReceiveMessageResponse(status=_status(Code.OK if batch else Code.MESSAGE_NOT_FOUND))

    def AckMessage(self, request, context):
        (entry,) = request.entries
        with self._changed:
            known = self._invisible[request.topic.name].pop(entry.receipt_handle, None)
            self.acked.append(entry.message_id)
            self._changed.notify_all()
        return service_pb2.AckMessageResponse(status=_status(Code.OK if known else Code.INVALID_RECEIPT_HANDLE))

    def ChangeInvisibleDuration(self, request, context):
        with self._changed:
            self.postponed.append(request)
            self._changed.notify_all()
        return service_pb2.ChangeInvisibleDurationResponse(status=_status(), receipt_handle=request.receipt_handle)

    # -- messages ---------------------------------------------------------------------------------------------------
    def _deliver(self, message):
        properties = message.system_properties
        properties.delivery_attempt = 1
        properties.receipt_handle = properties.message_id
        properties.queue_id, properties.store_host = QUEUE_ID, STORE_HOST
        properties.store_timestamp.seconds = STORE_SECONDS
        properties.body_digest.type = definition_pb2.DigestType.CRC32
        properties.body_digest.checksum = f"{crc32(message.body):08X}"
        with self._changed:
            self._waiting[message.topic.name].append(message)
            self._changed.notify_all()

    def _queue(self, topic):
        queue = definition_pb2.MessageQueue(topic=topic, id=0, permission=definition_pb2.Permission.READ_WRITE)
        queue.accept_message_types.extend(_TYPES)
        queue.broker.name = "broker-a"
        queue.broker.endpoints.scheme = definition_pb2.AddressScheme.IPv4
        queue.broker.endpoints.addresses.add(host="127.0.0.1", port=self._port)
        return queue


def _transaction_id(message):
    return f"transaction of {message.system_properties.message_id}"


def message_of(topic, body=b"hello", *, properties=None, **fields):
    made = rocketmq.Message()
    for name, value in {"topic": topic, "body": body, **fields}.items():
        setattr(made, name, value)
    for name, value in (properties or {}).items():
        made.add_property(name, value)
    return made


@contextmanager
def clients_of(endpoints):
    """Give a function that starts a client of a proxy, given its class and further arguments; all are shut down.

    They wait longer for an answer than the three seconds of their default: a busy machine is no failure.
    """
    running = []

    def start(make, *args, namespace="", **kwargs):
        conf = rocketmq.ClientConfiguration(endpoints, rocketmq.Credentials(), namespace, 30)
        client = make(conf, *args, **kwargs)
        client.startup()
        running.append(client)
        return client

    yield start
    for client in running:
        if client.is_running:
            client.shutdown()
