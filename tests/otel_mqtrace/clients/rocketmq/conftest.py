"""The parts of every test of the RocketMQ client: a proxy that speaks gRPC, and its clients."""

import asyncio
from functools import partial

import pytest
import rocketmq

from otel_mqtrace.instrumentor import RocketMqInstrumentor
from tests.support.rocketmq_proxy import RocketMqProxy, clients_of, message_of


@pytest.fixture(autouse=True)
def loop_of_the_main_thread():
    """The client asks for the thread's event loop in its async calls; asyncio.run() elsewhere leaves it without one."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture
def proxy():
    with RocketMqProxy() as running:
        yield running


@pytest.fixture
def topic():
    return "orders"


@pytest.fixture
def instrumentor():
    return RocketMqInstrumentor()


@pytest.fixture
def instrument(instrument, clock):
    return lambda **options: instrument(**{"clock": clock, **options})


@pytest.fixture
def started(proxy):
    with clients_of(proxy.endpoints) as start:
        yield start


@pytest.fixture
def producer(instrument, started):
    instrument()
    return started(rocketmq.Producer)


@pytest.fixture
def consumer_of(started):
    """Start a simple consumer of a topic in the group ``billing`` that does not wait for messages."""

    def start(topic, **kwargs):
        subscription = {topic: rocketmq.FilterExpression()}
        return started(rocketmq.SimpleConsumer, "billing", subscription, await_duration=0, **kwargs)

    return start


@pytest.fixture
def message(topic):
    return partial(message_of, topic)
