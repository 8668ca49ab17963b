"""The remoting client: connections, routes, signatures, and servers that fail."""

import errno
import json
import socket
import threading
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.rocketmq import commands
from otel_mqtrace.rocketmq.client import Outgoing, RemotingClient
from otel_mqtrace.rocketmq.connections import SilentError, read_address, read_addresses
from otel_mqtrace.testing import ManualClock
from tests.support.clocks import WatchedClock
from tests.support.lanes import GENEROUS_S
from tests.support.programs import run_in_child
from tests.support.rocketmq_remoting import HANG_UP, NOTIFICATION, SILENCE, RemotingCluster, response_to, silence

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def cluster():
    with RemotingCluster() as running:
        yield running


@pytest.fixture
def client(cluster):
    with closing(RemotingClient(cluster.namesrv)) as made:
        yield made


def _outgoing(client, count=1, topic="T"):
    queues = client.writable(topic)
    return [Outgoing(queue=queues[i % len(queues)], body=b"%d" % i, properties={"KEYS": f"k{i}"}) for i in range(count)]


def _send(client):
    assert client.send(_outgoing(client), group="g") == [None]


def test_one_connection_serves_many_requests(cluster, client):
    assert client.send(_outgoing(client, 50), group="g") == [None] * 50
    client.bounds(client.route("T").readable)
    assert len(cluster.brokers[0].connections) == len(cluster.name_server.connections) == 1
    assert len(cluster.brokers[0].asked(commands.RequestCode.SEND_MESSAGE_V2)) == 50


def test_refusal_is_that_of_its_message_only(cluster, client):
    outgoing = _outgoing(client, 3)
    cluster.brokers[0].answer_first(
        commands.RequestCode.SEND_MESSAGE_V2, commands.ResponseCode.SUCCESS, commands.ResponseCode.SYSTEM_BUSY
    )
    first, second, third = client.send(outgoing, group="g")
    assert isinstance(second, commands.RefusedError)
    assert (first, second.code, third) == (None, commands.ResponseCode.SYSTEM_BUSY, None)


@pytest.mark.parametrize("code", [10, 11, 12])
def test_late_flush_or_missing_slave_is_a_success(cluster, client, code):
    """Though a flush was late or a slave was away: Java's client calls these sent as well."""
    broker = cluster.brokers[0]
    real = broker._send_message_v2
    broker._send_message_v2 = lambda fields, body: (code, *real(fields, body)[1:])
    _send(client)


def test_silent_server_leaves_time_for_the_next(cluster):
    [broker], clock = cluster.brokers, WatchedClock()
    cluster.slave(broker)
    with (
        RemotingCluster() as mute,
        closing(RemotingClient(f"{mute.namesrv};{cluster.namesrv}", timeout_ms=10_000, clock=clock)) as client,
    ):
        mute.name_server.answer_first(commands.RequestCode.GET_ROUTEINFO_BY_TOPIC, silence(clock, 5_000))
        broker.answer_first(commands.RequestCode.GET_MIN_OFFSET, silence(clock, 5_000))
        queue = client.route("T").readable[0]
        assert client.bounds([queue]) == {queue: (0, 0)}
        client.forget_route("T")
        client.route("T")
        assert len(mute.name_server.requests) == 1  # the next look-up begins with the server that answered


def test_silent_broker_is_given_up_in_time_and_answers_that_came_meanwhile_are_used(cluster):
    clock, both_answered, sends = ManualClock(), threading.Barrier(2), commands.RequestCode.SEND_MESSAGE_V2

    def answer_first(request):
        yield response_to(request, commands.ResponseCode.SUCCESS)
        both_answered.wait(GENEROUS_S)

    def answer_late(request):
        both_answered.wait(GENEROUS_S)
        yield response_to(request, commands.ResponseCode.SUCCESS)
        clock.advance(ms=10_000)
        yield NOTIFICATION

    with RemotingCluster("broker-b", queues=1) as other:
        cluster.name_server.brokers = [*cluster.brokers, *other.brokers]
        with closing(RemotingClient(cluster.namesrv, timeout_ms=10_000, clock=clock)) as client:
            outgoing = [Outgoing(queue=queue, body=b"1", properties={}) for queue in client.writable("T")]
            cluster.brokers[0].answer_first(sends, SILENCE, answer_late)
            other.brokers[0].answer_first(sends, answer_first)
            silent, *answered = client.send(outgoing, group="g")
    assert isinstance(silent, SilentError)
    assert "in time" in str(silent)
    assert answered == [None] * 2


