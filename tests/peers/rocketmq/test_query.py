"""The query against a real RocketMQ: what mqadmin finds, and what it does not."""

from dataclasses import replace
from time import time

import pytest

from bridge.query.findings import in_one_sentence
from bridge.query.rocketmq_archive import BrokerArchive
from bridge.query.search import ArrivalRange
from otel_mqtrace.message_id import new_unique_id
from tests.peers.peer import until
from tests.support.archives import search_once
from tests.support.native_spans import pub, sub

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def topic(rocketmq_server):
    """A trace topic of these tests' own."""
    return rocketmq_server.create_topic("peer-query", queues=4)


@pytest.fixture(scope="module")
def sent(rocketmq_server, topic):
    """A message that was sent and consumed by two groups, traced to the topic; its id."""
    whole = pub(0)
    whole = replace(whole, beans=(replace(whole.beans[0], msg_id=new_unique_id()),))
    consumed = sub(*whole.beans, before=False)
    by_groups = [replace(consumed, group_name=name, request_id=new_unique_id()) for name in ("billing", "stock")]
    rocketmq_server.export(whole, *by_groups, trace_topic=topic)
    return whole.beans[0].msg_id


def _search(rocketmq_server, topic, msg_id, **options):
    return search_once(BrokerArchive(rocketmq_server.name_server, [topic], **options), msg_id)


def test_index_finds_what_mqadmin_finds(rocketmq_server, topic, sent):
    stories = until(
        lambda: _search(rocketmq_server, topic, sent).stories,
        lambda stories: [len(story.groups) for story in stories] == [2],
        patience_s=30,
    )
    assert [in_one_sentence(story) for story in stories] == ["Sent once; consumed by 2 groups."]


def test_scan_finds_a_message_in_its_time_range(rocketmq_server, topic, sent):
    now_ms = int(time() * 1000)
    minute_ms = 60_000
    around = _search(
        rocketmq_server, topic, sent, reads_all=True, arrivals=ArrivalRange(now_ms - minute_ms, now_ms + minute_ms)
    )
    assert [len(story.groups) for story in around.stories] == [2]
    for arrivals in (ArrivalRange(now_ms + minute_ms, None), ArrivalRange(None, now_ms - 10 * minute_ms)):
        assert _search(rocketmq_server, topic, sent, reads_all=True, arrivals=arrivals).stories == ()
