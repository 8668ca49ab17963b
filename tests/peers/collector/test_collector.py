"""Spans through a real Collector: every layout of its files, and a pipeline whose two sides are reconciled."""

import json

import pytest

from otel_mqtrace.exporters.native_kafka import NativeKafkaSpanExporter
from otel_mqtrace.testing import RecordingExporter
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.peers.collector.server import Collector
from tests.peers.traced import grpc_to, handle, http_to, of_sdk, send, traced
from tests.support.programs import MQTRACE, answers, run_program

pytestmark = pytest.mark.peers

NATIVE_ZSTD = "--feature-gates=exporter.file.nativeCompression"
MESSAGES = 40


_COMPARED = ("trace_id", "parent_span_id", "name", "attributes", "service")


def _compared(span):
    links = [(link["trace_id"], link["span_id"]) for link in span["links"]]
    times = (int(span["start_ns"]), int(span["end_ns"]))
    return (*(span[name] for name in _COMPARED), times, links, span["status_message"] or "")


@pytest.mark.parametrize(
    ("exporter", "flags", "layouts"),
    [
        (http_to, (), ["json-lines", "json-zstd-framed", "proto-framed", "proto-zstd-framed"]),
        (grpc_to, (NATIVE_ZSTD,), ["json-lines", "json-lines-zstd", "proto-framed", "proto-framed-zstd"]),
    ],
    ids=["by default, over http", "with real zstd files, over grpc"],
)
def test_every_layout_has_the_ended_spans(start_collector, exporter, flags, layouts):
    collector, recorded = start_collector("file-layouts.yaml", flags=flags), RecordingExporter()
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        with traced("shop", recorded, exporter(collector)):
            send(kafka, "orders", MESSAGES)
        with traced("billing", recorded, exporter(collector)):
            handle(kafka, "orders", MESSAGES, handler=lambda message: 1 / (message.offset() % 4))
    collector.stop()
    ended = {span["span_id"]: span for span in map(of_sdk, recorded.take_all())}

    assert len(ended) == 2 * MESSAGES
    files = [collector.output / name for name in ("json", "json-zstd", "proto", "proto-zstd")]
    for file, layout in zip(files, layouts, strict=True):
        (inventory,) = answers("inspect", file, "--json")
        assert (inventory["layout"], inventory["items"]) == (layout, 2 * MESSAGES)
        assert (inventory["topics"], inventory["groups"]) == (["orders"], ["orders-billing", "rdkafka"])
        spans = {span["span_id"]: span for span in answers("inspect", file, "--spans")}
        assert {key: _compared(span) for key, span in spans.items()} == {
            key: _compared(span) for key, span in ended.items()
        }


PIPED = 600
TRACE_TOPIC = "PIPELINE_TRACE_TOPIC"
TOPICS = ("otlp_spans", "otlp_spans_json")


@pytest.fixture(scope="module")
def ran(kafka, collector_program, tmp_path_factory):
    """One run of the whole pipeline: the Collector stopped again, the trace topic landed; its folder and the spans."""
    directory = tmp_path_factory.mktemp("pipeline")
    for topic in (TRACE_TOPIC, "piped", *TOPICS):
        kafka.create_topic(topic, partitions=2)
    brokers = {"KAFKA": kafka.bootstrap_servers}
    with Collector(collector_program, directory / "collector", "pipeline.yaml", brokers) as collector:
        for service, work in (("piped-shop", send), ("piped-billing", handle)):
            otlp = grpc_to(collector)
            native = NativeKafkaSpanExporter(bootstrap_servers=kafka.bootstrap_servers, trace_topic=TRACE_TOPIC)
            with traced(service, native, otlp):
                work(kafka, "piped", PIPED)
    source = f"kafka://{kafka.bootstrap_servers}/{TRACE_TOPIC}"
    answers("forward", "--source", source, "--landing", directory / "landing", "--once", "--json")
    spans = {topic: f"kafka://{kafka.bootstrap_servers}/{topic}" for topic in TOPICS}
    return directory, {"files": directory / "collector" / "out" / "traces*.jsonl", **spans}


@pytest.mark.parametrize(("otlp", "engine"), [("files", "spark"), *((topic, "local") for topic in TOPICS)])
def test_spans_of_a_collector_reconcile_with_the_native_records(ran, tmp_path, otlp, engine):
    directory, spans = ran
    sides = "--native", directory / "landing", "--otlp", spans[otlp]
    how = "--grace", "1s", "--strict", "--engine", engine
    done = run_program(*MQTRACE, "reconcile", *sides, "--out", tmp_path, *how)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    matched = {status: count for status, count in result["status"].items() if count}
    assert (result["verdict"], result["conservation"]["holds"]) == ("PASS", True)
    assert set(matched) <= {"MATCHED_EXACT", "MATCHED_NORMALISED"}
    assert sum(matched.values()) == 2 * PIPED


def test_file_exporter_rotated(ran):
    out = ran[0] / "collector" / "out"
    files = sorted(path.name for path in out.iterdir())
    assert len(files) > 1
    (inventory,) = answers("inspect", out, "--json")
    assert (inventory["items"], inventory["malformed"], len(inventory["files"])) == (2 * PIPED, 0, len(files))