def test_broker_that_hangs_up_is_an_error_while_it_answers_and_reached_again(cluster, client):
    outgoing = _outgoing(client)
    cluster.brokers[0].answer_first(commands.RequestCode.SEND_MESSAGE_V2, HANG_UP)
    [lost] = client.send(outgoing, group="g")
    assert isinstance(lost, SilentError)
    assert client.send(outgoing, group="g") == [None]
    cluster.brokers[0].drop_connections()
    assert client.send(outgoing, group="g") == [None]


def test_connection_that_the_system_gave_up_is_opened_again(cluster, client, monkeypatch):
    outgoing = _outgoing(client)
    assert client.send(outgoing, group="g") == [None]
    receive, caller = socket.socket.recv, threading.current_thread()
    errors = [TimeoutError(errno.ETIMEDOUT, "Connection timed out")]

    def receive_after_errors(connection, size):
        if errors and threading.current_thread() is caller:
            raise errors.pop()
        return receive(connection, size)

    monkeypatch.setattr(socket.socket, "recv", receive_after_errors)
    assert client.send(outgoing, group="g") == [None]
    assert (errors, len(cluster.brokers[0].connections)) == ([], 2)


def test_unreachable_name_server_is_replaced_by_the_next(cluster):
    with RemotingCluster() as other:
        other.name_server.brokers = cluster.brokers
        with closing(RemotingClient(f"{NOWHERE};{other.namesrv},{cluster.namesrv}")) as client:
            client.route("T")
            other.name_server.close()
            cluster.brokers[0].topics.add("U")
            assert client.route("U").readable[0].topic == "U"


def test_error_without_a_name_server_lists_all_of_them(cluster):
    cluster.name_server.close()
    with (
        closing(RemotingClient(f"{NOWHERE};{cluster.namesrv}")) as client,
        pytest.raises(SilentError, match=f"no name server.*{NOWHERE} cannot be reached.*{cluster.namesrv}"),
    ):
        client.route("T")


def test_server_other_than_rocketmq_is_reported(cluster, client):
    cluster.name_server.answer_first(commands.RequestCode.GET_ROUTEINFO_BY_TOPIC, b"HTTP/1.1 400 Bad Request\r\n\r\n")
    told = f"the name server {cluster.namesrv} does not answer as RocketMQ does: .*not a RocketMQ remoting port"
    with pytest.raises(PeerError, match=told):
        client.route("T")


def test_slave_answers_readers_while_the_master_is_away(cluster):
    [broker] = cluster.brokers
    broker.put(b"one", properties={"KEYS": "k"})
    cluster.slave(broker)
    broker.close()
    with closing(RemotingClient(cluster.namesrv)) as client:
        queue = client.route("T").readable[0]
        assert client.bounds([queue]) == {queue: (0, 1)}
        assert [message.stored_body for message in client.pull({queue: 0}, group="g")[queue].messages] == [b"one"]
        assert len(list(client.find_by_key("T", "k"))) == 1
        with pytest.raises(SilentError):
            client.committed([queue], "g")
        broker.is_known = False
        client.forget_route("T")
        assert client.writable("T") == ()
        with pytest.raises(SilentError, match="needs a master, and it is away"):
            client.commit({queue: 1}, "g")


