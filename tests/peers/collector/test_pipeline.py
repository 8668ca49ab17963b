"""Application → Kafka and its trace topic → landing; application → Collector → files and Kafka; both reconciled."""

import base64
import json

import pytest
from confluent_kafka import Consumer, TopicPartition

from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from tests.peers.collector.server import Collector
from tests.peers.command import answers, mqtrace
from tests.peers.traced import grpc_to, handle, send, traced

pytestmark = pytest.mark.peers

MESSAGES = 600
TRACE_TOPIC = "PIPELINE_TRACE_TOPIC"
TOPICS = ("otlp_spans", "otlp_spans_json")


@pytest.fixture(scope="module")
def ran(kafka, collector_program, tmp_path_factory):
    """One run of the whole pipeline: the Collector stopped again, the trace topic landed, Kafka's topics dumped."""
    directory = tmp_path_factory.mktemp("pipeline")
    for topic in (TRACE_TOPIC, "piped", *TOPICS):
        kafka.create_topic(topic, partitions=2)
    brokers = {"KAFKA": kafka.bootstrap_servers}
    with Collector(collector_program, directory / "collector", "pipeline.yaml", brokers) as collector:
        for service, work in (("piped-shop", send), ("piped-billing", handle)):
            otlp = grpc_to(collector)
            native = NativeKafkaSpanExporter(bootstrap_servers=kafka.bootstrap_servers, trace_topic=TRACE_TOPIC)
            with traced(service, native, otlp):
                work(kafka, "piped", MESSAGES)
    source = f"kafka://{kafka.bootstrap_servers}/{TRACE_TOPIC}"
    answers("forward", "--source", source, "--landing", directory / "landing", "--once", "--json")
    for topic in TOPICS:
        _dump(kafka, topic, directory / f"{topic}.jsonl")
    return directory


def _dump(kafka, topic, path):
    """Write every record of a topic as a line, its bytes in base64."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": "dump", "enable.partition.eof": True}
    consumer = Consumer(settings)
    partitions = sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    with path.open("w", encoding="utf-8") as out:
        while partitions:
            message = consumer.poll(10)
            assert message is not None
            if message.error():  # the end of that partition
                partitions.remove(message.partition())
                continue
            place = {"partition": message.partition(), "offset": message.offset()}
            out.write(json.dumps({**place, "value_b64": base64.b64encode(message.value()).decode()}) + "\n")
    consumer.close()


def _reconciled(ran, otlp, out, engine):
    sides = ("--native", ran / "landing", "--otlp", otlp)
    done = mqtrace("reconcile", *sides, "--out", out, "--grace", "1s", "--strict", "--engine", engine)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "result.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("otlp", "engine"), [("collector/out/traces*.jsonl", "spark"), *((f"{topic}.jsonl", "local") for topic in TOPICS)]
)
def test_spans_of_a_collector_reconcile_with_the_native_records(ran, tmp_path, otlp, engine):
    result = _reconciled(ran, ran / otlp, tmp_path / "report", engine)
    matched = {status: count for status, count in result["status"].items() if count}
    assert (result["verdict"], result["conservation"]["holds"]) == ("PASS", True)
    assert set(matched) <= {"MATCHED_EXACT", "MATCHED_NORMALISED"}
    assert sum(matched.values()) == 2 * MESSAGES


def test_file_exporter_rotated(ran):
    files = sorted(path.name for path in (ran / "collector" / "out").iterdir())
    assert len(files) > 1
    (inventory,) = answers("inspect", ran / "collector" / "out", "--json")
    assert (inventory["items"], inventory["malformed"], len(inventory["files"])) == (2 * MESSAGES, 0, len(files))
