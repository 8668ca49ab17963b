"""Draining a trace topic of a RocketMQ: everything once, from where it was committed, and no gap unsaid."""

import zlib
from contextlib import ExitStack

import pytest

from bridge.forwarder.rocketmq_source import RemotingTraceSource, partition_of
from otel_mqtrace._errors import PeerError
from otel_mqtrace.rocketmq.commands import Queue, RefusedError, RequestCode, ResponseCode
from tests.support.clocks import TickingClock, WatchedClock
from tests.support.rocketmq_remoting import HANG_UP, RemotingCluster, silence


@pytest.fixture
def cluster():
    with RemotingCluster("broker-a", "broker-b") as running:
        yield running


@pytest.fixture
def broker(cluster):
    return cluster.brokers[0]


@pytest.fixture
def open_source(cluster):
    with ExitStack() as opened:
        yield lambda **options: opened.enter_context(RemotingTraceSource(cluster.namesrv, "T", **options))


def _bodies(source):
    return sorted(message.body for batch in source.drain() for message in batch)


def test_topic_without_a_queue_to_read_is_an_error(cluster, open_source):
    for broker in cluster.brokers:
        broker.queue_count = 0
    with pytest.raises(PeerError, match="no queue of T may be read"):
        list(open_source().drain())


def test_all_queues_of_all_brokers_are_drained_to_their_end(cluster, open_source):
    """More messages than one pull brings; each is where and when the broker says."""
    expected = []
    for broker in cluster.brokers:
        for queue_id in range(2):
            bodies = [f"{broker.name} {queue_id} {number}".encode() for number in range(70)]
            broker.put(*bodies, queue_id=queue_id, properties={"KEYS": "a b"})
            expected += bodies
    landed = [message for batch in open_source().drain() for message in batch]
    assert sorted(message.body for message in landed) == sorted(expected)
    assert len({(message.partition, message.offset) for message in landed}) == 280
    assert {message.partition for message in landed} == {
        partition_of(Queue("T", name, queue_id)) for name in ("broker-a", "broker-b") for queue_id in (0, 1)
    }
    assert {(message.source, message.arrival_ms, message.keys) for message in landed} == {
        ("T", 1_700_000_000_000, "a b")
    }


def test_second_source_continues_where_the_first_committed(cluster, open_source):
    broker, other = cluster.brokers
    first = open_source()
    assert _bodies(first) == []
    first.commit()
    broker.put(b"1", b"2")
    other.put(b"3")
    assert _bodies(first) == [b"1", b"2", b"3"]
    assert _bodies(first) == [b"1", b"2", b"3"]
    first.commit()
    broker.put(b"4")
    assert _bodies(first) == [b"4"]
    second = open_source()
    assert _bodies(second) == [b"4"]
    second.commit()
    assert _bodies(second) == []
    assert broker.offsets == {("mqtrace-forward", "T", 0): 3}
    assert _bodies(open_source(group="another")) == [b"1", b"2", b"3", b"4"]