def test_messages_are_found_by_key_or_id(cluster, client):
    broker = cluster.brokers[0]
    broker.put(b"by key", properties={"KEYS": "a order-1 b"})
    broker.put(b"by id", properties={"UNIQ_KEY": "order-1"})
    broker.put(b"neither", properties={"KEYS": "order-11"})
    assert [message.stored_body for _, message in client.find_by_key("T", "order-1")] == [b"by key", b"by id"]
    assert list(client.find_by_key("T", "nobody", begin_ms=5, end_ms=9)) == []
    asked = [each.fields for each in broker.asked(commands.RequestCode.QUERY_MESSAGE)]
    assert [(each["maxNum"], each["beginTimestamp"], each["endTimestamp"]) for each in asked] == [
        ("64", "0", str(2**63 - 1)),
        ("64", "5", "9"),
    ]


def test_pull_brings_its_subscription_and_waits_at_the_broker_if_told_to(cluster, client):
    """By bits 4 and 2 of the flag; without the first a broker refuses a group that is not online."""
    [queue, *_] = client.route("T").readable
    for suspend_ms in (0, 20):
        client.pull({queue: 0}, group="g", suspend_ms=suspend_ms)
    asked = [each.fields for each in cluster.brokers[0].asked(commands.RequestCode.PULL_MESSAGE)]
    assert [(each["subscription"], each["sysFlag"], each["suspendTimeoutMillis"]) for each in asked] == [
        ("*", "4", "0"),
        ("*", "6", "20"),
    ]


def test_topic_made_by_brokers_is_written_to_by_the_default_route(cluster, client):
    """By the route of TBW102, with at most four queues; without that, the topic's own refusal is raised."""
    with pytest.raises(commands.RefusedError, match="new"):
        client.writable("new")
    cluster.brokers[0].topics.add("TBW102")
    cluster.brokers[0].queue_count = 8
    outgoing = _outgoing(client, topic="new")
    assert len(client.writable("new")) == 4
    assert client.send(outgoing, group="g") == [None]
    assert "new" in cluster.brokers[0].topics
    [sent] = cluster.brokers[0].asked(commands.RequestCode.SEND_MESSAGE_V2)
    assert (sent.fields["c"], sent.fields["d"]) == ("TBW102", "4")  # default topic, and its queues


def test_every_request_is_signed_where_keys_are_given(cluster):
    """Also those to name servers, as Java's client does; the keys belong together."""
    with closing(RemotingClient(cluster.namesrv, access_key="me", secret_key="mine")) as client:
        client.send(_outgoing(client), group="g")
    for server in (cluster.name_server, *cluster.brokers):
        assert {request.fields["AccessKey"] for request in server.requests} == {"me"}
        assert all(request.fields["Signature"] for request in server.requests)
    with pytest.raises(UsageError, match="belong together"):
        RemotingClient(cluster.namesrv, access_key="me")


@pytest.mark.parametrize("address", ["nonsense", "..:10911", f"{'x' * 64}:10911", "a\0b:10911", "::1]:70000"])
def test_invalid_broker_address_is_an_unreachable_broker(cluster, client, address):
    cluster.brokers[0].address = address
    with pytest.raises(SilentError, match="cannot be reached"):
        client.bounds(client.route("T").readable)


def test_forked_child_opens_its_own_connections(cluster, client):
    _send(client)

    def send_and_close():
        _send(client)
        client.close()

    assert run_in_child(send_and_close) == 0
    assert len(cluster.brokers[0].connections) == 2
    _send(client)
    assert len(cluster.brokers[0].connections) == 2


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9876", ("localhost", 9876)),
        ("[2001:db8::1]:9876", ("2001:db8::1", 9876)),
        ("2001:db8::1:9876", ("2001:db8::1", 9876)),
    ],
)
def test_addresses_are_read_as_java_writes_them(text, address):
    assert read_address(text) == address


