"""From the trace topic into the landing, against the embedded broker."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import threading

import pytest
from confluent_kafka.cimpl import Producer

from bridge.embedded.cluster import EmbeddedKafka
from bridge.forwarder.service import forward_once, forward_until
from bridge.forwarder.source import KafkaTraceSource
from bridge.landing.writer import LandingWriter
from otel_mqtrace._errors import PeerError, UsageError
from tests.support.landings import landed_lines

TOPIC = "RMQ_SYS_TRACE_TOPIC"
UNREACHABLE = "127.0.0.1:1"
FORWARD = [sys.executable, "-c", "import sys; from otel_mqtrace.cli import main; sys.exit(main())", "forward"]


@pytest.fixture
def kafka():
    """A broker of the test's own, with a trace topic of three partitions."""
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
    """Every partition, every field, byte for byte."""
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
    """In the same source and, by the group's offsets, in the next one."""
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
    """Its memory is its own."""
    _send(kafka, b"1")
    for group in ("one", "two"):
        with _source(kafka, group=group) as source:
            assert forward_once(source, LandingWriter(tmp_path)).messages == 1


def test_nothing_is_committed_before_it_is_landed(kafka, tmp_path):
    """A landing that fails loses nothing: the next pass reads it again."""
    _send(kafka, b"1", b"2")
    (tmp_path / "file").touch()
    with _source(kafka) as source, pytest.raises(UsageError, match="cannot write"):
        forward_once(source, LandingWriter(tmp_path / "file"))
    with _source(kafka) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 2


def test_many_messages_come_in_batches_and_all_of_them(kafka, tmp_path):
    """More than one batch, over all partitions, none lost, none doubled."""
    values = [f"{number:05}".encode() for number in range(2345)]
    _send(kafka, *values)
    with _source(kafka) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 2345
    assert _bodies(tmp_path) == values


def test_an_empty_topic_is_no_error(kafka, tmp_path):
    """Nothing there, nothing written."""
    with _source(kafka) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == 0
    assert list(tmp_path.iterdir()) == []


def _trimmed_topic(kafka):
    """Fill one partition beyond what the embedded broker keeps."""
    _send(kafka, *[os.urandom(500_000) for _ in range(16)], partition=0)
    low, high = kafka.watermarks(TOPIC)[0]
    assert 0 < low < high
    return low, high


def test_what_retention_removed_is_a_loud_failure(kafka, tmp_path):
    """Never a silent gap; the sentence says which offsets and what to do."""
    low, _ = _trimmed_topic(kafka)
    with (
        _source(kafka) as source,
        pytest.raises(PeerError, match=rf"offsets 0 to {low - 1} are gone.*--accept-trimmed"),
    ):
        forward_once(source, LandingWriter(tmp_path))


def test_what_retention_removed_can_be_accepted_and_is_counted(kafka, tmp_path):
    """Then the rest is forwarded."""
    low, high = _trimmed_topic(kafka)
    with _source(kafka, accept_trimmed=True) as source:
        assert forward_once(source, LandingWriter(tmp_path)).messages == high - low
        assert [(gone.partition, gone.offsets) for gone in source.trimmed] == [(0, low)]


def test_an_unreachable_broker_is_one_sentence():
    """Naming the broker and the topic."""
    with (
        KafkaTraceSource(UNREACHABLE, TOPIC, timeout_ms=300) as source,
        pytest.raises(PeerError, match=rf"{UNREACHABLE} does not answer for {TOPIC}"),
    ):
        list(source.drain())


def test_it_goes_on_until_it_is_stopped(kafka, tmp_path):
    """And has landed and committed what it read by then."""
    stopped = threading.Event()

    class StoppingAfterTwo(LandingWriter):
        passes = 0

        def finish(self):
            self.passes += 1
            if self.passes == 2:
                stopped.set()
            return super().finish()

    _send(kafka, b"1")
    with _source(kafka) as source:
        counts = forward_until(stopped, source, StoppingAfterTwo(tmp_path), pause_ms=1)
        assert (counts.messages, len(counts.parts)) == (1, 1)
        assert forward_once(source, LandingWriter(tmp_path)).messages == 0


def _run(*arguments):
    return subprocess.run([*FORWARD, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_command_forwards_once_into_parquet(kafka, tmp_path):
    """Exit 0, and the counts as JSON for a machine."""
    _send(kafka, b"1", b"22")
    done = _run(
        "--source", f"kafka://{kafka.bootstrap_servers}/{TOPIC}", "--landing", str(tmp_path), "--once", "--json"
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    assert (told["messages"], told["body_bytes"], told["trimmed_offsets"]) == (2, 3, 0)
    assert [(tmp_path / "native" / part).suffix for part in told["parts"]] == [".parquet"]


def test_the_command_says_in_one_line_that_a_broker_does_not_answer(tmp_path):
    """Exit 1: nothing uncommitted is lost."""
    source = f"kafka://{UNREACHABLE}/{TOPIC}"
    done = _run("--source", source, "--landing", str(tmp_path), "--once", "--timeout-ms", "300")
    assert done.returncode == 1
    assert done.stderr.startswith("mqtrace: error: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("source", ["somewhere", "kafka://only-a-host", "kafka://host:1/"])
def test_the_command_refuses_a_source_it_does_not_understand(source, tmp_path):
    """Exit 2, with the form that is understood."""
    done = _run("--source", source, "--landing", str(tmp_path), "--once")
    assert done.returncode == 2
    assert "kafka://BOOTSTRAP/TOPIC" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_command_stops_cleanly_on_a_signal(kafka, tmp_path, number):
    """What was read is landed and committed, and the exit is 0."""
    _send(kafka, b"1")
    source = f"kafka://{kafka.bootstrap_servers}/{TOPIC}"
    command = [*FORWARD, "--source", source, "--landing", str(tmp_path), "--landing-format", "jsonl"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        with _source(kafka, group="mqtrace-forward") as watcher:
            _wait_for_commit(watcher)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert out.startswith("1 trace messages")
    assert _bodies(tmp_path) == [b"1"]


def _wait_for_commit(watcher):
    """Ask the broker, which answers in its own time, until the group has a committed offset."""
    deadline = watcher._clock.monotonic_ns() + 30_000_000_000
    while watcher._clock.monotonic_ns() < deadline:
        watcher._next.clear()
        watcher._committed.clear()
        watcher._ends()
        if any(watcher._committed.values()):
            return
    raise AssertionError("nothing was committed in time")
