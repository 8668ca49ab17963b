"""Where a message was stored: the partition leader, learned beside the application and never at its cost."""

import os
import threading

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from otel_mqtrace.clients.confluent_kafka.leaders import Leaders, leaders_of
from otel_mqtrace.clients.state import STATE
from otel_mqtrace.hooks.guard import failures
from otel_mqtrace.spans.mapping import trace_context_of
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.programs import run_in_child

NOBODY = "127.0.0.1:1"


class Cluster:
    """A cluster that answers from a table, keeps what it was asked, and can be away."""

    def __init__(self, **leaders):
        self.leaders = leaders
        self.asked = []
        self.away = False
        self.held = threading.Lock()

    def look_up(self, connection, topics):
        with self.held:
            pass
        for topic in topics:
            self.asked.append(topic)
            if self.away:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            yield topic, self.leaders.get(topic, {}), None


@pytest.fixture
def cluster():
    return Cluster(orders={0: "b1:1", 1: "b2:2"})


@pytest.fixture
def leaders(cluster, clock):
    return Leaders({}, look_up=cluster.look_up, clock=clock, max_topics=3)


@pytest.fixture(scope="module")
def three_brokers():
    with EmbeddedKafka(brokers=3) as kafka:
        kafka.create_topic("spread", partitions=12)
        yield kafka


@pytest.fixture(scope="module")
def truth(three_brokers):
    metadata = AdminClient({"bootstrap.servers": three_brokers.bootstrap_servers}).list_topics("spread", timeout=10)
    brokers = {each.id: f"{each.host}:{each.port}" for each in metadata.brokers.values()}
    hosts = {each.id: brokers[each.leader] for each in metadata.topics["spread"].partitions.values()}
    assert len(set(hosts.values())) > 1
    return hosts


def test_cluster_is_queried_after_five_minutes_or_one_while_unreachable_and_keeps_its_leaders(leaders, cluster, clock):
    leaders.want("orders")
    leaders.settle(10)
    cluster.away = True
    for passed_ms, times_asked in (299_999, 1), (1, 2), (59_999, 2):
        clock.advance(ms=passed_ms)
        assert leaders.of("orders", 0) == "b1:1"
        leaders.settle(10)
        assert cluster.asked == ["orders"] * times_asked
    clock.advance(ms=60_000)
    cluster.away = False
    cluster.leaders["orders"] = {0: "b3:3"}
    leaders.of("orders", 0)
    leaders.settle(10)
    assert leaders.of("orders", 0) == "b3:3"


def test_invalid_topic_name_is_skipped_without_a_warning(three_brokers, truth, caplog):
    before = failures()
    leaders = Leaders({"bootstrap.servers": three_brokers.bootstrap_servers})
    invalid = "or\0ders", "\ud800"
    for topic in (invalid[0], "spread", invalid[1]):
        leaders.want(topic)
    leaders.settle(10)
    assert {partition: leaders.of("spread", partition) for partition in truth} == truth
    assert [leaders.of(topic, 0) for topic in invalid] == [None, None]
    assert leaders.cluster_id is not None
    assert (failures(), caplog.records) == (before, [])


def test_waiting_and_remembered_topics_are_limited_and_the_oldest_gives_way_once_a_minute(leaders, cluster, clock):
    cluster.leaders = {f"t{number}": {0: f"b{number}"} for number in range(10)}
    with cluster.held:
        for number in range(10):
            leaders.want(f"t{number}")
    leaders.settle(10)
    for topic, passed_ms in ("t9", 0), ("t0", 59_999), ("t0", 1):
        assert (leaders.of(topic, 0), cluster.asked[3:]) == (None, ["t9"] * (topic == "t0"))
        clock.advance(ms=passed_ms)
        leaders.of(topic, 0)
        leaders.settle(10)
    assert cluster.asked == ["t0", "t1", "t2", "t9", "t0"]
    assert [leaders.of(topic, 0) for topic in ("t0", "t2", "t9", "t1")] == ["b0", "b2", "b9", None]


def test_clients_of_one_cluster_share_their_leaders():
    conf = {"bootstrap.servers": "one:1"}
    assert leaders_of(conf) is leaders_of(dict(conf))
    assert leaders_of({}) is None
    assert leaders_of({**conf, "oauth_cb": print}) is None


