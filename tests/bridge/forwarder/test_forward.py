"""From the trace topic into the landing, against the embedded broker."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.cimpl import Consumer, Producer

import bridge.forwarder.sources.kafka as source_module
from bridge.forwarder.service import forward_once, forward_until
from bridge.forwarder.sources.kafka import KafkaTraceSource
from otel_mqtrace._clock import SystemClock
from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.cli import main
from otel_mqtrace.landing import LandingWriter
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.support.killing import running_forward
from tests.support.landings import landed_lines

TOPIC = "RMQ_SYS_TRACE_TOPIC"
OFFSET_FETCH = 9  # an API key of the protocol


@pytest.fixture
def kafka():
    with EmbeddedKafka() as embedded:
        embedded.create_topic(TOPIC, 3)
        yield embedded


def _send(kafka, *values, keys="k1 k2", **options):
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "log_level": 0})
    for value in values:
        producer.produce(
            TOPIC, value=value, headers=[("KEYS", keys), ("KEYS", None)], timestamp=1_700_000_000_000, **options
        )
    assert producer.flush(20) == 0


def _source(kafka, **options):
    return KafkaTraceSource(kafka.bootstrap_servers, TOPIC, **options)


def _bodies(root):
    return sorted(base64.b64decode(line["body_base64"]) for line in landed_lines(root))


def test_a_pass_lands_everything_that_is_there(kafka, tmp_path):
    _send(kafka, b"a\x01\xff\x02", partition=2)
    _send(kafka, b"", keys="键", partition=0)
    with _source(kafka) as source:
        counts = forward_once(source, LandingWriter(tmp_path))
    assert (counts.messages, counts.body_bytes, len(counts.parts)) == (2, 4, 1)
    lines = sorted(landed_lines(tmp_path), key=lambda line: line["partition"])
    assert lines[0] == {
        "source": TOPIC,
        "partition": 0,
        "offset": 0,
        "arrival_ms": 1_700_000_000_000,
        "keys": "键",
        "body_base64": "",
    }
    assert base64.b64decode(lines[1]["body_base64"]) == b"a\x01\xff\x02"


def test_the_next_pass_goes_on_where_the_last_one_stopped(kafka, tmp_path):
    _send(kafka, b"1", b"2")
    with _source(kafka) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 2
        assert forward_once(source, LandingWriter(tmp_path)).messages == 0
        _send(kafka, b"3")
        assert forward_once(source, LandingWriter(tmp_path)).messages == 1
    _send(kafka, b"4")
    with _source(kafka) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 1
    assert _bodies(tmp_path) == [b"1", b"2", b"3", b"4"]


def test_another_group_begins_at_the_beginning(kafka, tmp_path):
    _send(kafka, b"1")
    for group in ("one", "two"):
        with _source(kafka, group=group) as source:
            assert forward_once(source, LandingWriter(tmp_path)).messages == 1


def test_nothing_is_committed_before_it_is_landed(kafka, tmp_path):
    """A landing that fails loses nothing: the next pass reads it again, of the same source and of another one."""
    _send(kafka, b"1", b"2")
    (tmp_path / "file").touch()
    for _ in range(2):
        with _source(kafka) as source, pytest.raises(UsageError, match="cannot write"):
            forward_once(source, LandingWriter(tmp_path / "file"))
    with _source(kafka) as source:
        with pytest.raises(UsageError, match="cannot write"):
            forward_once(source, LandingWriter(tmp_path / "file"))
        assert forward_once(source, LandingWriter(tmp_path)).messages == 2


def test_many_messages_come_in_batches_and_all_of_them(kafka, tmp_path):
    values = [f"{number:05}".encode() for number in range(2345)]
    _send(kafka, *values)
    with _source(kafka) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 2345
    assert _bodies(tmp_path) == values


class _WhileReading(SystemClock):
    """A clock that lets something happen when it is first read: after the ends are known, before anything is fetched."""

    def __init__(self, happens):
        self._happens = [happens]

    def monotonic_ns(self):
        if self._happens:
            self._happens.pop()()
        return super().monotonic_ns()


def test_what_arrives_while_a_topic_is_read_is_landed_once(kafka, tmp_path):
    """A live topic: fetched together with the rest or by the next pass, but neither lost nor doubled."""
    early, late = ([f"{number:03}".encode() for number in numbers] for numbers in (range(100), range(100, 150)))
    _send(kafka, *early, partition=0)
    clock = _WhileReading(lambda: _send(kafka, *late, partition=0))
    soon = {"fetch.wait.max.ms": 10}  # both are handed out by one call
    with _source(kafka, clock=clock, kafka_config=soon) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages >= 100
        forward_once(source, LandingWriter(tmp_path))
    assert _bodies(tmp_path) == [*early, *late]


class _StopAfterFirstLook(threading.Event):
    """Set by whoever asks for the second time."""

    asked = False

    def is_set(self):
        if self.asked:
            self.set()
        self.asked = True
        return super().is_set()


def test_a_large_backlog_is_committed_part_by_part(kafka, tmp_path):
    _send(kafka, *[b"x"] * 1200, partition=0)
    landing = LandingWriter(tmp_path, max_part_bytes=500)
    stopped = _StopAfterFirstLook()
    with _source(kafka) as source:
        moved = forward_until(stopped, source, landing, pause_ms=1)
    assert 0 < moved.messages < 1200
    assert len(landed_lines(tmp_path)) == moved.messages
    with _source(kafka) as source:
        rest = forward_once(source, LandingWriter(tmp_path, max_part_bytes=500))
    assert len(rest.parts) >= 2
    assert moved.messages + rest.messages == 1200
    assert sorted(line["offset"] for line in landed_lines(tmp_path)) == list(range(1200))


def test_partition_without_an_offset_is_one_error_line(kafka, monkeypatch):
    """Not a beginning from the beginning: a broker may refuse single partitions, which the embedded one never does."""

    class Refused(Consumer):
        def committed(self, partitions, **_):
            error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
            return [SimpleNamespace(partition=each.partition, offset=-1001, error=error) for each in partitions]

    monkeypatch.setattr(source_module, "Consumer", Refused)
    _send(kafka, b"1")
    with _source(kafka) as refused, pytest.raises(PeerError, match="Topic authorization failed"):
        list(refused.drain())


def test_empty_topic_lands_no_part(kafka, tmp_path):
    with _source(kafka) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 0
    assert list(tmp_path.iterdir()) == []


def _trimmed_topic(kafka):
    _send(kafka, *[os.urandom(500_000) for _ in range(16)], partition=0)
    low, high = kafka.watermarks(TOPIC)[0]
    assert 0 < low < high
    return low, high


def test_offsets_that_retention_removed_are_an_error_or_counted(kafka, tmp_path):
    low, high = _trimmed_topic(kafka)
    gone = rf"offsets 0 to {low - 1} are gone.*--accept-trimmed"
    with _source(kafka) as source, pytest.raises(PeerError, match=gone):
        forward_once(source, LandingWriter(tmp_path))
    with _source(kafka, accept_trimmed=True) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == high - low
        assert [(gone.partition, gone.offsets) for gone in source.trimmed] == [(0, low)]


def test_a_topic_that_is_shorter_than_what_was_committed_is_a_loud_failure(kafka, tmp_path):
    _send(kafka, b"1", b"2", partition=1)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": source_module.DEFAULT_GROUP})
    consumer.commit(offsets=[TopicPartition(TOPIC, 1, 7)], asynchronous=False)
    consumer.close()
    with _source(kafka) as source, pytest.raises(PeerError, match=r"\[1\] ends at 2, .* remembers 7.*--group"):
        forward_once(source, LandingWriter(tmp_path))
    with _source(kafka, group="another") as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 2


@pytest.mark.parametrize("code", ["COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR"])
def test_moving_coordinator_is_queried_again(kafka, tmp_path, code):
    """A broker that has just started says so of every group, and a pass that gave up would have forwarded nothing."""
    _send(kafka, b"1")
    kafka.push_request_errors(OFFSET_FETCH, *[getattr(KafkaError, code)] * 3)
    with _source(kafka, group=code) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 1


def test_group_without_a_coordinator_is_one_error_line(kafka):
    kafka.push_request_errors(OFFSET_FETCH, *[KafkaError.NOT_COORDINATOR] * 1000)
    with (
        _source(kafka, group="nobody's", timeout_ms=1_000) as source,
        pytest.raises(PeerError, match=r"does not answer for .*oordinator"),
    ):
        list(source.drain())


def test_it_goes_on_until_it_is_stopped(kafka, tmp_path):
    stopped, passes = threading.Event(), []

    def on_pass(passed):
        passes.append(passed.messages)
        if len(passes) == 1:
            _send(kafka, b"2", b"3")
        elif sum(passes) == 3:
            stopped.set()

    _send(kafka, b"1")
    with _source(kafka) as source:
        counts = forward_until(stopped, source, LandingWriter(tmp_path), pause_ms=1, on_pass=on_pass)
    assert (counts.messages, passes[0]) == (3, 1)
    assert len(counts.parts) >= 2
    with _source(kafka) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 0


def test_the_command_forwards_once_into_parquet(kafka, tmp_path, capsys):
    _send(kafka, b"1", b"22")
    source = f"kafka://{kafka.bootstrap_servers}/{TOPIC}"
    assert main(["forward", "--source", source, "--landing", str(tmp_path), "--once", "--json"]) == 0
    done = capsys.readouterr()
    told = json.loads(done.out)
    assert done.err == ""
    assert (told["messages"], told["body_bytes"], told["trimmed_offsets"]) == (2, 3, 0)
    assert [(tmp_path / "native" / part).suffix for part in told["parts"]] == [".parquet"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_stops_cleanly_on_a_signal(kafka, tmp_path, number):
    _send(kafka, b"1")
    source = f"kafka://{kafka.bootstrap_servers}/{TOPIC}"
    with running_forward("--source", source, "--landing", str(tmp_path), "--landing-format", "jsonl") as process:
        assert process.stderr.readline() == "mqtrace: 1 trace messages committed\n"
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.startswith("1 trace messages")
    assert _bodies(tmp_path) == [b"1"]
    with _source(kafka) as again:
        assert forward_once(again, LandingWriter(tmp_path)).messages == 0
