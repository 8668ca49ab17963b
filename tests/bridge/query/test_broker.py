"""Search of a RocketMQ cluster, by its index and by a scan, and of a Kafka trace topic to its end."""

from contextlib import closing
from dataclasses import replace

import confluent_kafka
import pytest

from bridge.query.findings import findings, summarise
from bridge.query.kafka_archive import TopicArchive
from bridge.query.rocketmq_archive import BrokerArchive
from bridge.query.search import ArrivalRange
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.cli import main
from otel_mqtrace.rocketmq.commands import ResponseCode
from otel_mqtrace.testing import embedded_kafka
from tests.support.archives import ID, T0, TOPIC, consume, landed, pub, search_once
from tests.support.rocketmq_remoting import RemotingCluster
from tests.support.topics import put_messages

MESSAGES = landed(pub(), *consume("R1", T0 + 50), pub(T0 + 9, msg_id="OTHER"))


@pytest.fixture
def cluster():
    with RemotingCluster("broker-a", "broker-b") as running:
        for number, message in enumerate(MESSAGES):
            _put(running.brokers[number % 2], message, number // 2)
        yield running


def _put(broker, message, queue_id=0, **fields):
    fields = {"properties": {"KEYS": message.keys}, "store_ms": message.arrival_ms, **fields}
    broker.put(message.body, queue_id=queue_id, **fields)


def _search(cluster, *msg_ids, topics=("T",), **options):
    return search_once(BrokerArchive(cluster.namesrv, topics, **options), *(msg_ids or (ID,)))


@pytest.mark.parametrize("scan", [False, True])
def test_records_are_found_on_every_broker(cluster, scan):
    """By the index and by a scan alike; the places tell the queues of two brokers apart."""
    (story,) = _search(cluster, reads_all=scan).stories
    assert (summarise(story), findings(story)) == ("Sent once; consumed by 1 group.", ())
    attempt = story.groups[0].attempts[0]
    places = {(place.source, place.partition) for half in attempt.evidence for place in half.places}
    assert len(places) == 2


def test_scan_reads_everything(cluster):
    cluster.brokers[0].put(*(b"other %d" % number for number in range(100)))
    seen = []
    answer = _search(cluster, reads_all=True, on_progress=lambda done, whole: seen.append((done, whole)))
    assert (answer.searched.messages, seen[-1]) == (104, (104, 104))
    assert answer.searched.remarks == ()


@pytest.mark.parametrize("code", [ResponseCode.PULL_NOT_FOUND, ResponseCode.SUCCESS])
def test_scan_without_progress_is_an_error(cluster, monkeypatch, code):
    """What a broker announced and does not return may hold the message; the query stops asking for it."""
    broker, given = cluster.brokers[0], []

    def pull(fields, _):
        given.append(fields)
        queue = broker.stored["T", int(fields["queueId"])]
        reply = {"minOffset": 0, "maxOffset": queue.high, "nextBeginOffset": fields["queueOffset"]}
        return code, reply, b"".join(queue.messages) if code == ResponseCode.SUCCESS else b""

    monkeypatch.setattr(broker, "_pull_message", pull)
    remarks = _search(cluster, reads_all=True).searched.remarks
    assert remarks == tuple(f"T [broker-a {n}] leads no further than offset 0; messages not read: 1" for n in range(2))
    assert len(given) == 2


@pytest.mark.parametrize("wanted", ["B2", "orders-1@8"])
def test_scan_finds_what_the_index_lacks(cluster, wanted):
    (batch,) = landed(pub(msg_id="A1,B2", offset_msg_id="orders-1@7,orders-1@8"))
    _put(cluster.brokers[1], batch)
    (story,) = _search(cluster, wanted, reads_all=True).stories
    assert (story.msg_id, story.sends[0].of_batch) == ("B2", 2)
    assert _search(cluster, wanted).stories == ()


def test_index_search_is_reported_as_incomplete(cluster):
    (remark,) = _search(cluster).searched.remarks
    assert "--scan" in remark
    for number in range(70):
        _put(cluster.brokers[0], landed(pub(T0 + number))[0])
    _, remark = _search(cluster).searched.remarks
    assert "there may be more" in remark


@pytest.mark.parametrize(("begin_ms", "end_ms", "found"), [(1, 1, 5), (0, 0, 1), (2, None, 1), (None, 1, 6), (3, 9, 0)])
def test_scan_finds_all_messages_of_its_first_and_last_millisecond(begin_ms, end_ms, found):
    """Of several messages of one time a broker of 4.x names any."""
    with RemotingCluster(queues=1) as cluster:
        for stored_ms in (0, 1, 1, 1, 1, 1, 2):
            cluster.brokers[0].put(b"M", store_ms=T0 + stored_ms)
        arrivals = ArrivalRange(*(None if each is None else T0 + each for each in (begin_ms, end_ms)))
        with closing(BrokerArchive(cluster.namesrv, ["T"], arrivals=arrivals, reads_all=True)) as archive:
            assert len(list(archive.find_messages(["M"]))) == found


def test_index_finds_a_message_of_the_range_that_begins_within_its_second(cluster):
    (later,) = landed(pub(T0 + 1_999))
    _put(cluster.brokers[0], later, store_ms=T0 + 1_999)
    for begin_ms, found in ((T0 + 1_999, 1), (T0 + 2_000, 0)):
        stories = _search(cluster, arrivals=ArrivalRange(begin_ms, None)).stories
        assert [len(story.sends) for story in stories] == [1] * found


def test_messages_outside_of_the_range_are_left_out(cluster):
    (story,) = _search(cluster, arrivals=ArrivalRange(T0, T0)).stories
    assert (len(story.sends), story.groups) == (1, ())


def test_body_that_cannot_be_inflated_is_a_remark(cluster):
    _put(cluster.brokers[0], MESSAGES[0], store_ms=T0, sys_flag=1)
    answer = _search(cluster, reads_all=True)
    assert len(answer.stories) == 1
    assert len(answer.searched.remarks) == 1


def test_topic_that_is_not_there_is_one_line(cluster):
    with pytest.raises(PeerError, match="NO_SUCH"):
        _search(cluster, topics=["NO_SUCH"])


def test_command_searches_a_cluster(cluster, capsys):
    assert main(["query", "--msg-id", ID, "--namesrv", cluster.namesrv, "--trace-topic", "T", "--scan"]) == 0
    assert "consumed by 1 group" in capsys.readouterr().out


kafka = pytest.fixture(scope="module")(embedded_kafka)


def _filled(kafka, topic, messages):
    kafka.create_topic(topic, 3)
    fields = ({"value": each.body, "headers": [("KEYS", each.keys)], "timestamp": each.arrival_ms} for each in messages)
    put_messages(kafka.bootstrap_servers, topic, *fields, partitions=3)
    return topic


def _search_topics(kafka, *topics, **options):
    return search_once(TopicArchive(kafka.bootstrap_servers, topics, **options), ID)


def test_record_is_found_despite_its_keys_header(kafka):
    bare = [type(message)(source=TOPIC, arrival_ms=T0, body=message.body, keys="other") for message in MESSAGES]
    (story,) = _search_topics(kafka, _filled(kafka, "keyless", bare)).stories
    assert story.records == 3


def test_bad_record_of_a_topic_is_shown_by_a_command_that_can_read_it(kafka, cluster):
    """``mqtrace decode`` reads files and refuses topics."""
    (message,) = landed(pub(msg_id="BAD"))
    damaged = replace(message, body=message.body[:-20])
    cluster.brokers[0].put(damaged.body, store_ms=T0)
    topic = TopicArchive(kafka.bootstrap_servers, [_filled(kafka, "damaged", [damaged])])
    told = "1 bad record has that id, which mqtrace decode of a landing shows: 11 fields, needs 12"
    for archive in (topic, BrokerArchive(cluster.namesrv, ["T"], reads_all=True)):
        assert told in search_once(archive, "BAD").searched.remarks


def test_several_topics_are_searched_together(kafka):
    """A cloud client's halves may lie on two."""
    halves = [_filled(kafka, "first", MESSAGES[:2]), _filled(kafka, "second", MESSAGES[2:3])]
    (story,) = _search_topics(kafka, *halves).stories
    assert (findings(story), story.records) == ((), 3)


def test_messages_that_arrived_later_are_left_out(kafka):
    answer = _search_topics(kafka, _filled(kafka, "until", MESSAGES), arrivals=ArrivalRange(None, T0))
    assert [(len(story.sends), story.groups) for story in answer.stories] == [(1, ())]
    assert (answer.searched.messages, answer.searched.last_arrival_ms) == (1, T0)


def test_empty_topic_is_searched_at_once(kafka):
    answer = _search_topics(kafka, _filled(kafka, "empty", []))
    assert (answer.stories, answer.searched.messages) == ((), 0)


def test_large_topic_is_read_in_batches_with_progress(kafka):
    seen = []
    many = [type(MESSAGES[0])(source=TOPIC, arrival_ms=T0, body=b"x" * 50) for _ in range(1700)]
    topic = _filled(kafka, "many", [*many, *MESSAGES])
    answer = _search_topics(kafka, topic, on_progress=lambda done, whole: seen.append((done, whole)))
    assert (answer.searched.messages, seen[-1]) == (1704, (1704, 1704))


def test_properties_that_the_client_refuses_are_a_usage_error():
    with pytest.raises(UsageError, match=r'cannot be built: No such .*"no.such"; correct --kafka-config') as refused:
        TopicArchive("127.0.0.1:1", [TOPIC], kafka_config={"no.such": "x", "sasl.password": "secret"})
    assert "secret" not in str(refused.value)


def test_topic_that_cannot_be_read_is_one_line(kafka):
    kafka.create_topic("forbidden")
    kafka.set_topic_error("forbidden", confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(PeerError, match="the trace topic forbidden cannot be read"):
        _search_topics(kafka, "forbidden")
