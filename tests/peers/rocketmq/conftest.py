"""Clients of the real proxy, their topics, and what a consumer of one receives."""

from itertools import count

import pytest
import rocketmq
from rocketmq.v5.exception import InternalErrorException

from tests.support.rocketmq_proxy import clients_of

_numbers = count(1)
_PATIENCE_SECONDS = 60


@pytest.fixture
def started(rocketmq_server):
    with clients_of(rocketmq_server.endpoints) as start:
        yield start


@pytest.fixture
def receive_from(rocketmq_server, started):
    """Make a consumer of a topic and a function that receives from it until something comes."""

    def make(topic):
        group = rocketmq_server.create_group(f"{topic}-billing")
        subscription = {topic: rocketmq.FilterExpression()}
        consumer = started(rocketmq.SimpleConsumer, group, subscription, await_duration=5)

        def receive(invisible_seconds=30):
            for _ in range(_PATIENCE_SECONDS):
                try:
                    messages = consumer.receive(16, invisible_seconds)
                except InternalErrorException:
                    continue  # "settings is null": the proxy does not know the new consumer yet
                if messages:
                    return messages
            raise AssertionError(f"nothing came from {topic}")

        return consumer, receive

    return make


@pytest.fixture
def topic_of(rocketmq_server):

    def create(message_type="NORMAL"):
        return rocketmq_server.create_topic(f"peer-{message_type.lower()}-{next(_numbers)}", message_type)

    return create
