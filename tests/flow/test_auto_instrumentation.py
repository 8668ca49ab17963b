"""An unchanged application under ``opentelemetry-instrument`` with environment variables only."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from otel_mqtrace.model import TraceType
from otel_mqtrace.testing.embedded import EmbeddedKafka
from otel_mqtrace.wire.native import decode_body

_APPLICATION = """
import sys
from confluent_kafka import Consumer, Producer

servers, topic, group = sys.argv[1:]
producer = Producer({"bootstrap.servers": servers, "client.id": "shop"})
producer.produce(topic, "paid", key="order-1", headers={"TAGS": "paid", "KEYS": "order-1"})
assert producer.flush(20) == 0
consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "auto.offset.reset": "earliest"})
consumer.subscribe([topic])
message = None
while message is None:
    message = consumer.poll(1)
consumer.close()
print(message.value())
"""


@pytest.fixture(scope="module")
def kafka():
    with EmbeddedKafka() as broker:
        broker.create_topic("RMQ_SYS_TRACE_TOPIC", partitions=1)
        yield broker


def _run(kafka, tmp_path, *, group, **environment):
    # A topic and a group of its own each time: the mock makes a second member of a group wait for the first one's session to end.
    application = tmp_path / "application.py"
    application.write_text(_APPLICATION)
    launcher = Path(sys.executable).with_name("opentelemetry-instrument")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MQTRACE_"))}
    return subprocess.run(
        [launcher, sys.executable, application, kafka.bootstrap_servers, f"orders-{group}", group],
        env={
            **clean,
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "confluent_kafka",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        cwd=tmp_path,
    )


def _trace_records(kafka):
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "reader"})
    consumer.assign([TopicPartition("RMQ_SYS_TRACE_TOPIC", 0, 0)])
    high = consumer.get_watermark_offsets(TopicPartition("RMQ_SYS_TRACE_TOPIC", 0), 10)[1]
    bodies = consumer.consume(high, 10) if high else []
    consumer.close()
    return [record for body in bodies for record in decode_body(body.value()).contexts]


def test_environment_variables_alone_trace_into_both_formats(kafka, tmp_path):
    done = _run(kafka, tmp_path, group="billing", OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="shop")
    assert done.returncode == 0, done.stderr
    assert "b'paid'" in done.stdout
    assert "Traceback" not in done.stderr
    records = {record.trace_type: record for record in _trace_records(kafka)}
    assert set(records) == {TraceType.PUB, TraceType.SUB_BEFORE, TraceType.SUB_AFTER}
    assert len({record.beans[0].msg_id for record in records.values()}) == 1
    assert records[TraceType.PUB].group_name == "shop"
    assert records[TraceType.SUB_BEFORE].group_name == "billing"
    names = [line.split(":", 1)[1].strip(' ",') for line in done.stdout.splitlines() if line.startswith('    "name"')]
    assert sorted(names) == ["process orders-billing", "send orders-billing"]


def test_switched_off_by_one_variable_nothing_is_traced(kafka, tmp_path):
    done = _run(kafka, tmp_path, group="silent", OTEL_TRACES_EXPORTER="console", MQTRACE_ENABLED="false")
    assert done.returncode == 0, done.stderr
    assert '"name"' not in done.stdout


def test_file_exporter_needs_no_trace_topic(kafka, tmp_path):
    done = _run(kafka, tmp_path, group="files", OTEL_TRACES_EXPORTER="none", MQTRACE_EXPORTERS="mqtrace_native_file")
    assert done.returncode == 0, done.stderr
    parts = list((tmp_path / "mqtrace-landing").rglob("part-*.jsonl"))
    lines = [json.loads(line) for part in parts for line in part.read_text().splitlines()]
    assert lines
    assert all("body_base64" in line for line in lines)


def test_missing_exporter_does_not_stop_the_application(kafka, tmp_path):
    done = _run(kafka, tmp_path, group="unlucky", OTEL_TRACES_EXPORTER="none", MQTRACE_EXPORTERS="no_such_thing")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no_such_thing") == 1
