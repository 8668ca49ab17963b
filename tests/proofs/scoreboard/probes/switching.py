"""Probes of switching on and off, and of the output at the end."""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import confluent_kafka
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from tests.proofs.scoreboard.stage import Seen

if TYPE_CHECKING:
    from tests.proofs.scoreboard.stage import Stage


def imported_first(stage: Stage) -> Seen:
    """``from confluent_kafka import Producer, Consumer`` before ``instrument()``."""
    shop = ModuleType("shop")
    exec("from confluent_kafka import Consumer, Producer, TopicPartition", vars(shop))
    sys.modules["shop"] = shop  # as a loaded module of the application is
    stage.instrument()
    producer = shop.Producer({"bootstrap.servers": stage.servers})
    producer.produce(stage.topic, b"an order")
    producer.flush(20)
    consumer = shop.Consumer({"bootstrap.servers": stage.servers, "group.id": "billing"})
    consumer.assign([shop.TopicPartition(stage.topic, 0, 0)])
    stage.poll(consumer)
    consumer.close()
    return Seen(bool(stage.spans("send")) and bool(stage.spans("process")), stage.names())


def _fingerprint() -> dict[str, int]:
    classes = [confluent_kafka.Producer, confluent_kafka.Consumer, confluent_kafka.SerializingProducer]
    names = {f"confluent_kafka.{name}": id(value) for name, value in vars(confluent_kafka).items() if name[0].isupper()}
    methods = {f"{c.__name__}.{name}": id(value) for c in classes for name, value in vars(c).items() if name[0] != "_"}
    return names | methods


def restored(stage: Stage) -> Seen:
    """Ten times on and off: every name is what it was, and one message leaves one span of each side."""
    before = _fingerprint()
    for _ in range(10):
        stage.instrument()
        stage.uninstrument()
    after = _fingerprint()
    changed = sorted(name for name in before | after if before.get(name) != after.get(name))
    stage.instrument()
    stage.send()
    consumer = stage.consumer()
    assert len(consumer.consume(1, 20)) == 1
    consumer.close()
    names = [span.name for span in stage.spans()]
    return Seen(
        not changed and len(names) == len(set(names)), f"names that differ: {len(changed)}; then {stage.names()}"
    )


def switched_twice(stage: Stage) -> Seen:
    """On, off, on: ``consume`` and ``close`` as well leave one span each."""
    stage.instrument()
    stage.uninstrument()
    stage.instrument()
    stage.fill()
    consumer = stage.consumer()
    assert len(consumer.consume(1, 20)) == 1
    consumer.close()
    spans = stage.spans()
    return Seen(len(spans) == 1, stage.names())


def native_output(stage: Stage) -> Seen:
    """RocketMQ's own trace records of the same spans."""
    with tempfile.TemporaryDirectory() as folder:
        stage.instrument(exporters=["mqtrace_native_file"], landing_dir=folder)
        stage.send()
        stage.handle_one()
        stage.uninstrument()
        parts = sorted(Path(folder).rglob("part-*.jsonl"))
        kinds = _record_types(parts)
    return Seen(kinds == ["Pub", "SubAfter", "SubBefore"], f"records: {', '.join(kinds) or 'none'}")


def _record_types(parts: list[Path]) -> list[str]:
    if not parts:
        return []
    from otel_mqtrace.wire.native import decode_body  # noqa: PLC0415 - the incumbent's process never loads ours

    bodies = [json.loads(line)["body_base64"] for part in parts for line in part.read_text().splitlines()]
    return sorted(c.trace_type.value for body in bodies for c in decode_body(base64.b64decode(body)).contexts)


class _Stuck(SpanExporter):
    def __init__(self) -> None:
        self.go, self.busy = threading.Event(), threading.Event()

    def export(self, spans: Any) -> SpanExportResult:
        self.busy.set()
        self.go.wait(0.7)
        return SpanExportResult.SUCCESS


def _processor_of(stage: Stage, exporter: SpanExporter) -> Any:
    if stage.subject.name == "ours":
        from otel_mqtrace import MqTraceSpanProcessor  # noqa: PLC0415 - only in the process of ours

        return MqTraceSpanProcessor(exporter, max_queue_size=4, max_export_batch_size=2, schedule_delay_millis=60_000)
    return BatchSpanProcessor(exporter, max_queue_size=4, max_export_batch_size=2, schedule_delay_millis=60_000)


def honest_processor(stage: Stage) -> Seen:
    """The exporter is stuck: is every lost span counted, does a flush keep its deadline, does a child of ``fork`` export?"""
    exporter = _Stuck()
    processor = _processor_of(stage, exporter)
    provider = TracerProvider()
    provider.add_span_processor(processor)
    tracer = provider.get_tracer("the application")
    for _ in range(2):
        tracer.start_span("fills a batch").end()
    assert exporter.busy.wait(20)
    for _ in range(10):
        tracer.start_span("more than fit").end()
    kept_deadline = processor.force_flush(50) is False and not exporter.go.is_set()
    stats = processor.stats() if hasattr(processor, "stats") else {}
    dropped = sum(sum(lane["dropped"].values()) for lane in stats.values())
    exporter.go.set()
    child = _child_exports(stage)
    processor.shutdown()
    evidence = (
        f"lost spans that can be read off: {dropped}; a flush of 50 ms says it did not finish: "
        f"{'yes' if kept_deadline else 'no'}; a forked child exports: {'yes' if child else 'no'}"
    )
    score = [dropped == 6, kept_deadline, child]
    return Seen(all(score) or ("partly" if any(score) else False), evidence)


class _Pipe(SpanExporter):
    def __init__(self, target: int) -> None:
        self._target = target

    def export(self, spans: Any) -> SpanExportResult:
        os.write(self._target, b"." * len(spans))
        return SpanExportResult.SUCCESS


def _child_exports(stage: Stage) -> bool:
    read, write = os.pipe()
    processor = _processor_of(stage, _Pipe(write))
    provider = TracerProvider()
    provider.add_span_processor(processor)
    child = os.fork()
    if child == 0:
        provider.get_tracer("the application").start_span("in the child").end()
        provider.force_flush()
        os._exit(0)
    os.waitpid(child, 0)
    processor.shutdown()
    os.close(write)
    with os.fdopen(read, "rb") as exported:
        return exported.read() == b"."


def without_a_broker(stage: Stage) -> Seen:
    """What a subject gives its users to test their application with, as published with it."""
    package, _, _ = stage.subject.home.partition(":")
    kits = [name for name in ("testing", "test") if find_spec(f"{package}.{name}") is not None]
    broker = stage.subject.name == "ours" and find_spec("otel_mqtrace.testing.embedded") is not None
    evidence = f"test kit: {', '.join(kits) or 'none'}; broker in the process: {'yes' if broker else 'no'}"
    return Seen(bool(kits) and broker, evidence)