def test_one_offset_of_each_broker_is_committed_first(broker, open_source):
    """Of a group's first offsets of a topic, RocketMQ's broker may keep one only if they come at the same time."""
    broker.put(b"1")
    broker.put(b"2", queue_id=1)
    source = open_source()
    assert _bodies(source) == [b"1", b"2"]
    broker.answer_first(RequestCode.UPDATE_CONSUMER_OFFSET, HANG_UP)
    with pytest.raises(PeerError):
        source.commit()
    assert len(broker.asked(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1
    source.commit()
    assert sorted(broker.offsets) == [("mqtrace-forward", "T", 0), ("mqtrace-forward", "T", 1)]


def test_drain_left_early_commits_only_what_was_yielded(broker, open_source):
    broker.max_pulled = 2
    broker.put(b"1", b"2", b"3")
    source = open_source()
    [*_] = next(source.drain())
    source.commit()
    assert _bodies(open_source()) == [b"3"]


def test_held_message_comes_to_the_next_source(cluster, open_source):
    broker, other = cluster.brokers
    broker.put(b"1", b"2", b"3")
    other.put(b"4")
    source = open_source()
    landed = {message.body: message for batch in source.drain() for message in batch}
    assert source.behind == frozenset()
    second = landed[b"2"]
    source.commit(held=[(second.source, second.partition, second.offset)])
    assert _bodies(source) == []
    assert _bodies(open_source()) == [b"2", b"3"]
    source.commit()
    assert _bodies(open_source()) == []


def test_offsets_removed_by_retention_are_an_error_or_counted(broker, open_source):
    broker.stored["T", 0].low = 10
    broker.put(b"eleventh")
    with pytest.raises(PeerError, match=r"T \[broker-a 0\] was trimmed: offsets 0 to 9 .*--accept-trimmed"):
        list(open_source().drain())
    generous = open_source(accept_trimmed=True)
    assert [(message.offset, message.body) for batch in generous.drain() for message in batch] == [(10, b"eleventh")]
    assert generous.trimmed == 10


def test_group_that_never_pulled_is_created_before_the_commit(broker, open_source):
    """Brokers make one at its first pull: here all there was is gone, and nothing is left to pull."""
    broker.stored["T", 0].low = 10
    source = open_source(accept_trimmed=True)
    assert _bodies(source) == []
    assert broker.asked(RequestCode.PULL_MESSAGE) == []
    broker.answer_first(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
    source.commit()
    assert [request.fields["consumerGroup"] for request in broker.asked(RequestCode.PULL_MESSAGE)] == [
        "mqtrace-forward"
    ]
    assert broker.offsets == {("mqtrace-forward", "T", 0): 10}


@pytest.mark.parametrize("accept", [False, True])
def test_offsets_removed_during_a_drain_are_an_error_or_counted(broker, open_source, accept):
    broker.max_pulled = 1
    broker.put(*[b"%d" % number for number in range(5)])
    source = open_source(accept_trimmed=accept)
    drain = source.drain()
    next(drain)
    queue = broker.stored["T", 0]
    queue.low, queue.messages = 3, queue.messages[3:]
    if accept:
        list(drain)
        assert source.trimmed == 2
    else:
        with pytest.raises(PeerError, match="offsets 1 to 2"):
            list(drain)


def test_topic_shorter_than_the_committed_offset_is_an_error(broker, open_source):
    broker.put(b"1", b"2", b"3")
    source = open_source()
    _bodies(source)
    source.commit()
    broker.stored.clear()
    broker.put(b"new")
    with pytest.raises(PeerError, match=r"ends at 1, but the group mqtrace-forward remembers 3.*another --group"):
        list(open_source().drain())


def test_topic_filled_beyond_the_position_after_it_was_created_again_is_an_error(broker, open_source):
    source = open_source()
    for bodies in ([b"1", b"2"], [b"3"]):
        broker.put(*bodies)
        assert _bodies(source) == bodies
        source.commit()
    broker.stored.clear()
    broker.put(*[b"new %d" % number for number in range(5)])
    with pytest.raises(PeerError, match=r"T \[broker-a 0\] has another message at 2 than .* created again"):
        list(source.drain())


def test_topic_created_again_and_filled_beyond_the_position_within_a_drain_is_an_error(broker, open_source):
    broker.max_pulled = 2
    broker.put(b"1", b"2", b"3", b"4")
    batches = open_source().drain()
    assert [message.body for message in next(batches)] == [b"1", b"2"]
    broker.stored.clear()
    broker.put(*[b"new %d" % number for number in range(5)])
    with pytest.raises(PeerError, match=r"has another message at 1 than .* created again"):
        list(batches)


def test_slave_that_lags_behind_is_no_error(cluster, broker, open_source):
    broker.put(b"1", b"2")
    slave = cluster.slave(broker)
    slave.stored = type(broker.stored)(broker.stored.default_factory)
    source = open_source()
    _bodies(source)
    source.commit()
    broker.close()
    assert _bodies(source) == []


def test_broker_error_ends_the_drain_and_loses_nothing(broker, open_source):
    broker.put(b"1")
    clock = WatchedClock()
    source = open_source(clock=clock, timeout_ms=10_000)
    for answer in (HANG_UP, silence(clock, 10_000), ResponseCode.SYSTEM_BUSY):
        broker.answer_first(RequestCode.PULL_MESSAGE, answer)
        with pytest.raises(PeerError):
            list(source.drain())
    broker.answer_first(RequestCode.UPDATE_CONSUMER_OFFSET, ResponseCode.NO_PERMISSION)
    assert _bodies(source) == [b"1"]
    with pytest.raises(RefusedError, match=r"NO_PERMISSION.*right to this topic and group"):
        source.commit()
    assert _bodies(source) == [b"1"]
    source.commit()
    assert _bodies(source) == []


def test_broker_that_returns_nothing_despite_more_messages_is_reported(broker, open_source):
    broker.put(b"1")
    broker.max_pulled = 0
    with pytest.raises(PeerError, match="gives nothing of T, though there is more"):
        list(open_source(clock=TickingClock(100)).drain())
    suspended = {request.fields["suspendTimeoutMillis"] for request in broker.asked(RequestCode.PULL_MESSAGE)[1:]}
    assert suspended <= {"500"}


def test_undecompressable_body_does_not_stop_the_others(broker, open_source, caplog):
    broker.put(b"garbage", sys_flag=1)
    broker.put(zlib.compress(b"good"), sys_flag=1)
    assert _bodies(open_source()) == [b"garbage", b"good"]
    assert "T [0] offset 0 cannot be decompressed" in caplog.text


def test_partition_of_a_queue_is_stable_and_unique():
    """A number that was landed must stay the queue's, whatever broker joins."""
    assert [partition_of(Queue("T", "broker-a", queue_id)) for queue_id in (0, 1)] == [667_500_544, 667_500_545]
    names = [f"broker-{letter}" for letter in "abcdefgh"]
    numbers = {partition_of(Queue("T", name, queue_id)) for name in names for queue_id in range(1024)}
    assert len(numbers) == 8 * 1024
    assert all(0 <= number < 2**31 for number in numbers)


def test_brokers_with_the_same_partition_numbers_are_refused(open_source, cluster):
    cluster.brokers[0].name, cluster.brokers[1].name = "broker-909", "broker-61204"
    with pytest.raises(PeerError, match="get the same number"):
        list(open_source().drain())
