"""Losses that the application itself counted: its processor's full queue, its own ledger file, the whole batch run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client.parser import text_string_to_metric_families

from otel_mqtrace.exporters.native_file import NativeFileSpanExporter
from otel_mqtrace.message_id import new_unique_id
from otel_mqtrace.spans.mapping import OPERATIONS
from otel_mqtrace.spans.processor import MqTraceSpanProcessor
from spark_jobs.jobs.batch import ReconcileOptions, run
from spark_jobs.report.prometheus import render_metrics
from spark_jobs.report.summary import render_summary
from tests.support.events import START_MS
from tests.support.native_spans import pub, span_attributes
from tests.support.verdict_rows import read_verdicts

if TYPE_CHECKING:
    from pathlib import Path

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
        operation, said = OPERATIONS[trace_ctx.trace_type], span_attributes(trace_ctx)
        start_ns = at_ms * NS_PER_MS
        span = self._tracer.start_span(operation.name, kind=operation.kind, attributes=said.span, start_time=start_ns)
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
def runs(shop, tmp_path_factory):
    """Reconcile it with what it counted, and with what only a counter from before the data did."""
    application, _ = shop
    metrics = tmp_path_factory.mktemp("metrics") / "metrics.jsonl"
    metrics.write_text(old_counter())
    found = {}
    for name, ledger in (("without", (str(metrics),)), ("with", (str(application.ledgers),))):
        out = tmp_path_factory.mktemp(name)
        options = ReconcileOptions(
            native=(str(application.native),),
            otlp=(str(application.spans),),
            out=out,
            grace_ms=0,
            ledger=ledger,
            engine="local",
        )
        result = run(options)
        rows = read_verdicts(out)
        found[name] = (result, {row["msg_id"]: (row["status"], row["reason"], row["reason_detail"]) for row in rows})
    return found


def test_application_writes_its_drops_to_a_ledger_file(shop):
    (path,) = shop[0].ledgers.glob("ledger-*.json")
    (row,) = json.loads(path.read_text())["rows"]
    assert (row["side"], row["cause"], row["service"], row["count"]) == ("otlp", "queue_full", "shop", SENDS - ROOM)
    assert len(shop[1]) == SENDS - ROOM


def test_loss_without_its_ledger_is_unexplained_and_fails_the_run(shop, runs):
    result, verdicts = runs["without"]
    assert {msg_id for msg_id, said in verdicts.items() if said[1] == "UNEXPLAINED"} == shop[1]
    assert (result.verdict, result.exit_code) == ("FAIL", 1)
    assert (result.ledger.attributed["otlp"], result.ledger.surplus["otlp"]) == (0, 700)
    assert result.ledger.notes[0].startswith("700 losses were counted when their counters were first read")


def test_loss_with_its_ledger_is_attributed_and_the_run_passes(shop, runs):
    result, verdicts = runs["with"]
    attributed = {msg_id for msg_id, said in verdicts.items() if said[1] == "DROP_ATTRIBUTED"}
    assert attributed == shop[1]
    assert {verdicts[msg_id] for msg_id in attributed} == {("NATIVE_ONLY", "DROP_ATTRIBUTED", "queue_full")}
    assert (result.exit_code, result.conservation.holds) == (0, True)
    assert (result.loss["otlp"].attributed, result.loss["otlp"].unexplained) == (SENDS - ROOM, 0)
    assert {gate.name: gate.outcome for gate in result.gates}["attributed_loss_otlp"] == "warn"
    assert (result.ledger.attributed["otlp"], result.ledger.surplus["otlp"]) == (SENDS - ROOM, 0)


def test_reports_show_how_the_ledger_was_spent(runs):
    result, _ = runs["with"]
    plain = json.loads(result.dumps())["ledger"]
    assert (plain["rows_read"], plain["lines"][0]["counted"]) == (1, SENDS - ROOM)
    lane = plain["lines"][0]["component"]
    assert f"| otlp | {lane} | queue_full | shop | {SENDS - ROOM} | {SENDS - ROOM} | 0 |" in render_summary(result)
    attributed = [
        sample.value
        for family in text_string_to_metric_families(render_metrics(result))
        for sample in family.samples
        if sample.labels.items() >= {"cause": "queue_full", "service": "shop", "place": "attributed"}.items()
    ]
    assert attributed == [SENDS - ROOM]
