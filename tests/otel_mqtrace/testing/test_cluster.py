"""The public test kit and the embedded cluster."""

import logging
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, cimpl
from opentelemetry import context
from opentelemetry.instrumentation.utils import is_instrumentation_enabled

from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.testing import ManualClock, RecordingExporter, embedded_kafka, recording_provider
from otel_mqtrace.testing.embedded import RETENTION_BYTES, EmbeddedKafka, load_mock_api
from tests.support.programs import run_in_child, run_python

QUIET = logging.getLogger("tests.embedded")
WAIT_S = 15.0


kafka = pytest.fixture(embedded_kafka)


def producer_of(kafka: EmbeddedKafka, **conf: object) -> cimpl.Producer:
    return cimpl.Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, **conf}, logger=QUIET)


def send(producer: cimpl.Producer, topic: str, *values: bytes, **how: object) -> list[KafkaError | None]:
    reports: list[KafkaError | None] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: reports.append(error), **how)
    assert producer.flush(WAIT_S) == 0
    return reports


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's list of threads")
def test_signals_come_to_the_threads_of_the_application_alone() -> None:
    before = _blocked_signals()
    with EmbeddedKafka() as running:
        running.create_topic("orders")  # answered by the broker's thread: it has its mask by now
        started = {thread: blocked for thread, blocked in _blocked_signals().items() if thread not in before}
        assert started
        assert all(blocked >> (signal.SIGALRM - 1) & 1 for blocked in started.values())
        assert signal.SIGALRM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def _blocked_signals() -> dict[str, int]:
    blocked = {}
    for path in Path("/proc/self/task").glob("*/status"):
        with suppress(OSError):  # a thread of an earlier test ends meanwhile
            name, mask = re.findall(r"^(?:Name|SigBlk):\t(.*)", path.read_text(), re.MULTILINE)
            if name.startswith("rdk:"):  # a thread of Python, by another test, may start meanwhile
                blocked[path.parent.name] = int(mask, 16)
    return blocked


def test_topic_has_the_requested_partitions(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders", 3)
    assert kafka.watermarks("orders") == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    with pytest.raises(PeerError, match="topic_create"):
        kafka.create_topic("orders", 3)


def test_topic_error_fails_its_sends_until_it_is_cleared(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders")
    kafka.set_topic_error("orders", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    (failed,) = send(producer_of(kafka), "orders", b"1")
    assert failed is not None
    assert failed.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    kafka.set_topic_error("orders", 0)
    assert send(producer_of(kafka), "orders", b"2") == [None]


def test_trimmed_topic_is_an_error(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("trace")
    producer = producer_of(kafka)
    send(producer, "trace", b"small")
    kafka.assert_untrimmed("trace")
    for _ in range(16):  # several requests: a request is the unit of retention
        send(producer, "trace", os.urandom(RETENTION_BYTES // 8))
    with pytest.raises(PeerError, match=r"trimmed messages of topic trace \(\d+ of partition 0\)"):
        kafka.assert_untrimmed("trace")


def test_closed_broker_leaves_no_thread(run_code: Callable[[str], str]) -> None:
    code = """
    import os
    from otel_mqtrace._errors import UsageError
    from otel_mqtrace.testing.embedded import EmbeddedKafka
    with EmbeddedKafka(brokers=3) as kafka:
        print(len(kafka.bootstrap_servers.split(",")), len(os.listdir("/proc/self/task")) > 1)
    kafka.close()
    while len(os.listdir("/proc/self/task")) > 1:  # a joined thread is listed until the system has removed it
        os.sched_yield()
    try:
        kafka.bootstrap_servers
    except UsageError as error:
        print(error)
    """
    assert run_code(code).startswith("3 True\nthe embedded broker is not running")


def test_fork_that_leaves_the_block_ends_and_the_broker_goes_on(kafka: EmbeddedKafka) -> None:
    def leave() -> None:
        signal.alarm(int(WAIT_S))  # it would wait for threads that a fork does not have
        kafka.close()

    assert run_in_child(leave) == 0
    assert send(producer_of(kafka), "orders", b"later") == [None]


def test_client_without_the_c_interface_is_refused_with_the_fix() -> None:
    with pytest.raises(PeerError, match="install confluent-kafka from a wheel"):
        load_mock_api(["/nowhere/librdkafka.so"])


def test_zero_brokers_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        EmbeddedKafka(brokers=0)


@pytest.mark.parametrize(("name", "partitions"), [("", 1), ("orders", 0), ("orders", -1), ("orders", 10**9)])
def test_topic_that_would_end_the_process_is_refused(kafka: EmbeddedKafka, name: str, partitions: int) -> None:
    with pytest.raises(UsageError, match="from 1 to 10000 partitions"):
        kafka.create_topic(name, partitions)


def test_missing_client_is_reported_with_the_extra() -> None:
    done = run_python("import sys; sys.modules['confluent_kafka'] = None; import otel_mqtrace.testing.embedded")
    assert done.returncode == 1
    assert done.stderr.endswith("'kafka' extra: pip install 'otel-mqtrace[kafka]', or '.[kafka]' in a checkout\n")


def test_manual_clock_moves_by_advance_only():
    clock = ManualClock(wall_ns=5)
    clock.advance(ms=2, ns=3)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (2_000_008, 2_000_003)


def test_fixed_ids_count_upwards():
    exporter = RecordingExporter()
    tracer = recording_provider(exporter, fixed_ids=True).get_tracer("t")
    for _ in range(2):
        tracer.start_span("x").end()
    assert [span.context.span_id for span in exporter.take_all()] == [1, 2]


def test_span_that_was_not_taken_fails_the_test():
    exporter = RecordingExporter()
    recording_provider(exporter).get_tracer("t").start_span("x").end()
    with pytest.raises(AssertionError, match="'x'"):
        exporter.assert_empty()
    with pytest.raises(AssertionError, match="no span y"):
        exporter.take("y")
    exporter.take("x")
    exporter.assert_empty()


def test_interrupted_export_leaves_instrumentation_on(tracer, monkeypatch):
    def interrupt(new):
        context.attach(new)
        raise TimeoutError

    monkeypatch.setattr("opentelemetry.sdk.trace.export.attach", interrupt)
    with pytest.raises(TimeoutError):
        tracer.start_span("x").end()
    assert is_instrumentation_enabled()
