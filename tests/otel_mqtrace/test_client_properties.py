"""Metadata of a Kafka cluster: a signal handler runs during the wait for a connection, and a slow answer is waited for."""

import logging
import signal
import socket
import time

import pytest
from confluent_kafka.cimpl import Consumer

from otel_mqtrace.client_properties import fetch_metadata
from otel_mqtrace.testing.embedded import EmbeddedKafka


def _consumer(servers):
    properties = {"bootstrap.servers": servers, "group.id": "g", "log_level": 0}
    return Consumer(properties, logger=logging.getLogger(__name__))


def test_signal_interrupts_the_wait_for_a_silent_broker():
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    started_s = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        consumer = _consumer(f"127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - a timer set before it could go off before it
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            fetch_metadata(consumer, "t", 300)
        consumer.close()
    signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - started_s < 100


def test_broker_that_is_connected_has_all_the_time_for_its_answer():
    with EmbeddedKafka() as kafka:
        kafka.create_topic("t", 2)
        kafka.set_rtt(1, 700)
        consumer = _consumer(kafka.bootstrap_servers)
        assert sorted(fetch_metadata(consumer, "t", 30).topics["t"].partitions) == [0, 1]
        consumer.close()
