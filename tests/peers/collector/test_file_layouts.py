"""Spans through a real Collector into its files: every layout is detected and complete."""

import pytest

from otel_mqtrace.testing import RecordingExporter
from otel_mqtrace.testing.embedded import EmbeddedKafka
from tests.peers.command import answers
from tests.peers.otlp_spans import of_sdk
from tests.peers.traced import grpc_to, handle, http_to, send, traced

pytestmark = pytest.mark.peers

NATIVE_ZSTD = "--feature-gates=exporter.file.nativeCompression"
MESSAGES = 40


def _run_shop(kafka, topic, exporter):
    ended = RecordingExporter()
    with traced("shop", ended, exporter()):
        send(kafka, topic, MESSAGES)
    with traced("billing", ended, exporter()):
        handle(kafka, topic, MESSAGES, handler=_fail_for_some)
    return {span["span_id"]: span for span in map(of_sdk, ended.take_all())}


def _fail_for_some(message):
    return 1 / (message.offset() % 4)


_COMPARED = ("trace_id", "parent_span_id", "name", "attributes", "service")


def _compared(span):
    links = [link[:2] if isinstance(link, tuple) else (link["trace_id"], link["span_id"]) for link in span["links"]]
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
    collector = start_collector("file-layouts.yaml", flags=flags)
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        ended = _run_shop(kafka, "orders", lambda: exporter(collector))
    collector.stop()

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
