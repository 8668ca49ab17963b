"""Losses that the application itself counted: its processor's full queue, its own ledger file, the whole batch run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.message_id import new_unique_id
from otel_mqtrace.spans.mapping import OPERATIONS
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from spark_jobs.jobs.batch import run
from spark_jobs.jobs.options import ReconcileOptions
from tests.support.events import START_MS
from tests.support.native_spans import pub, span_attributes
from tests.support.reading import read_verdicts

ROOM = 8
SENDS = 29
MINUTE_MS = 60_000
NS_PER_MS = 1_000_000


class Shop:
    """An application that traces its sends into native records and, through a queue that is too small, into spans."""

    def __init__(self, directory: Path) -> None:
        self.native, self.ledgers, self.spans = directory / "landing", directory / "ledgers", directory / "otlp.jsonl"
        provider = TracerProvider(resource=Resource({"service.name": "shop"}), shutdown_on_exit=False)
        lanes = [
            (NativeFileSpanExporter(directory=self.native), {}),
            (FileSpanExporter(str(self.spans)), {"max_queue_size": ROOM, "max_export_batch_size": ROOM}),
        ]
        self._processors = [
            MqTraceSpanProcessor(exporter, background=False, ledger_dir=self.ledgers, **options)
            for exporter, options in lanes
        ]
        for processor in self._processors:
            provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("shop")

    def send(self, at_ms: int) -> str:
        msg_id = new_unique_id()
        sent = pub(0)
        trace_ctx = replace(sent, timestamp_ms=at_ms, beans=(replace(sent.beans[0], msg_id=msg_id),))
        operation, attributes = OPERATIONS[trace_ctx.trace_type], span_attributes(trace_ctx)
        start_ns = at_ms * NS_PER_MS
        span = self._tracer.start_span(
            operation.name, kind=operation.kind, attributes=attributes.span, start_time=start_ns
        )
        span.end(start_ns + 3 * NS_PER_MS)
        return msg_id

    def flush(self) -> None:
        for processor in self._processors:
            assert processor.force_flush()

    def close(self) -> None:
        for processor in self._processors:
            processor.shutdown()


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Give an application of which 21 spans were dropped in one burst, and the ids of their messages."""
    application = Shop(tmp_path_factory.mktemp("shop"))
    sent = [application.send(START_MS + number) for number in range(SENDS)]
    application.flush()
    application.send(START_MS + 20 * MINUTE_MS)
    application.close()
    return application, set(sent[ROOM:])


def old_counter() -> str:
    """Return metrics of the shop's SDK, which had counted 700 losses in a month when it was first read."""
    points = [
        {
            "attributes": [{"key": "error.type", "value": {"stringValue": "queue_full"}}],
            "startTimeUnixNano": str((START_MS - 30 * 86_400_000) * NS_PER_MS),
            "timeUnixNano": str((START_MS + minute * MINUTE_MS) * NS_PER_MS),
            "asInt": "700",
        }
        for minute in (5, 6)
    ]
    counted = {"aggregationTemporality": 2, "isMonotonic": True, "dataPoints": points}
    metric = {"name": "otel.sdk.processor.span.processed", "sum": counted}
    of_shop = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return json.dumps({"resourceMetrics": [{"resource": of_shop, "scopeMetrics": [{"metrics": [metric]}]}]})


@pytest.fixture(scope="module")
def run_with_ledger(shop, tmp_path_factory):
    """Reconcile the application with its ledger and a counter from before the data; give result and verdicts."""
    application, _ = shop
    out = tmp_path_factory.mktemp("with")
    (out / "metrics.jsonl").write_text(old_counter())
    ledgers = str(application.ledgers), str(out / "metrics.jsonl")
    sources = {"native": (str(application.native),), "otlp": (str(application.spans),)}
    options = ReconcileOptions(**sources, out=out, grace_ms=0, ledger=ledgers, engine="local")
    result, rows = run(options), read_verdicts(out)
    return result, {row["msg_id"]: (row["status"], row["reason"], row["reason_detail"]) for row in rows}


def test_loss_with_its_ledger_is_attributed_and_the_run_passes(shop, run_with_ledger):
    result, verdicts = run_with_ledger
    attributed = {msg_id for msg_id, verdict in verdicts.items() if verdict[1] == "DROP_ATTRIBUTED"}
    assert attributed == shop[1]
    assert {verdicts[msg_id] for msg_id in attributed} == {("NATIVE_ONLY", "DROP_ATTRIBUTED", "queue_full")}
    assert (result.exit_code, result.conservation.holds) == (0, True)
    assert (result.loss["otlp"].attributed, result.loss["otlp"].unexplained) == (SENDS - ROOM, 0)
    assert {gate.name: gate.outcome for gate in result.gates}["attributed_loss_otlp"] == "warn"
    assert (result.ledger.attributed["otlp"], result.ledger.surplus["otlp"]) == (SENDS - ROOM, 700)
    assert result.ledger.notes[0].startswith("700 losses were counted when their counters were first read")
