"""A real Jaeger as a source of spans."""

import json
from urllib.parse import urlsplit

import pytest

from otel_mqtrace.cli import main
from otel_mqtrace.testing import RecordingExporter
from otel_mqtrace.testing.embedded import EmbeddedKafka
from spark_jobs.inspect import Inventory, inspect_sources
from spark_jobs.sources.jaeger import JaegerAddress, fetch_spans
from tests.peers.jaeger.query import JaegerQuery
from tests.peers.otlp_spans import of_sdk
from tests.peers.traced import http_to, send, traced

pytestmark = pytest.mark.peers

MESSAGES, TOPIC, SERVICE = 9, "fetched", "fetched-shop"


@pytest.fixture(scope="module")
def sent(jaeger):
    """The ids of the spans that Jaeger holds of the service."""
    ended = RecordingExporter()
    with EmbeddedKafka() as kafka:
        kafka.create_topic(TOPIC, partitions=1)
        with traced(SERVICE, ended, http_to(jaeger)):
            for _ in range(MESSAGES):
                send(kafka, TOPIC)
    JaegerQuery(jaeger.query_url).search(SERVICE, spans=MESSAGES)
    return {of_sdk(span)["span_id"] for span in ended.take_all(f"send {TOPIC}")}


def test_pages_smaller_than_the_service_hold_every_span_once(jaeger, sent, tmp_path):
    address = JaegerAddress(urlsplit(jaeger.query_url).netloc, (SERVICE,))
    path = tmp_path / "spans.jsonl"
    fetch_spans(address, path, traces_per_page=2)
    inventory = Inventory()
    assert sorted(item["span_id"] for _, item in inspect_sources([str(path)], inventory)) == sorted(sent)
    assert (len(sent), inventory.topics, inventory.malformed) == (MESSAGES, {TOPIC}, 0)
    assert len(path.read_text(encoding="utf-8").splitlines()) > 1


def test_reconcile_reads_the_spans_of_the_address(jaeger, sent, tmp_path, capsys):
    native = tmp_path / "native.jsonl"
    native.touch()
    src = f"jaeger://{urlsplit(jaeger.query_url).netloc}?service={SERVICE}"
    options = ["--engine", "local", "--profile", "mqtrace", "--native-writer", "mqtrace", "--complete", "--json"]
    main(["reconcile", "--native", str(native), "--otlp", src, "--out", str(tmp_path / "out"), *options])
    result = json.loads(capsys.readouterr().out)
    assert result["inputs"]["otlp"]["records_read"] == len(sent) == MESSAGES
