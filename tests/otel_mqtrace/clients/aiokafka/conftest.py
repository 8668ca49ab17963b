"""The instrumentor of aiokafka, on the strict spans of every test."""

import pytest

from otel_mqtrace.instrumentor import AioKafkaInstrumentor
from tests.support.asyncio_kafka import consuming, producing


@pytest.fixture
def instrumentor():
    return AioKafkaInstrumentor()


@pytest.fixture
def handing(instrument, kafka, fill, topic):
    """Put messages on the topic, switch tracing on with options, and give a consumer of it.

    A message is its value or the arguments of ``produce``; a number alone makes that many, with the ids ID0, ID1, ….
    """

    def start(*messages, conf=None, **options):
        if messages and isinstance(messages[0], int):
            messages = [{"value": b"x" * (n + 1), "headers": [("UNIQ_KEY", f"ID{n}")]} for n in range(messages[0])]
        fill(topic, *messages or [b"x"])
        instrument(**options)
        return consuming(kafka, topic, **(conf or {}))

    return start


@pytest.fixture
def sending(instrument, kafka):
    def start(options=None, **conf):
        instrument(**(options or {}))
        return producing(kafka, **conf)

    return start
