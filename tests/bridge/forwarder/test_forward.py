"""From the trace topic into the landing, against the embedded broker."""

import base64
import os
import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.cimpl import Consumer

import bridge.forwarder.kafka_source as source_module
from bridge.forwarder.service import ForwardCounts, forward_once, forward_until
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.landing import LandingWriter
from tests.support.clocks import TickingClock
from tests.support.landings import landed_bodies, landed_lines

OFFSET_FETCH = 9  # an API key of the protocol


def test_pass_lands_every_message_with_its_place(topic, tmp_path):
    arrival = {"timestamp": 1_700_000_000_000}
    topic.send(b"a\x01\xff\x02", partition=2, **arrival)
    topic.send(b"", keys="键", partition=0, **arrival)
    with topic.source() as source:
        counts = forward_once(source, LandingWriter(tmp_path))
    assert (counts.messages, counts.body_bytes, counts.parts) == (2, 4, 1)
    empty, raw = sorted(landed_lines(tmp_path), key=lambda line: line["partition"])
    place = {"source": topic.name, "partition": 0, "offset": 0, "arrival_ms": 1_700_000_000_000}
    assert empty == {**place, "keys": "键", "body_base64": ""}
    assert base64.b64decode(raw["body_base64"]) == b"a\x01\xff\x02"


def test_failed_landing_commits_nothing(topic, tmp_path):
    topic.send(b"1", b"2")
    (tmp_path / "file").touch()
    for _ in range(2):
        with topic.source() as source:
            with pytest.raises(UsageError, match="cannot write"):
                forward_once(source, LandingWriter(tmp_path / "file"))
            assert sum(len(batch) for batch in source.drain()) == 2


class _WhileReading(SystemClock):
    """A clock that lets something happen when it is first read: after the ends are known, before anything is fetched."""

    def __init__(self, happens):
        self._happens = [happens]

    def monotonic_ns(self):
        if self._happens:
            self._happens.pop()()
        return super().monotonic_ns()


def test_message_sent_during_a_pass_is_landed_once(topic, tmp_path):
    early, late = ([f"{number:03}".encode() for number in numbers] for numbers in (range(100), range(100, 150)))
    topic.send(*early, partition=0)
    clock = _WhileReading(lambda: topic.send(*late, partition=0))
    # both are handed out by one call; an application's
    config = {"fetch.wait.max.ms": 10, "enable.partition.eof": True}
    with topic.source(clock=clock, kafka_config=config) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages >= 100
        forward_once(source, LandingWriter(tmp_path))
    assert sorted(landed_bodies(tmp_path)) == [*early, *late]


def test_large_backlog_is_committed_part_by_part(topic, tmp_path):
    topic.send(*[b"x"] * 1200, partition=0)
    stopped = threading.Event()
    with topic.source(clock=_WhileReading(stopped.set)) as source:
        moved = forward_until(stopped, source, LandingWriter(tmp_path, max_part_bytes=500), pause_ms=1)
    assert 0 < moved.messages < 1200
    assert len(landed_lines(tmp_path)) == moved.messages
    with topic.source() as source:
        rest = forward_once(source, LandingWriter(tmp_path, max_part_bytes=500))
    assert rest.parts >= 2
    assert moved.messages + rest.messages == 1200
    assert sorted(line["offset"] for line in landed_lines(tmp_path)) == list(range(1200))


def test_partition_without_an_offset_is_one_error_line(topic, monkeypatch):
    """Not a beginning from the beginning: a broker may refuse single partitions, which the embedded one never does."""

    class Refused(Consumer):
        def committed(self, partitions, **_):
            error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            return [SimpleNamespace(partition=each.partition, offset=-1001, error=error) for each in partitions]

    monkeypatch.setattr(source_module, "Consumer", Refused)
    topic.send(b"1")
    with topic.source() as refused, pytest.raises(PeerError, match="Topic authorization failed"):
        list(refused.drain())


def test_offsets_that_retention_removed_are_an_error_or_counted(topic, tmp_path):
    topic.send(*[os.urandom(500_000) for _ in range(16)], partition=0)
    low, high = topic.kafka.watermarks(topic.name)[0]
    assert 0 < low < high
    gone = rf"\[0\] was trimmed: offsets 0 to {low - 1} are gone.*--accept-trimmed"
    with topic.source() as source, pytest.raises(PeerError, match=gone):
        forward_once(source, LandingWriter(tmp_path))
    with topic.source(accept_trimmed=True) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == high - low
        assert source.trimmed == low


class _AfterDeletion(Consumer):
    """Answers as a topic of this name that was created again and filled beyond the position."""

    is_anew = False

    def consume(self, *arguments):
        messages = super().consume(*arguments)
        for message in messages if self.is_anew else ():
            message.set_value(b"other")
        return messages


def test_topic_created_again_and_filled_beyond_the_position_is_an_error(topic, monkeypatch):
    """The messages below the position would be skipped, and no count would name them."""
    monkeypatch.setattr(source_module, "Consumer", _AfterDeletion)
    topic.send(*[b"1"] * 3, partition=0)
    with topic.source() as source:
        for sent in (3, 1):
            assert sum(map(len, source.drain())) == sent
            source.commit()
            topic.send(b"2", partition=0)
        monkeypatch.setattr(_AfterDeletion, "is_anew", True)
        with pytest.raises(PeerError, match=r"\[0\] has another message at 3 than .* created again"):
            list(source.drain())


def test_topic_created_again_and_filled_beyond_the_position_within_a_drain_is_an_error(topic, monkeypatch):
    monkeypatch.setattr(source_module, "Consumer", _AfterDeletion)
    topic.send(*[b"1"] * 600, partition=0)
    with topic.source() as source:
        batches = source.drain()
        next(batch for batch in batches if batch)
        monkeypatch.setattr(_AfterDeletion, "is_anew", True)
        with pytest.raises(PeerError, match=r"\[0\] has another message at 0 than .* created again"):
            list(batches)


@pytest.mark.parametrize("code", ["COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"])
def test_moving_coordinator_is_queried_again(topic, tmp_path, code):
    """A broker that has just started says so of every group, and a pass that gave up would have forwarded nothing."""
    topic.send(b"1")
    topic.kafka.push_request_errors(OFFSET_FETCH, *[getattr(KafkaError, code)] * 3)
    with topic.source(group=code) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 1


def test_broker_that_falls_silent_before_the_commit_is_an_error(topic, monkeypatch):
    topic.send(b"1")
    with topic.source() as source:
        assert sum(map(len, source.drain())) == 1
        topic.kafka.set_rtt(-1, 3_600_000)
        monkeypatch.setattr(source, "_timeout_s", 0.5)
        with pytest.raises(
            PeerError,
            match=r"not committed for group mqtrace-forward: .* does not answer; what was read since .* forwarded again",
        ):
            source.commit()


def test_counts_of_many_passes_name_the_last_thousand_files():
    moved = sum((ForwardCounts(parts=1, files=(str(number),)) for number in range(2_000)), ForwardCounts())
    assert (moved.parts, moved.files[0], moved.files[-1]) == (2_000, "1000", "1999")


def test_group_without_a_coordinator_is_one_error_line(topic):
    topic.kafka.push_request_errors(OFFSET_FETCH, *[KafkaError.NOT_COORDINATOR] * 1000)
    with (
        topic.source(group="nobody's", clock=TickingClock(4_000)) as source,
        pytest.raises(PeerError, match=r"does not answer for .*oordinator"),
    ):
        list(source.drain())
