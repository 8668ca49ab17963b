"""``kill -9`` of a broker and of the application, with a spool: what was counted as safe arrives, once."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

from bridge.forwarder.kafka_source import KafkaTraceSource
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.testing.embedded import EmbeddedKafka
from otel_mqtrace.wire.native import decode_body
from tests.support.native_spans import pub, traced

TOPIC = "RMQ_SYS_TRACE_TOPIC"
BROKER = """
import sys
from otel_mqtrace.testing.embedded import EmbeddedKafka
with EmbeddedKafka() as kafka:
    kafka.create_topic("RMQ_SYS_TRACE_TOPIC")
    print(kafka.bootstrap_servers, flush=True)
    sys.stdin.read()
"""
APPLICATION = """
import sys
from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from tests.support.native_spans import pub, traced
exporter = NativeKafkaSpanExporter(
    bootstrap_servers="127.0.0.1:1", spool_dir=sys.argv[1], export_timeout_millis=50
)
processor, trace = traced(exporter, max_export_batch_size=1)
for number in range(1_000_000):
    trace(pub(number))
    processor.run_once(now=10**18)
    print(exporter.stats()["spooled"], flush=True)
"""


def arrived(kafka):
    with KafkaTraceSource(kafka.bootstrap_servers, TOPIC) as source:
        bodies = [decode_body(message.body) for batch in source.drain() for message in batch]
    return sorted(int(record.beans[0].msg_id, 16) for body in bodies for record in body.contexts)


def replayed(spool):
    with EmbeddedKafka() as kafka:
        kafka.create_topic(TOPIC)
        exporter = NativeKafkaSpanExporter(bootstrap_servers=kafka.bootstrap_servers, spool_dir=spool)
        assert exporter.force_flush()
        exporter.shutdown()
        return arrived(kafka)


@contextlib.contextmanager
def child(code, *arguments):
    """A Python process that is killed at the end, if it has not been."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_killed_broker_loses_no_exported_record(tmp_path):
    with child(BROKER) as broker:
        exporter = NativeKafkaSpanExporter(
            bootstrap_servers=broker.stdout.readline().strip(), spool_dir=tmp_path, export_timeout_millis=1_000
        )
        processor, trace = traced(exporter, max_export_batch_size=5)
        for number in range(10):
            trace(pub(number))
        assert processor.force_flush()
        os.kill(broker.pid, signal.SIGKILL)
        broker.wait(timeout=30)
        for number in range(10, 40):
            trace(pub(number))
        processor.force_flush(timeout_millis=3_000)
        processor.shutdown(timeout_millis=1_000)
    books = processor.stats()["NativeKafkaSpanExporter"]
    assert (books["offered"], books["exported"], books["failed"], books["pending"]) == (40, 40, 0, 0)
    assert replayed(tmp_path) == list(range(10, 40))


def test_killed_application_leaves_its_records_on_disk(tmp_path):
    with child(APPLICATION, tmp_path) as application:
        counted = 0
        for line in iter(application.stdout.readline, ""):
            counted = int(line)
            if counted == 25:
                os.kill(application.pid, signal.SIGKILL)
    rows = replayed(tmp_path)
    assert rows == list(range(len(rows)))
    assert counted <= len(rows) <= counted + 1  # the last one may be on disk and not counted yet