def test_send_span_and_record_have_the_leader_of_the_partition(producer_of, spans, three_brokers, truth):
    producer = producer_of(bootstrap_servers=three_brokers.bootstrap_servers)
    producer.produce("spread", b"first", partition=0)
    producer.flush(10)
    first = spans.take("send spread").attributes["mqtrace.store_host"]
    assert first in {truth[0], three_brokers.bootstrap_servers.split(",")[0]}
    producer.__dict__[STATE].leaders.settle(10)
    for partition in truth:
        producer.produce("spread", b"x", partition=partition)
    producer.flush(10)
    sent = spans.take_all("send spread")
    by_partition = {int(each.attributes["messaging.destination.partition.id"]): each for each in sent}
    assert {partition: each.attributes["mqtrace.store_host"] for partition, each in by_partition.items()} == truth
    assert {partition: trace_context_of(each).beans[0].store_host for partition, each in by_partition.items()} == truth


@pytest.mark.parametrize("batch", [False, True])
def test_process_spans_and_links_have_the_leader_from_the_first_message_on(
    instrument, producer_of, spans, three_brokers, truth, batch
):
    producer = producer_of(False, bootstrap_servers=three_brokers.bootstrap_servers)
    instrument()
    sent, seen = [], 0
    for partition in truth:
        producer.produce("spread", b"x", partition=partition, on_delivery=lambda _, message: sent.append(message))
    producer.flush(10)
    conf = {"bootstrap.servers": three_brokers.bootstrap_servers, "group.id": "g", "enable.auto.commit": False}
    with confluent_kafka.Consumer(conf) as consumer:
        consumer.assign([confluent_kafka.TopicPartition("spread", each.partition(), each.offset()) for each in sent])
        consumer.__dict__[STATE].leaders.settle(10)
        while seen < len(truth):
            seen += len(consumer.consume(len(truth), 1)) if batch else consumer.poll(1) is not None
    beans = [bean for span in spans.take_all("process spread") for bean in trace_context_of(span).beans]
    assert {int(bean.offset_msg_id.partition("@")[0].rpartition("-")[2]): bean.store_host for bean in beans} == truth


def test_send_without_a_partition_has_the_bootstrap_server_as_store_host(producer_of, spans):
    producer = producer_of(bootstrap_servers=NOBODY, message_timeout_ms=100)
    producer.produce("orders", b"x")
    producer.flush(10)
    span = spans.take("send orders")
    assert (span.attributes["mqtrace.store_host"], span.attributes["error.type"]) == (NOBODY, "_MSG_TIMED_OUT")


def test_child_forked_during_a_look_up_starts_its_own_one():
    answer, asking, parent = threading.Event(), threading.Event(), os.getpid()

    def look_up(connection, topics):
        if os.getpid() == parent:
            asking.set()
            answer.wait(30)
        yield topics[0], {0: "b1:1"}, None

    leaders = Leaders({}, look_up=look_up)
    leaders.want("orders")
    assert asking.wait(10)
    assert leaders.of("orders", 0) is None  # nobody waits for the answer

    def look_up_again():
        leaders.of("orders", 0)
        leaders.settle(10)
        return leaders.of("orders", 0) != "b1:1"

    assert run_in_child(look_up_again) == 0
    answer.set()
    leaders.settle(10)
    assert leaders.of("orders", 0) == "b1:1"


def test_look_up_that_fails_unexpectedly_leaves_the_other_topics_to_be_looked_up(cluster):
    def look_up(connection, topics):
        if "odd" in topics:
            leaders.want("orders")
            raise ZeroDivisionError
        yield from cluster.look_up(connection, topics)

    leaders = Leaders({}, look_up=look_up)
    leaders.want("odd")
    leaders.settle(10)
    assert leaders.of("orders", 1) == "b2:2"


def test_look_up_does_not_create_the_topic(instrument, kafka, spans):
    instrument()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "early"})
    consumer.subscribe(["not-yet", 5])
    consumer.__dict__[STATE].leaders.settle(10)
    consumer.close()
    assert "not-yet" not in AdminClient({"bootstrap.servers": kafka.bootstrap_servers}).list_topics(timeout=10).topics
    spans.assert_empty()


def test_look_up_lets_other_greenlets_run(run_code, kafka):
    """As in the exporter: a broker that does not answer would stop the application for five seconds."""
    run_code(
        """
        from gevent import monkey; monkey.patch_all()
        import gevent, sys
        from otel_mqtrace.clients.confluent_kafka.leaders import query_cluster
        other = gevent.spawn(int)
        assert next(query_cluster({"bootstrap.servers": sys.argv[1]}, ["orders"]))[0] == "orders"
        assert other.ready()
        """,
        kafka.bootstrap_servers,
    )
