"""The forwarder on a real Kafka and on a real RocketMQ broker, killed again and again."""

import sys
from functools import partial

import pytest

from tests.support.killing import forwarded_under_fire
from tests.support.topics import put_messages

pytestmark = pytest.mark.peers

KILLS, SEED = 25, 1


@pytest.fixture
def on_kafka(kafka):
    topic = kafka.create_topic("forwarded-under-fire", partitions=3)
    return f"kafka://{kafka.bootstrap_servers}/{topic}", partial(
        put_messages, kafka.bootstrap_servers, topic, partitions=3
    )


@pytest.fixture
def on_rocketmq(rocketmq_server):
    topic = rocketmq_server.create_topic("FORWARDED_UNDER_FIRE", queues=4)
    return f"rocketmq://{rocketmq_server.name_server}/{topic}", partial(rocketmq_server.send, topic)


@pytest.mark.parametrize("broker", ["on_kafka", "on_rocketmq"])
def test_kill_9_at_any_moment_loses_nothing(broker, request, tmp_path, capsys):
    output = forwarded_under_fire(*request.getfixturevalue(broker), tmp_path, kills=KILLS, seed=SEED)
    with capsys.disabled():
        sys.stdout.write(f"\n{broker}: {output}\n")
    assert output.spans > 500
    assert output.at_work > KILLS // 2  # a busy machine may be killed before it has begun
    assert (output.lost, output.unexpected, output.contradicted) == (0, 0, 0)
