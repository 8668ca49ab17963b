"""A recorded send or delivery of aiokafka exports exactly what the span of the same event exports."""

import asyncio
from types import SimpleNamespace

from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import NotLeaderForPartitionError
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_mqtrace.clients.aiokafka.client import active
from otel_mqtrace.clients.aiokafka.consumer import traced_getmany, traced_getone
from otel_mqtrace.clients.aiokafka.producer import traced_send
from otel_mqtrace.clients.consumer_state import traced_async_close
from otel_mqtrace.wire.native import DIALECTS
from tests.support.record_equality import World, assert_equal

texts = st.binary(max_size=6) | st.sampled_from([b"k1 k2", b"", b"a\x01b", "订单".encode()])
headers = st.lists(st.tuples(st.sampled_from(["TAGS", "KEYS", "other"]), texts), max_size=3)


class _Producer:
    _value_serializer = None

    def __init__(self, cluster_id):
        cluster = SimpleNamespace(
            _mqtrace_cluster_id=cluster_id,
            leader_for_partition=lambda partition: partition.partition,
            broker_metadata=lambda node: None if node == 3 else SimpleNamespace(host=f"b{node}", port=9092),
        )
        self.client = SimpleNamespace(
            cluster=cluster, _bootstrap_servers="b1:9092", _client_id="shop", _security_protocol="SSL"
        )


OUTCOMES = {
    "stored": (2, 7),
    "stored, leader unknown": (3, 1 << 40),
    "stored at an unknown offset": (2, -1),
    "acks=0": None,
    "refused": NotLeaderForPartitionError(),
    "raised": ValueError("no such partition"),
    "cancelled": asyncio.CancelledError(),
}
sends = st.builds(
    SimpleNamespace,
    topic=st.sampled_from(["orders", "订单", "100%", "%s"]),
    value=st.none() | st.binary(max_size=300),
    key=st.none() | st.binary(max_size=8) | st.text(max_size=4, alphabet="aé"),
    partition=st.none() | st.integers(0, 3),
    headers=st.none() | headers | headers.map(tuple),
    outcome=st.sampled_from(sorted(OUTCOMES)),
    took_ms=st.sampled_from([0, 1, 300]),
    cluster_id=st.none() | st.just("C1"),
)


async def _play(world, send):
    outcome, sent = OUTCOMES[send.outcome], []

    async def original(self, topic, value=None, key=None, partition=None, timestamp_ms=None, headers=None):
        sent.append((topic, value, key, partition, headers))
        if send.outcome == "raised":
            raise outcome
        return asyncio.get_running_loop().create_future()

    producer = _Producer(send.cluster_id)
    try:
        future = await traced_send(original)(
            producer, send.topic, send.value, send.key, send.partition, headers=send.headers
        )
    except ValueError:
        return sent
    world.clock.advance(ms=send.took_ms)
    if isinstance(outcome, asyncio.CancelledError):
        future.cancel()
    elif isinstance(outcome, Exception):
        future.set_exception(outcome)
        future.exception()
    else:
        place = outcome and SimpleNamespace(topic=send.topic, partition=outcome[0], offset=outcome[1])
        future.set_result(place)
    await asyncio.wait([future])
    return sent


@given(sends, st.sampled_from(sorted(DIALECTS)))
@settings(max_examples=40)
def test_recorded_send_equals_the_span_of_the_same_send(send, dialect):
    recorded, other = World(records=True), World(records=False)
    results = []
    for world in (recorded, other):
        with world.tracing_in(active):
            results.append(asyncio.run(_play(world, send)))
    assert results[0] == results[1]
    assert_equal(recorded, other, dialect, expect_records=send.outcome in {"stored", "stored, leader unknown"})


class _Consumer:
    _group_id = "billing"

    def __init__(self, cluster_id):
        self._client = _Producer(cluster_id).client


PARENT = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03")


@st.composite
def records(draw, topic):
    value = draw(st.none() | st.binary(max_size=20))
    key = draw(st.none() | st.just(b"") | st.binary(max_size=8))
    named = draw(st.dictionaries(st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "other"]), texts, max_size=3))
    travelled = (*[PARENT] * draw(st.booleans()), *named.items())
    partition, offset = draw(st.integers(0, 3)), draw(st.integers(0, 1 << 40))
    timestamp = draw(st.sampled_from([-1, 0, 1_700_000_000_000]))
    sizes = -1 if key is None else len(key), -1 if value is None else len(value)
    return lambda: ConsumerRecord(topic, partition, offset, timestamp, 0, key, value, None, *sizes, travelled)


def _returning(answer):
    async def method(self):
        return answer

    return method


async def _consume(world, batch, make, cluster_id, took_ms):
    consumer = _Consumer(cluster_id)
    messages = [each() for each in make]

    by_partition = {}
    for each in messages:
        by_partition.setdefault(TopicPartition(each.topic, each.partition), []).append(each)
    fetch = traced_getmany(_returning(by_partition)) if batch else traced_getone(_returning(messages[0]))
    await fetch(consumer)
    world.clock.advance(ms=took_ms)
    await traced_async_close(_returning(None))(consumer)
    return consumer  # it stays until the spans are exported


@given(
    st.sampled_from(["orders", "订单", "100%"]).flatmap(lambda t: st.lists(records(t), min_size=1, max_size=4)),
    st.booleans(),
    st.none() | st.just("C1"),
    st.sampled_from([0, 1, 300]),
    st.sampled_from(sorted(DIALECTS)),
)
@settings(max_examples=40)
def test_recorded_delivery_equals_the_span_of_the_same_delivery(make, batch, cluster_id, took_ms, dialect):
    recorded, other = World(records=True), World(records=False)
    for world in (recorded, other):
        with world.tracing_in(active):
            asyncio.run(_consume(world, batch, make, cluster_id, took_ms))
    assert_equal(recorded, other, dialect, expect_records=True)
