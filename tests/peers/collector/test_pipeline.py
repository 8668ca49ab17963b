"""Application → Kafka and its trace topic → landing; application → Collector → files, Kafka, Jaeger; both reconciled."""

import base64
import json

import pytest
from confluent_kafka import Consumer, TopicPartition
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from tests.peers.collector.server import Collector
from tests.peers.command import answers, mqtrace
from tests.peers.jaeger.query import JaegerQuery
from tests.peers.traced import handle, send, traced

pytestmark = pytest.mark.peers

MESSAGES = 600
TRACE_TOPIC = "PIPELINE_TRACE_TOPIC"
TOPICS = ("otlp_spans", "otlp_spans_json")


@pytest.fixture(scope="module")
def ran(kafka, jaeger, collector_program, tmp_path_factory):
    """One run of the whole pipeline: the Collector stopped again, the trace topic landed, Kafka's topics dumped."""
    directory = tmp_path_factory.mktemp("pipeline")
    for topic in (TRACE_TOPIC, "piped", *TOPICS):
        kafka.create_topic(topic, partitions=2)
    environment = {"KAFKA": kafka.bootstrap_servers, "JAEGER": jaeger.grpc_endpoint}
    with Collector(collector_program, directory / "collector", "pipeline.yaml", environment) as collector:
        for service, work in (("piped-shop", send), ("piped-billing", handle)):
            otlp = OTLPSpanExporter(endpoint=f"127.0.0.1:{collector.grpc_port}", insecure=True)
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
            key = None if message.key() is None else base64.b64encode(message.key()).decode()
            place = {"partition": message.partition(), "offset": message.offset()}
            line = {**place, "key_b64": key, "value_b64": base64.b64encode(message.value()).decode()}
            out.write(json.dumps(line) + "\n")
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


def test_records_partitioned_by_trace_hold_one_trace_each(ran):
    """With ``partition_traces_by_id`` a record's key is its trace id in hexadecimal characters, and nothing else is in it."""
    lines = (ran / "otlp_spans.jsonl").read_text(encoding="utf-8").splitlines()
    keys = {base64.b64decode(json.loads(line)["key_b64"]).decode() for line in lines}
    spans = answers("inspect", ran / "otlp_spans.jsonl", "--spans")
    assert keys == {span["trace_id"] for span in spans}
    assert len(keys) == MESSAGES


def test_jaeger_behind_the_collector_has_the_same_traces(ran, jaeger):
    held = JaegerQuery(jaeger.query_url).search("piped-shop", spans=2 * MESSAGES)
    kept = answers("inspect", ran / "collector" / "out", "--spans")
    names = ("trace_id", "span_id", "parent_span_id")
    assert {tuple(span[name] for name in names) for span in held} == {
        tuple(span[name] for name in names) for span in kept
    }
    assert len({span["trace_id"] for span in held}) == MESSAGES
