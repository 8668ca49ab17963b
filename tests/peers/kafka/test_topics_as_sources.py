"""Topics of a real Kafka as sources of a reconciliation: transactions, retention, and both ways to read them."""

import json

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import Producer as OwnProducer

from otel_mqtrace._errors import PeerError
from spark_jobs.sources.kafka import messages_in, topic_address, topic_ranges
from tests.peers.kafka.broker import HERE
from tests.peers.peer import jars_of
from tests.support.programs import run_python
from tests.support.topics import put_messages

pytestmark = pytest.mark.peers

BY_CONNECTOR = """
import json, sys
from spark_jobs.exchange.spark import SparkEngine
from spark_jobs.session import build_session
from spark_jobs.sources.kafka import message_frame, topic_address, topic_ranges

servers, topic, jars = sys.argv[1:]
spark = build_session(master="local[2]", extra={"spark.jars": jars})
frame = message_frame(topic_ranges(topic_address(servers, topic), {}), {}, tasks=2)
assert frame is not None
read = SparkEngine(spark, 2).map_frame(lambda batches: [row for batch in batches for row in batch.to_pylist()], frame)
print(json.dumps([[*list(row.values())[:5], row["value"].decode()] for rows in read for row in rows]))
"""


@pytest.fixture(scope="module")
def address(kafka):
    """Two partitions: committed messages, an aborted one, markers, and a beginning that was deleted.

    The plain messages are of 1970: a broker left to its own retention would delete them all.
    """
    topic = kafka.create_topic("peer-sources", partitions=2, retention_ms="-1")
    plain = {"partition": 0, "headers": [("KEYS", b"k1 k2")]}
    put_messages(
        kafka.bootstrap_servers,
        topic,
        *({"value": f"plain {number}", "timestamp": 1000 + number, **plain} for number in range(6)),
    )
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0}
    sender = OwnProducer({**settings, "transactional.id": topic})
    sender.init_transactions(30)
    for outcome in ("committed", "aborted"):
        sender.begin_transaction()
        sender.produce(topic, outcome.encode(), partition=1)
        assert sender.flush(30) == 0
        (sender.commit_transaction if outcome == "committed" else sender.abort_transaction)(30)
    kafka.settle(topic)
    admin = AdminClient(settings)
    (trimmed,) = admin.delete_records([TopicPartition(topic, 0, 2)]).values()
    trimmed.result(30)
    return topic_address(kafka.bootstrap_servers, topic)


def by_client(address):
    return [row for one in topic_ranges(address, {}) for row in messages_in(one, {})]


def test_only_committed_messages_are_read_and_what_is_gone_is_known_by_its_offsets(address):
    assert [(one.first, one.end) for one in topic_ranges(address, {})] == [(2, 6), (0, 4)]
    rows = by_client(address)
    assert [row["value"].decode() for row in rows] == [*(f"plain {number}" for number in range(2, 6)), "committed"]
    assert (rows[0]["arrival_ms"], rows[0]["keys"], rows[0]["offset"]) == (1002, "k1 k2", 2)


def test_missing_topic_is_one_line(kafka):
    with pytest.raises(PeerError, match=r"/no-such-topic cannot be read: .*check the topic's name"):
        topic_ranges(topic_address(kafka.bootstrap_servers, "no-such-topic"), {})


def test_sparks_own_connector_gives_the_same_messages(address):
    """In a process of its own, because a session takes its jars when it starts."""
    jars = ",".join(map(str, sorted(jars_of(HERE / "spark-connector.xml", "Spark's Kafka connector").glob("*.jar"))))
    done = run_python(BY_CONNECTOR, address.servers, address.topic, jars)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout.splitlines()[-1])
    names = ("topic", "partition", "offset", "arrival_ms", "keys")
    expected = [[*(row[name] for name in names), row["value"].decode()] for row in by_client(address)]
    assert sorted(result) == sorted(expected)
