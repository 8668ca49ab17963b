"""The public test kit and the embedded cluster."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Producer, cimpl

from otel_mqtrace._errors import PeerError, UsageError
from otel_mqtrace.testing import ManualClock, RecordingExporter, embedded_kafka, recording_provider
from otel_mqtrace.testing.embedded import RETENTION_BYTES, EmbeddedKafka

if TYPE_CHECKING:
    from collections.abc import Iterator


QUIET = logging.getLogger("tests.embedded")
WAIT_S = 15.0


@pytest.fixture
def kafka() -> Iterator[EmbeddedKafka]:
    with EmbeddedKafka() as running:
        yield running


def producer_of(kafka: EmbeddedKafka, **conf: object) -> cimpl.Producer:
    return cimpl.Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, **conf}, logger=QUIET)


def send(producer: cimpl.Producer, topic: str, *values: bytes, **how: object) -> list[KafkaError | None]:
    reports: list[KafkaError | None] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: reports.append(error), **how)
    assert producer.flush(WAIT_S) == 0
    return reports


def read(kafka: EmbeddedKafka, topic: str, group: str, count: int) -> list[cimpl.Message]:
    consumer = cimpl.Consumer(
        {"bootstrap.servers": kafka.bootstrap_servers, "group.id": group, "auto.offset.reset": "earliest"}, logger=QUIET
    )
    consumer.subscribe([topic])
    found: list[cimpl.Message] = []
    try:
        while len(found) < count:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{group} saw {len(found)} of {count} messages"
            assert message.error() is None, message.error()
            found.append(message)
    finally:
        consumer.close()
    return found


def test_a_message_comes_back_with_its_headers(kafka: EmbeddedKafka) -> None:
    headers = [("KEYS", "订单 🧾".encode()), ("a", b""), ("a", None), ("UNIQ_KEY", b"0A")]
    kafka.create_topic("orders", 1)
    assert send(producer_of(kafka), "orders", b"body", key=b"k", headers=headers) == [None]
    (message,) = read(kafka, "orders", "billing", 1)
    assert (message.headers(), message.key(), message.value()) == (headers, b"k", b"body")


def test_topic_has_the_requested_partitions(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders", 3)
    assert kafka.watermarks("orders") == {0: (0, 0), 1: (0, 0), 2: (0, 0)}
    with pytest.raises(PeerError, match="topic_create"):
        kafka.create_topic("orders", 3)


def test_two_groups_each_see_every_message(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders", 2)
    values = [str(number).encode() for number in range(20)]
    send(producer_of(kafka), "orders", *values)
    for group in ("billing", "shipping"):
        assert sorted(message.value() for message in read(kafka, "orders", group, 20)) == sorted(values)


def test_pushed_errors_reach_the_delivery_report(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders")
    kafka.push_request_errors(kafka.PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    producer = producer_of(kafka)
    (failed,) = send(producer, "orders", b"1")
    assert failed is not None
    assert failed.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert send(producer, "orders", b"2") == [None]


def test_cleared_errors_never_happen(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders")
    kafka.push_request_errors(kafka.PRODUCE, KafkaError.MSG_SIZE_TOO_LARGE)
    kafka.clear_request_errors(kafka.PRODUCE)
    assert send(producer_of(kafka), "orders", b"1") == [None]


def test_a_topic_error_fails_its_sends_until_healed(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders")
    kafka.set_topic_error("orders", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    (failed,) = send(producer_of(kafka, **{"message.timeout.ms": 2000}), "orders", b"1")
    assert failed is not None
    assert failed.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    kafka.set_topic_error("orders", 0)
    assert send(producer_of(kafka), "orders", b"2") == [None]


def test_a_broker_that_is_down_delivers_when_it_is_up_again(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders")
    producer = producer_of(kafka, **{"reconnect.backoff.max.ms": 100})
    assert send(producer, "orders", b"1") == [None]
    kafka.broker_down(1)
    producer.produce("orders", b"2")
    assert producer.flush(0.3) == 1
    kafka.broker_up(1)
    assert producer.flush(WAIT_S) == 0
    assert kafka.watermarks("orders") == {0: (0, 2)}


def test_round_trip_time_can_be_set(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders")
    producer = producer_of(kafka)
    send(producer, "orders", b"warm")
    kafka.set_rtt(-1, 200)
    latencies: list[float] = []
    producer.produce("orders", b"1", on_delivery=lambda _, message: latencies.append(message.latency()))
    assert producer.flush(WAIT_S) == 0
    assert latencies[0] >= 0.15


def test_transactions_commit_and_abort(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders")
    producer = producer_of(kafka, **{"transactional.id": "orders-1"})
    producer.init_transactions(WAIT_S)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        assert send(producer, "orders", b"x") == [None]
        end(WAIT_S)


def test_a_trimmed_topic_is_a_loud_failure(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("trace")
    producer = producer_of(kafka)
    send(producer, "trace", b"small")
    kafka.assert_untrimmed("trace")
    for _ in range(16):  # several requests: a request is the unit of retention
        send(producer, "trace", os.urandom(RETENTION_BYTES // 8))
    with pytest.raises(PeerError, match=r"trimmed topic trace \(partition 0: \d+ messages\)"):
        kafka.assert_untrimmed("trace")


def test_nothing_is_left_after_the_block() -> None:
    before = len(list(Path("/proc/self/task").iterdir())), threading.active_count()
    with EmbeddedKafka(brokers=3) as kafka:
        assert len(kafka.bootstrap_servers.split(",")) == 3
    kafka.close()
    assert (len(list(Path("/proc/self/task").iterdir())), threading.active_count()) <= before
    with pytest.raises(UsageError, match="not running"):
        _ = kafka.bootstrap_servers


def test_without_the_c_interface_it_is_still_a_broker() -> None:
    with EmbeddedKafka(librdkafka=["/nowhere/librdkafka.so"]) as kafka:
        assert send(producer_of(kafka), "orders", b"1") == [None]
        assert len(kafka.watermarks("orders")) == 4
        with pytest.raises(PeerError, match="install confluent-kafka from a wheel"):
            kafka.create_topic("more")


def test_a_group_starts_reading_soon(kafka: EmbeddedKafka) -> None:
    kafka.create_topic("orders")
    send(producer_of(kafka), "orders", b"1")
    assert read(kafka, "orders", "g", 1)[0].offset() != OFFSET_BEGINNING


def test_no_broker_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        EmbeddedKafka(brokers=0)


def test_without_the_client_the_extra_is_named() -> None:
    code = "import sys; sys.modules['confluent_kafka'] = None; import otel_mqtrace.testing.embedded"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("the embedded broker needs the 'kafka' extra: pip install 'otel-mqtrace[kafka]'\n")


def test_time_moves_only_by_advance():
    clock = ManualClock(wall_ns=5)
    clock.advance(ms=2, ns=3)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (2_000_008, 2_000_003)


def test_ids_count_upwards():
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


def test_a_broker_comes_with_the_kit():
    with contextmanager(embedded_kafka)() as kafka:
        kafka.create_topic("orders", partitions=2)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce("orders", b"x")
        assert producer.flush(20) == 0
