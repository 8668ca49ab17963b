"""Our remoting client and source against a real name server and broker."""

from contextlib import closing
from itertools import count

import pytest

from bridge.forwarder.rocketmq_source import RemotingTraceSource
from otel_mqtrace.exporters.native_rocketmq import NativeRocketMqSpanExporter
from otel_mqtrace.rocketmq.client import RemotingClient
from otel_mqtrace.rocketmq.commands import RefusedError, ResponseCode
from otel_mqtrace.wire.native import decode_body
from tests.peers.peer import START_SECONDS
from tests.peers.rocketmq.server import RocketMq
from tests.support.native_spans import pub, traced

pytestmark = pytest.mark.peers

_numbers = count(1)


@pytest.fixture
def topic(rocketmq_server):
    return rocketmq_server.create_topic(f"peer-remoting-{next(_numbers)}", queues=4)


@pytest.fixture
def client(rocketmq_server):
    with closing(RemotingClient(rocketmq_server.name_server)) as made:
        yield made


def test_sent_messages_are_read_once_and_on_from_the_committed_offset(rocketmq_server, topic):
    """All queues, more than one pull each; a source that never committed begins again, one that did does not."""
    bodies = [b"%d" % number for number in range(500)]
    rocketmq_server.send(topic, *bodies, KEYS="some keys")
    for commits in (False, True):
        landed = rocketmq_server.drain(topic, commits=commits)
        assert sorted(message.body for message in landed) == sorted(bodies)
        assert len({(message.partition, message.offset) for message in landed}) == 500
        assert {(message.source, message.keys) for message in landed} == {(topic, "some keys")}
    rocketmq_server.send(topic, b"new")
    assert [message.body for message in rocketmq_server.drain(topic)] == [b"new"]


def test_restarted_broker_loses_no_message(rocketmq_server, topic):
    rocketmq_server.send(topic, b"before")
    with RemotingTraceSource(rocketmq_server.name_server, topic) as source:
        [before] = [message for batch in source.drain() for message in batch]
        source.commit()
        rocketmq_server.restart_broker()
        rocketmq_server.send(topic, *[b"after"] * 4)
        assert [message.body for batch in source.drain() for message in batch] == [b"after"] * 4
    after = rocketmq_server.drain(topic)
    assert [message.body for message in after] == [b"after"] * 4
    assert [m.offset for m in after if m.partition == before.partition] == [before.offset + 1]


def test_broker_killed_during_exports_loses_no_record(rocketmq_server, topic):
    patience = {"export_timeout_millis": 2 * START_SECONDS * 1_000}  # the broker is away while it starts
    exporter = NativeRocketMqSpanExporter(namesrv=rocketmq_server.name_server, trace_topic=topic, **patience)
    processor, trace = traced(exporter, background=True, max_export_batch_size=1, **patience)
    for number in range(60):
        trace(pub(number))
        if number == 0:
            assert processor.force_flush()  # a topic that was seen is waited for while its broker is away
        if number == 20:
            rocketmq_server.kill_broker()
        if number == 40:
            rocketmq_server.start_broker()
    assert processor.force_flush(timeout_millis=120_000)
    assert processor.stats()["NativeRocketMqSpanExporter"]["failed"] == 0
    processor.shutdown()
    rocketmq_server.settle()
    bodies = [decode_body(message.body) for message in rocketmq_server.drain(topic)]
    seen = {bean.msg_id for body in bodies for record in body.contexts for bean in record.beans}
    assert seen == {pub(number).beans[0].msg_id for number in range(60)}


def test_message_of_a_java_client_is_read(rocketmq_server, topic):
    for body in ("short", "long" * 2_000):
        send = "sendMessage", "-t", topic, "-p", body, "-k", "java-key"
        assert any("SEND_OK" in rocketmq_server.mqadmin(*send) for _ in range(5))  # on a busy machine it gives up
    rocketmq_server.settle()
    landed = rocketmq_server.drain(topic)
    assert {(each.body, each.keys) for each in landed} == {(b"long" * 2_000, "java-key"), (b"short", "java-key")}
    assert len({(message.partition, message.offset) for message in landed}) == len(landed)


def test_offsets_are_found_by_time(rocketmq_server, client, topic):
    [queue] = rocketmq_server.send(topic, b"one")
    [landed] = rocketmq_server.drain(topic)
    assert client.offsets_at([queue], landed.arrival_ms) == {queue: landed.offset}
    assert client.offsets_at([queue], landed.arrival_ms + 1_000)[queue] == landed.offset + 1
    assert client.bounds([queue]) == {queue: (0, 1)}


def test_group_is_made_at_its_first_pull_not_at_a_commit(client, topic):
    queue = client.route(topic).readable[0]
    assert client.committed([queue], "peer-fresh-group") == {queue: None}
    with pytest.raises(RefusedError) as refused:
        client.commit({queue: 1}, "peer-fresh-group")
    assert refused.value.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    client.pull({queue: 0}, group="peer-fresh-group")
    client.commit({queue: 1}, "peer-fresh-group")
    assert client.committed([queue], "peer-fresh-group") == {queue: 1}


def test_missing_topic_is_reported_with_the_fix(rocketmq_server, client):
    with pytest.raises(RefusedError, match=r"no-such-topic.*TOPIC_NOT_EXIST.*create the topic"):
        client.writable("no-such-topic")
    with pytest.raises(RefusedError) as refused:
        rocketmq_server.drain("no-such-topic")
    assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST


def test_exporter_creates_its_topic_if_configured(rocketmq_server):
    rocketmq_server.export(pub(1), trace_topic="peer-made-by-us", create_trace_topic=True)
    assert len(rocketmq_server.drain("peer-made-by-us")) == 1


_ACCESS = {"access_key": "tracer", "secret_key": "a long secret"}
_GUARDED = """authenticationEnabled=true
authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider
authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider
initAuthenticationUser={"username":"tracer","password":"a long secret"}
innerClientAuthenticationCredentials={"accessKey":"tracer","secretKey":"a long secret"}
"""


@pytest.fixture(scope="module")
def guarded(rocketmq_server, tmp_path_factory):
    """A broker that wants every request signed."""
    directory = tmp_path_factory.mktemp("guarded")
    with RocketMq(directory, broker_lines=_GUARDED, access=_ACCESS, has_proxy=False) as running:
        yield running


def test_broker_with_access_control_accepts_signed_requests(guarded):
    guarded.export(*map(pub, range(100)), **_ACCESS)
    [landed] = guarded.drain("RMQ_SYS_TRACE_TOPIC", commits=True, **_ACCESS)
    assert guarded.drain("RMQ_SYS_TRACE_TOPIC", **_ACCESS) == []
    assert len(landed.keys.split(" ")) == 200


@pytest.mark.parametrize("access", [{}, {**_ACCESS, "secret_key": "wrong"}], ids=["unsigned", "wrong secret"])
def test_broker_with_access_control_refuses_other_requests(guarded, access):
    with pytest.raises(RefusedError) as refused:
        guarded.drain("RMQ_SYS_TRACE_TOPIC", **access)
    assert guarded.broker in str(refused.value)
    assert "secret" not in str(refused.value).replace("AclException", "")