@pytest.mark.parametrize(
    "text", ["", ";", "localhost", "localhost:", ":9876", "a:b", "a:0", "a:65536", "a:٣", "ok:1;no"]
)
def test_wrong_address_is_refused(text):
    with pytest.raises(UsageError, match="give host:port"):
        read_addresses(text)


BROKER = {"cluster": "C", "brokerName": "broker-a", "brokerAddrs": {"1": "10.0.0.2:10911", "0": "10.0.0.1:10911"}}
QUEUES = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 2, "writeQueueNums": 1, "topicSysFlag": 0}


def _route(**changes):
    route = {"brokerDatas": [BROKER], "queueDatas": [{**QUEUES, **changes}], "filterServerTable": {}}
    return commands.read_route("T", json.dumps(route).encode())


@pytest.mark.parametrize(
    ("perm", "readable", "writable"), [(6, (0, 1), (0,)), (2, (), (0,)), (4, (0, 1), ()), (0, (), ())]
)
def test_route_lists_permitted_queues_and_addresses(perm, readable, writable):
    route = _route(perm=perm)
    assert route.readable == tuple(commands.Queue("T", "broker-a", number) for number in readable)
    assert route.writable == tuple(commands.Queue("T", "broker-a", number) for number in writable)
    assert route.readers("broker-a") == ("10.0.0.1:10911", "10.0.0.2:10911")
    assert route.master("broker-a") == ("10.0.0.1:10911",)
    assert route.readers("another") == route.master("another") == ()


def test_route_of_an_old_name_server_is_read():
    """Before 4.9.4 the ids of brokers were bare numbers; texts that look alike stay as they are."""
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"odd {1: \\" name"}],'
        b'"queueDatas":[{"brokerName":"odd {1: \\" name","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    route = commands.read_route("T", body)
    assert route.master('odd {1: " name') == ("10.0.0.1:10911",)
    assert route.readable == (commands.Queue("T", 'odd {1: " name', 0),)


def test_masters_are_all_brokers_with_one():
    slave = {**BROKER, "brokerAddrs": {"1": "10.0.0.3:10911"}}
    table = json.dumps({"brokerAddrTable": {"a": BROKER, "b": slave}})
    assert commands.read_masters(table.encode()) == ("10.0.0.1:10911",)


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"\xff", b'{"queueDatas":[1]}', b'{"queueDatas":[{}]}', b'{"brokerDatas":{"a":1}}'),
        *(b"[" * 9_999, b'"\\"' * 99_999),
    ],
    ids=lambda each: repr(each)[:30],
)
def test_malformed_route_is_a_protocol_error(body):
    with pytest.raises(commands.ProtocolError):
        commands.read_route("T", body)


def test_route_with_too_many_queues_is_refused():
    with pytest.raises(commands.ProtocolError, match="more than"):
        _route(readQueueNums=10**9)


_NAMES = ["brokerDatas", "queueDatas", "brokerName", "brokerAddrs", "perm", "readQueueNums", "brokerAddrTable", "0"]
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_NAMES), inner, max_size=4),
)


@given(_json)
def test_any_json_is_a_route_or_a_protocol_error(text):
    for read in (lambda body: commands.read_route("T", body), commands.read_masters):
        with suppress(commands.ProtocolError):
            read(json.dumps(text).encode())


FIELDS = {"queueId": "3", "setZeroIfNotFound": "false", "topic": "topic", "consumerGroup": "group"}


def test_request_is_signed_once_as_java_signs_by_credentials_that_do_not_show_the_secret():
    """The signature is what AclClientRPCHook of RocketMQ 5.5.0 makes of these fields, body and keys."""
    credentials, command = commands.Credentials("access", "secret key"), commands.Command(14, FIELDS, "body é".encode())
    once = commands.sign(command, credentials)
    assert once.fields == {**FIELDS, "AccessKey": "access", "Signature": "+34AIoYMsXJFS5guPjBXWnT1xyE="}
    assert commands.sign(once, credentials) == once
    assert commands.sign(command, None) is command
    assert "secret key" not in repr(credentials)
