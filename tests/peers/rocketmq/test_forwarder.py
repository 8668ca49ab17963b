"""The forwarder on a real RocketMQ broker, killed again and again."""

import random
import sys
from contextlib import closing

import pytest

from otel_mqtrace.rocketmq.client import Outgoing, RemotingClient, SendResult
from tests.support.killing import forwarded_under_fire

pytestmark = pytest.mark.peers

KILLS, SEED = 20, 2


def test_kill_9_at_any_moment_loses_nothing(rocketmq_server, tmp_path, capsys):
    topic = rocketmq_server.create_topic("FORWARDED_UNDER_FIRE", queues=4)
    chance = random.Random(SEED)
    with closing(RemotingClient(rocketmq_server.name_server)) as client:
        queues = client.writable(topic)

        def send(bodies):
            outgoing = [Outgoing(queue=chance.choice(queues), body=body, properties={}) for body in bodies]
            assert all(isinstance(each, SendResult) for each in client.send(outgoing, group="peer-under-fire"))

        source = f"rocketmq://{rocketmq_server.name_server}/{topic}"
        output = forwarded_under_fire(source, send, tmp_path, kills=KILLS, seed=SEED)
    with capsys.disabled():
        sys.stdout.write(f"\nRocketMQ: {output}\n")
    assert output.spans > 400
    assert output.at_work > KILLS // 2  # a busy machine may be killed before it has begun
    assert (output.lost, output.unexpected, output.contradicted) == (0, 0, 0)
