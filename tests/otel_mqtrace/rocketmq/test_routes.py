"""Routes and clusters as name servers tell them."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_mqtrace.rocketmq.cluster import read_masters, read_route
from otel_mqtrace.rocketmq.commands import Queue
from otel_mqtrace.rocketmq.frames import ProtocolError

BROKER = {"cluster": "C", "brokerName": "broker-a", "brokerAddrs": {"1": "10.0.0.2:10911", "0": "10.0.0.1:10911"}}
QUEUES = {"brokerName": "broker-a", "perm": 6, "readQueueNums": 2, "writeQueueNums": 1, "topicSysFlag": 0}


def _route(**changes):
    said = {"brokerDatas": [BROKER], "queueDatas": [{**QUEUES, **changes}], "filterServerTable": {}}
    return read_route("T", json.dumps(said).encode())


def test_a_route_tells_queues_to_read_to_write_and_whom_to_ask():
    """Reading prefers the master and may use a slave; writing may not."""
    route = _route()
    assert route.readable == (Queue("T", "broker-a", 0), Queue("T", "broker-a", 1))
    assert route.writable == (Queue("T", "broker-a", 0),)
    assert route.readers("broker-a") == ("10.0.0.1:10911", "10.0.0.2:10911")
    assert route.master("broker-a") == ("10.0.0.1:10911",)
    assert route.readers("another") == route.master("another") == ()


@pytest.mark.parametrize(("perm", "readable", "writable"), [(2, 0, 1), (4, 2, 0), (0, 0, 0)])
def test_permissions_count(perm, readable, writable):
    """A topic may be closed for either."""
    route = _route(perm=perm)
    assert (len(route.readable), len(route.writable)) == (readable, writable)


def test_the_json_of_old_name_servers_is_read():
    """Before 4.9.4 the ids of brokers were bare numbers; texts that look alike stay as they are."""
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"odd {1: \\" name"}],'
        b'"queueDatas":[{"brokerName":"odd {1: \\" name","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    route = read_route("T", body)
    assert route.master('odd {1: " name') == ("10.0.0.1:10911",)
    assert route.readable == (Queue("T", 'odd {1: " name', 0),)


def test_masters_are_all_brokers_with_one():
    slave = {**BROKER, "brokerAddrs": {"1": "10.0.0.3:10911"}}
    assert read_masters(json.dumps({"brokerAddrTable": {"a": BROKER, "b": slave}}).encode()) == ("10.0.0.1:10911",)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"queueDatas":[1]}',
        b'{"queueDatas":[{}]}',
        b'{"brokerDatas":{"a":1}}',
        b"[" * 9_999,
        b'"\\"' * 99_999,
    ],
)
def test_what_is_no_route_is_an_error_of_ours(body):
    """Never another exception."""
    with pytest.raises(ProtocolError):
        read_route("T", body)


def test_a_route_without_end_is_refused():
    """A number from elsewhere must not fill the memory."""
    with pytest.raises(ProtocolError, match="more than"):
        _route(readQueueNums=10**9)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "brokerDatas",
                    "queueDatas",
                    "brokerName",
                    "brokerAddrs",
                    "perm",
                    "readQueueNums",
                    "brokerAddrTable",
                    "0",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
)


@given(_json)
def test_any_json_is_a_route_or_an_error_of_ours(said):
    for read in (lambda body: read_route("T", body), read_masters):
        with suppress(ProtocolError):
            read(json.dumps(said).encode())
