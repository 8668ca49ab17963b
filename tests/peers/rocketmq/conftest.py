"""Clients of the real proxy, their topics, and what a consumer of one receives."""

from itertools import count

import pytest
import rocketmq
from rocketmq.v5.exception import InternalErrorException

_numbers = count(1)
_PATIENCE_SECONDS = 60


@pytest.fixture
def started(rocketmq_server):
    """Start clients of the real proxy, given their class and further arguments; all are shut down at the end."""
    running = []

    def start(make, *args, **kwargs):
        conf = rocketmq.ClientConfiguration(rocketmq_server.endpoints, rocketmq.Credentials())
        client = make(conf, *args, **kwargs)
        client.startup()
        running.append(client)
        return client

    yield start
    for client in running:
        if client.is_running:
            client.shutdown()


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
    """Create a topic for messages of a type."""

    def create(message_type="NORMAL"):
        return rocketmq_server.create_topic(f"peer-{message_type.lower()}-{next(_numbers)}", message_type)

    return create
