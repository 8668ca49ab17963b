"""Unique ids look like RocketMQ's, never repeat, and survive threads and forks."""

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from unittest.mock import Mock

import pytest

from otel_mqtrace import message_id
from otel_mqtrace.testing import ManualClock
from tests.support.programs import run_in_child

DAY_MS = 86_400_000


def _clock(*moment):
    return ManualClock(wall_ns=int(datetime(*moment, tzinfo=timezone.utc).timestamp()) * 1_000_000_000)


def _fixed(clock):
    return message_id.UniqueIds(clock=clock, address="172.20.21.17", pid=0x16D14, origin=0x18B4AAC2)


def test_id_has_the_layout_of_rocketmq():
    ids = _fixed(_clock(2026, 11, 1, 0, 0, 1))
    assert ids.new() == "AC1415116D1418B4AAC2000003E80000"
    assert ids.new() == "AC1415116D1418B4AAC2000003E80001"


def test_id_with_an_ipv6_address_is_read_back():
    made = message_id.UniqueIds(clock=_clock(2026, 11, 1, 0, 0, 1), address="2001:db8::1", pid=7, origin=9).new()
    assert made == "20010DB8000000000000000000000001" + "0007" + "00000009" + "000003E8" + "0000"
    assert message_id.read_unique_id(made) == message_id.UniqueId("2001:db8::1", 7, 9, 1000, 0)
    assert message_id.read_unique_id(made[1:]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0A9A002600002A9F0000000000002329", ("10.154.0.38", 10911, 9001)),
        ("20010DB8000000000000000000000001" + "00002A9F" + "0000010000000000", ("2001:db8::1", 10911, 1 << 40)),
        ("AC1415116D1418B42AC217FE1B4E0000", None),
        ("0A9A002600002A9FFFFFFFFFFFFFFFFF", None),
        ("order-7", None),
    ],
    ids=["IPv4", "IPv6", "unique id", "negative offset", "another text"],
)
def test_offset_id_is_told_by_its_port_and_offset_and_made_again(text, expected):
    assert message_id.read_offset_id(text) == (expected and message_id.OffsetId(*expected))
    assert expected is None or message_id.new_offset_id(*expected) == text


@pytest.mark.parametrize(("port", "offset"), [(-1, 0), (1 << 16, 0), (0, -1), (0, 1 << 63)])
def test_offset_id_that_cannot_be_is_not_made(port, offset):
    with pytest.raises(ValueError, match="no offset id"):
        message_id.new_offset_id("10.0.0.1", port, offset)


def test_time_of_an_id_restarts_with_the_month():
    clock = _clock(2026, 12, 31, 23, 59, 59)
    ids = _fixed(clock)
    last = message_id.read_unique_id(ids.new())
    assert last.ms_in_month == 31 * DAY_MS - 1000
    assert {last.made_ms(clock.wall_ns() // 10**6 + later) for later in (0, DAY_MS)} == {clock.wall_ns() // 10**6}
    clock.advance(ms=1_000)
    assert message_id.read_unique_id(ids.new()).ms_in_month == 0
    clock.advance(ms=2_000 - 31 * DAY_MS)
    assert message_id.read_unique_id(ids.new()).ms_in_month == 2000


def test_counter_wraps_at_16_bits():
    ids = _fixed(_clock(2026, 11, 21))
    first = [ids.new() for _ in range(1 << 16)]
    assert len(set(first)) == 1 << 16
    assert ids.new() == first[0]


def test_ids_of_several_threads_are_unique():
    with ThreadPoolExecutor(8) as pool:
        drawn = pool.map(lambda _: [message_id.new_unique_id() for _ in range(4000)], range(8))
        made = [one for part in drawn for one in part]
    assert len(set(made)) == 32_000
    assert all(len(one) == 32 and one == one.upper() for one in made)


def test_forked_child_has_other_ids_than_its_parent():
    ids = message_id.UniqueIds(clock=_clock(2026, 11, 21))
    first = message_id.read_unique_id(ids.new())

    def has_other_ids():
        theirs = message_id.read_unique_id(ids.new())
        return (theirs.pid, theirs.counter) == (os.getpid() & 0xFFFF, 1) and theirs.origin != first.origin

    assert run_in_child(has_other_ids) == 1
    assert message_id.read_unique_id(ids.new()) == first._replace(pid=os.getpid() & 0xFFFF, counter=1)


def test_ids_need_no_file_descriptor(monkeypatch):
    usual = message_id.own_address()
    message_id._sending_address.cache_clear()
    with monkeypatch.context() as without:
        without.setattr(socket, "socket", Mock(side_effect=OSError(24, "Too many open files")))
        assert (message_id.UniqueIds().new()[:8], message_id.own_address()) == ("7F000001", "127.0.0.1")
    assert message_id.own_address() == usual
